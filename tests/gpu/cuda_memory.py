#!/usr/bin/env python3
"""Takes device memory by each way that the CUDA driver API offers, for measurements of what the driver reports of it.

  cuda_memory.py context 0       a context alone
  cuda_memory.py WAY MIB         plain, small (pieces of 64 KiB), odd (pieces of 1 MiB + 4 KiB), pool, vmm, managed
  cuda_memory.py until MIB WAY   pieces of 64 MiB by that way, until one is refused or MIB is reached: a line with `got_mib`
  cuda_memory.py export MIB FD   like vmm, and sends a descriptor of the memory on the Unix socket FD
  cuda_memory.py import MIB FD   maps the memory that `export` sends on FD
  cuda_memory.py keep 0 FD       takes the descriptor that `export` sends on FD, and makes no CUDA call
Prints one JSON line when it has the memory, and stays until its standard input closes.
"""
import array
import ctypes
import os
import socket
import sys

from cuda import Cuda, CudaError, say

PIECE_MIB = 64
PINNED, ON_DEVICE, POSIX_DESCRIPTOR, READ_WRITE, ATTACH_GLOBAL = 1, 1, 1, 3, 1


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("windows", ctypes.c_void_p),
                ("flags", ctypes.c_ubyte * 8)]


class Access(ctypes.Structure):
    """CUmemAccessDesc."""
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


def plain(cuda, size):
    cuda.allocate(size)


def pieces(cuda, size, piece):
    for _ in range(size // piece):
        cuda.allocate(piece)


def pool(cuda, size):
    address = ctypes.c_ulonglong()
    cuda.call("cuMemAllocAsync", ctypes.byref(address), ctypes.c_size_t(size), None)
    cuda.wait()


def managed(cuda, size):
    address = ctypes.c_ulonglong()
    cuda.call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(size), ATTACH_GLOBAL)
    cuda.call("cuMemsetD8_v2", address, 1, ctypes.c_size_t(size))  # on the GPU, so that its pages are there
    cuda.wait()


def create(cuda, size):
    properties = AllocationProperties(type=PINNED, handle_types=POSIX_DESCRIPTOR, location=Location(ON_DEVICE, cuda.device.value))
    handle = ctypes.c_ulonglong()
    cuda.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_ulonglong(0))
    return handle


def map_memory(cuda, handle, size):
    address = ctypes.c_ulonglong()
    cuda.call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_size_t(0), ctypes.c_ulonglong(0),
              ctypes.c_ulonglong(0))
    cuda.call("cuMemMap", address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
    access = Access(Location(ON_DEVICE, cuda.device.value), READ_WRITE)
    cuda.call("cuMemSetAccess", address, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
    cuda.call("cuMemsetD8_v2", address, 1, ctypes.c_size_t(size))
    cuda.wait()


def vmm(cuda, size):
    map_memory(cuda, create(cuda, size), size)


def export(cuda, size, channel):
    handle, descriptor = create(cuda, size), ctypes.c_int()
    map_memory(cuda, handle, size)
    cuda.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, POSIX_DESCRIPTOR, ctypes.c_ulonglong(0))
    socket.socket(fileno=channel).sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor.value]))])


def received(channel):
    return socket.recv_fds(socket.socket(fileno=channel), 1, 1)[1][0]


def import_memory(cuda, size, channel):
    handle, descriptor = ctypes.c_ulonglong(), received(channel)
    cuda.call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), POSIX_DESCRIPTOR)
    os.close(descriptor)
    map_memory(cuda, handle, size)


def until(way, mib):
    """For a process with a memory limit: how many MiB it gets, and what it sees as the GPU's memory."""
    cuda, got, refused = Cuda(), 0, None
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    try:
        while got < mib:
            WAYS[way](cuda, PIECE_MIB << 20)
            got += PIECE_MIB
    except CudaError as error:
        refused = {"call": str(error), "code": error.code}
    say(way=way, got_mib=got, refused=refused, total_mib=total.value >> 20)


WAYS = {"context": lambda cuda, size: None, "plain": plain, "small": lambda cuda, size: pieces(cuda, size, 64 << 10),
        "odd": lambda cuda, size: pieces(cuda, size, (1 << 20) + (4 << 10)), "pool": pool, "vmm": vmm, "managed": managed,
        "export": export, "import": import_memory}


def main():
    way, mib, *channel = sys.argv[1:]
    try:
        if way == "until":
            until(channel[0], int(mib))
            sys.stdin.read()
            return 0
        channel = [int(number) for number in channel]
        kept = received(*channel) if way == "keep" else WAYS[way](Cuda(), int(mib) << 20, *channel)
        say(way=way, descriptor=kept)
    except (CudaError, OSError) as error:
        say(error=str(error), code=getattr(error, "code", None))
        return 1
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
