#!/usr/bin/env python3
"""What the CUDA driver API returns for right and wrong calls: codes, and figures that no two runs differ in.

  cuda_calls.py                 prints {"codes": {call: code}, "values": {name: value}}
  cuda_calls.py CASE [CALL…]    one case, without these calls
Each case runs in a process of its own, so that no mistake of one is an answer of the next. Changes nothing on the machine.
`make test-gpu` records the answers of a real driver; the simulated libcuda.so.1 has to give the same.
"""
import ctypes
import json
import os
import subprocess
import sys

from cuda_memory import (ATTACH_GLOBAL, ON_DEVICE, PINNED, READ_WRITE, Access, AllocationProperties, Location)
from cuda import SAXPY

MIB = 1 << 20
# Of the device attributes those that are the model's, not the machine's: no PCI address.
ATTRIBUTES = [number for number in range(1, 148) if number not in (33, 34, 50)]
NOWHERE = 0x7000_0000_0000
MOST_ENDS = 20


class Driver:
    """Calls with every result kept under a name of its own. Those of `skipped` are not made: they end the process."""

    def __init__(self, skipped):
        self.library, self.skipped, self.codes, self.values = ctypes.CDLL("libcuda.so.1"), skipped, {}, {}

    def call(self, name, function, *arguments):
        label = f"{function} {name}".strip()
        if label in self.skipped:
            return None
        made = getattr(self.library, function, None)
        if made is None:
            self.codes[label] = "absent"
            return None
        print(json.dumps({"calling": label}), flush=True)
        code = self.codes[label] = made(*arguments)
        return code

    def value(self, name, function, kind, *arguments, before=()):
        """Calls with a result as the argument after `before`, and records it."""
        made = kind()
        if self.call(name, function, *before, ctypes.byref(made), *arguments) == 0:
            self.values[f"{function} {name}".strip()] = made.value
        return made

    def start(self):
        self.library.cuInit(0)

    def context(self):
        self.start()
        context = ctypes.c_void_p()
        self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.library.cuCtxSetCurrent(context)
        return context

    def memory(self, size):
        address = ctypes.c_ulonglong()
        self.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def info(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


U, I, SIZE, PTR, U64 = ctypes.c_uint, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_ulonglong


def before_init(d):
    d.value("before cuInit", "cuDriverGetVersion", I)
    d.value("before cuInit", "cuDeviceGetCount", I)
    d.value("before cuInit", "cuDeviceGet", I, 0)
    d.value("before cuInit", "cuCtxGetCurrent", PTR)
    d.value("before cuInit", "cuMemAlloc_v2", U64, SIZE(MIB))
    d.call("null", "cuDriverGetVersion", None)
    d.call("flags 1", "cuInit", 1)
    for code in (*range(0, 4), 46, 100, 101, 200, 201, 209, 400, 500, 600, 700, 719, 801, 802, 803, 999, 12345):
        text = ctypes.c_char_p()
        d.call(str(code), "cuGetErrorName", code, ctypes.byref(text))
        d.values[f"cuGetErrorName {code}"] = text.value and text.value.decode()
    d.call("null", "cuGetErrorName", 0, None)
    text = ctypes.c_char_p()
    d.call("2", "cuGetErrorString", 2, ctypes.byref(text))
    d.values["cuGetErrorString 2"] = text.value and text.value.decode()


def devices(d):
    d.call("", "cuInit", 0)
    d.call("again", "cuInit", 0)
    d.call("null", "cuDeviceGetCount", None)
    for ordinal in (0, -1, 99):
        d.value(f"of {ordinal}", "cuDeviceGet", I, ordinal)
    name = ctypes.create_string_buffer(96)
    d.call("", "cuDeviceGetName", name, 96, 0)
    d.values["cuDeviceGetName"] = name.value.decode()
    short = ctypes.create_string_buffer(b"\xff" * 8, 8)
    d.call("room of 4", "cuDeviceGetName", short, 4, 0)
    d.values["cuDeviceGetName room of 4"] = short.raw[:5].hex()
    d.call("room of 0", "cuDeviceGetName", name, 0, 0)
    d.call("no device", "cuDeviceGetName", name, 96, 99)
    d.call("null", "cuDeviceGetName", None, 96, 0)
    for number in (*ATTRIBUTES, 0, 100000):
        d.value(str(number), "cuDeviceGetAttribute", I, number, 0)
    d.value("no device", "cuDeviceGetAttribute", I, 16, 99)
    d.value("", "cuDeviceTotalMem_v2", SIZE, 0)
    d.value("no device", "cuDeviceTotalMem_v2", SIZE, 99)
    d.call("", "cuDeviceComputeCapability", ctypes.byref(I()), ctypes.byref(I()), 0)
    raw = (ctypes.c_ubyte * 16)()
    d.call("", "cuDeviceGetUuid", raw, 0)
    d.call("", "cuDeviceGetUuid_v2", raw, 0)
    d.call("no device", "cuDeviceGetUuid_v2", raw, 99)
    d.call("", "cuDeviceGetLuid", ctypes.create_string_buffer(8), ctypes.byref(U()), 0)
    address = ctypes.create_string_buffer(64)
    d.call("", "cuDeviceGetPCIBusId", address, 64, 0)
    d.values["cuDeviceGetPCIBusId length"] = len(address.value)
    d.call("room of 4", "cuDeviceGetPCIBusId", address, 4, 0)
    d.call("not an address", "cuDeviceGetByPCIBusId", ctypes.byref(I()), b"gpu")
    d.call("of no device", "cuDeviceGetByPCIBusId", ctypes.byref(I()), b"0000:ff:1f.7")
    d.value("itself", "cuDeviceCanAccessPeer", I, 0, 0)
    d.call("active, flags", "cuDevicePrimaryCtxGetState", 0, ctypes.byref(U()), ctypes.byref(I()))
    d.call("", "cuDevicePrimaryCtxSetFlags_v2", 0, 4)
    d.call("not retained", "cuDevicePrimaryCtxRelease_v2", 0)
    d.value("", "cuDriverGetVersion", I)


def without_context(d):
    d.start()
    d.value("", "cuCtxGetCurrent", PTR)
    d.value("without a context", "cuCtxGetDevice", I)
    d.call("without a context", "cuCtxSynchronize")
    d.value("without a context", "cuMemAlloc_v2", U64, SIZE(MIB))
    d.call("without a context", "cuMemGetInfo_v2", ctypes.byref(SIZE()), ctypes.byref(SIZE()))
    d.call("without a context", "cuMemFree_v2", U64(NOWHERE))
    d.value("without a context", "cuStreamCreate", PTR, 0)
    d.value("without a context", "cuEventCreate", PTR, 0)
    d.value("without a context", "cuModuleLoadData", PTR, SAXPY.encode() + b"\0")
    d.value("without a context", "cuMemAllocAsync", U64, SIZE(MIB), None)
    d.value("without a context", "cuMemHostAlloc", PTR, SIZE(4096), 0)
    d.value("without a context", "cuMemAllocManaged", U64, SIZE(MIB), ATTACH_GLOBAL)
    d.value("without a context", "cuGraphCreate", PTR, 0)
    d.call("without a context", "cuCtxPopCurrent_v2", ctypes.byref(PTR()))
    d.call("null", "cuCtxPushCurrent_v2", None)
    d.call("null", "cuCtxSetCurrent", None)
    d.call("null", "cuCtxDestroy_v2", None)


def contexts(d):
    d.start()
    first, second = PTR(), PTR()
    d.call("", "cuDevicePrimaryCtxRetain", ctypes.byref(first), 0)
    d.call("again", "cuDevicePrimaryCtxRetain", ctypes.byref(second), 0)
    d.values["cuDevicePrimaryCtxRetain gives one context"] = first.value == second.value
    d.call("no device", "cuDevicePrimaryCtxRetain", ctypes.byref(second), 99)
    d.call("null", "cuDevicePrimaryCtxRetain", None, 0)
    d.call("", "cuCtxSetCurrent", first)
    flags, active = U(), I()
    d.call("retained", "cuDevicePrimaryCtxGetState", 0, ctypes.byref(flags), ctypes.byref(active))
    d.values["cuDevicePrimaryCtxGetState retained"] = [flags.value, active.value]
    d.value("", "cuCtxGetDevice", I)
    d.value("", "cuCtxGetApiVersion", U, before=(first,))
    d.value("", "cuCtxGetFlags", U)
    for limit in range(0, 9):
        d.value(str(limit), "cuCtxGetLimit", SIZE, limit)
    d.call("stack 2048", "cuCtxSetLimit", 0, SIZE(2048))
    d.call("not a limit", "cuCtxSetLimit", 99, SIZE(1))
    low, high = I(), I()
    d.call("", "cuCtxGetStreamPriorityRange", ctypes.byref(low), ctypes.byref(high))
    d.values["cuCtxGetStreamPriorityRange"] = [low.value, high.value]
    made = PTR()
    d.call("", "cuCtxCreate_v2", ctypes.byref(made), 0, 0)
    d.call("not flags", "cuCtxCreate_v2", ctypes.byref(PTR()), 0x7fff0000, 0)
    d.call("no device", "cuCtxCreate_v2", ctypes.byref(PTR()), 0, 99)
    d.call("", "cuCtxPopCurrent_v2", ctypes.byref(second))
    d.values["cuCtxCreate_v2 pushes"] = second.value == made.value
    d.call("", "cuCtxPushCurrent_v2", made)
    d.call("", "cuCtxDestroy_v2", made)
    d.call("", "cuCtxSynchronize")
    d.call("primary", "cuCtxDestroy_v2", first)
    d.call("", "cuDevicePrimaryCtxRelease_v2", 0)
    d.call("the last", "cuDevicePrimaryCtxRelease_v2", 0)
    d.call("once too often", "cuDevicePrimaryCtxRelease_v2", 0)
    d.value("of a released context", "cuMemAlloc_v2", U64, SIZE(MIB))
    d.call("", "cuDevicePrimaryCtxReset_v2", 0)


def memory(d):
    d.context()
    free, total = d.info()
    d.values["cuMemGetInfo_v2 total"] = total
    d.call("null free", "cuMemGetInfo_v2", None, ctypes.byref(SIZE()))
    for name, size in (("0 bytes", 0), ("more than the GPU has", total + 1), ("2^60 bytes", 1 << 60), ("2^64-1 bytes", (1 << 64) - 1)):
        d.value(name, "cuMemAlloc_v2", U64, SIZE(size))
    d.call("null", "cuMemAlloc_v2", None, SIZE(MIB))
    for size in (1, 256, 4096, 64 << 10, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 3 * MIB, 32 * MIB):
        before = d.info()[0]
        addresses = [d.memory(size) for _ in range(4)]
        d.values[f"cuMemAlloc_v2 4 times {size}: less free"] = before - d.info()[0]
        d.values[f"cuMemAlloc_v2 {size}: alignment of the second"] = addresses[1].value & -addresses[1].value if size <= 4096 else None
        for address in addresses:
            d.library.cuMemFree_v2(address)
    one = d.memory(1000)
    d.value("", "cuMemGetAddressRange_v2", U64, ctypes.byref(size := SIZE()), U64(one.value + 500))
    d.values.pop("cuMemGetAddressRange_v2", None)
    d.values["cuMemGetAddressRange_v2 size of 1000"] = size.value
    d.call("of nothing", "cuMemGetAddressRange_v2", ctypes.byref(U64()), ctypes.byref(SIZE()), U64(NOWHERE))
    d.value("memory type", "cuPointerGetAttribute", U, 2, one)
    d.value("device", "cuPointerGetAttribute", I, 9, one)
    d.value("of nothing", "cuPointerGetAttribute", U, 2, U64(NOWHERE))
    d.call("inside", "cuMemFree_v2", U64(one.value + 256))
    d.call("", "cuMemFree_v2", one)
    d.call("again", "cuMemFree_v2", one)
    d.call("of nothing", "cuMemFree_v2", U64(NOWHERE))
    d.call("0", "cuMemFree_v2", U64(0))
    pitch = SIZE()
    for element in (4, 8, 16, 3):
        d.call(f"elements of {element}", "cuMemAllocPitch_v2", ctypes.byref(U64()), ctypes.byref(pitch), SIZE(1000), SIZE(16), element)
        d.values[f"cuMemAllocPitch_v2 elements of {element}"] = pitch.value
    d.call("width 0", "cuMemAllocPitch_v2", ctypes.byref(U64()), ctypes.byref(pitch), SIZE(0), SIZE(16), 4)
    for flags in (0, 1, 2, 3, 4):
        d.call(f"flags {flags}", "cuMemAllocManaged", ctypes.byref(U64()), SIZE(MIB), flags)
    d.call("0 bytes", "cuMemAllocManaged", ctypes.byref(U64()), SIZE(0), 1)
    d.call("more than the GPU has", "cuMemAllocManaged", ctypes.byref(U64()), SIZE(total + MIB), 1)


def copies(d):
    d.context()
    there, other = d.memory(4096), d.memory(2 * MIB)
    here = ctypes.create_string_buffer(bytes(range(256)) * 16, 4096)
    back = ctypes.create_string_buffer(4096)
    d.call("", "cuMemcpyHtoD_v2", there, here, SIZE(4096))
    d.call("", "cuMemcpyDtoD_v2", other, there, SIZE(4096))
    d.call("", "cuMemcpyDtoH_v2", back, other, SIZE(4096))
    d.values["copied back"] = back.raw == here.raw
    d.call("0 bytes", "cuMemcpyHtoD_v2", there, here, SIZE(0))
    d.call("null", "cuMemcpyHtoD_v2", there, None, SIZE(16))
    d.call("to nothing", "cuMemcpyHtoD_v2", U64(NOWHERE), here, SIZE(16))
    d.call("to null", "cuMemcpyHtoD_v2", U64(0), here, SIZE(16))
    d.call("from nothing", "cuMemcpyDtoH_v2", back, U64(NOWHERE), SIZE(16))
    d.call("", "cuMemsetD8_v2", there, 7, SIZE(4096))
    d.call("to nothing", "cuMemsetD8_v2", U64(NOWHERE), 7, SIZE(16))
    d.call("", "cuMemsetD32_v2", there, 7, SIZE(1024))
    d.call("not aligned", "cuMemsetD32_v2", U64(there.value + 1), 7, SIZE(16))
    d.call("", "cuMemcpyHtoDAsync_v2", there, here, SIZE(4096), None)
    d.call("", "cuMemcpyDtoHAsync_v2", back, there, SIZE(4096), None)
    d.call("to nothing", "cuMemcpyHtoDAsync_v2", U64(NOWHERE), here, SIZE(16), None)
    d.call("", "cuMemcpy", other, there, SIZE(4096))
    host = PTR()
    d.call("", "cuMemHostAlloc", ctypes.byref(host), SIZE(4096), 0)
    d.call("not flags", "cuMemHostAlloc", ctypes.byref(PTR()), SIZE(4096), 0x80)
    d.value("memory type of host memory", "cuPointerGetAttribute", U, 2, U64(host.value or 0))
    d.call("", "cuMemFreeHost", host)
    d.call("again", "cuMemFreeHost", host)
    d.call("0 bytes", "cuMemAllocHost_v2", ctypes.byref(PTR()), SIZE(0))
    d.call("", "cuMemHostRegister_v2", here, SIZE(4096), 0)
    d.call("again", "cuMemHostRegister_v2", here, SIZE(4096), 0)
    d.call("", "cuMemHostUnregister", here)
    d.call("again", "cuMemHostUnregister", here)
    d.call("past the end", "cuMemcpyHtoD_v2", U64(other.value + 2 * MIB - 16), here, SIZE(4096))


def pools(d):
    d.context()
    pool, free = PTR(), d.info()[0]
    d.call("", "cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
    address = d.value("", "cuMemAllocAsync", U64, SIZE(3 * MIB), None)
    d.values.pop("cuMemAllocAsync", None)
    d.call("", "cuCtxSynchronize")
    d.values["cuMemAllocAsync 3 MiB: less free"] = free - d.info()[0]
    for attribute in (4, 5, 6, 7, 8):
        d.value(f"{attribute} with 3 MiB", "cuMemPoolGetAttribute", U64, before=(pool, attribute))
    d.call("", "cuMemFreeAsync", address, None)
    d.call("", "cuCtxSynchronize")
    d.call("again", "cuMemFreeAsync", address, None)
    for attribute in (4, 5, 6, 7, 8):
        d.value(f"{attribute} after free", "cuMemPoolGetAttribute", U64, before=(pool, attribute))
    d.values["cuMemFreeAsync: less free"] = free - d.info()[0]
    d.call("", "cuMemPoolTrimTo", pool, SIZE(0))
    d.call("0 bytes", "cuMemAllocAsync", ctypes.byref(U64()), SIZE(0), None)
    d.call("more than the GPU has", "cuMemAllocAsync", ctypes.byref(U64()), SIZE(1 << 40), None)
    d.call("of nothing", "cuMemFreeAsync", U64(NOWHERE), None)
    d.call("default", "cuMemPoolDestroy", pool)


def virtual_memory(d):
    d.context()
    wanted = AllocationProperties(type=PINNED, location=Location(ON_DEVICE, 0))
    for name, kind in (("minimum", 0), ("recommended", 1)):
        d.value(name, "cuMemGetAllocationGranularity", SIZE, ctypes.byref(wanted), kind)
    handle, address, free = U64(), U64(), d.info()[0]
    d.call("1 MiB", "cuMemCreate", ctypes.byref(U64()), SIZE(MIB), ctypes.byref(wanted), U64(0))
    d.call("0 bytes", "cuMemCreate", ctypes.byref(U64()), SIZE(0), ctypes.byref(wanted), U64(0))
    d.call("more than the GPU has", "cuMemCreate", ctypes.byref(U64()), SIZE(1 << 40), ctypes.byref(wanted), U64(0))
    d.call("no properties", "cuMemCreate", ctypes.byref(U64()), SIZE(2 * MIB), None, U64(0))
    d.call("no device", "cuMemCreate", ctypes.byref(U64()), SIZE(2 * MIB),
           ctypes.byref(AllocationProperties(type=PINNED, location=Location(ON_DEVICE, 99))), U64(0))
    d.call("2 MiB", "cuMemCreate", ctypes.byref(handle), SIZE(2 * MIB), ctypes.byref(wanted), U64(0))
    d.values["cuMemCreate 2 MiB: less free"] = free - d.info()[0]
    d.call("0 bytes", "cuMemAddressReserve", ctypes.byref(U64()), SIZE(0), SIZE(0), U64(0), U64(0))
    d.call("", "cuMemAddressReserve", ctypes.byref(address), SIZE(4 * MIB), SIZE(0), U64(0), U64(0))
    d.call("past the memory", "cuMemMap", address, SIZE(4 * MIB), SIZE(0), handle, U64(0))
    d.call("nowhere", "cuMemMap", U64(NOWHERE), SIZE(2 * MIB), SIZE(0), handle, U64(0))
    d.call("", "cuMemMap", address, SIZE(2 * MIB), SIZE(0), handle, U64(0))
    d.call("again", "cuMemMap", address, SIZE(2 * MIB), SIZE(0), handle, U64(0))
    access = Access(Location(ON_DEVICE, 0), READ_WRITE)
    d.call("not mapped", "cuMemSetAccess", U64(address.value + 2 * MIB), SIZE(2 * MIB), ctypes.byref(access), SIZE(1))
    d.call("", "cuMemSetAccess", address, SIZE(2 * MIB), ctypes.byref(access), SIZE(1))
    d.call("mapped", "cuMemsetD8_v2", address, 1, SIZE(2 * MIB))
    d.call("mapped", "cuMemFree_v2", address)
    d.call("mapped", "cuMemAddressFree", address, SIZE(4 * MIB))
    d.call("", "cuMemRelease", handle)
    d.call("again", "cuMemRelease", handle)
    d.values["cuMemRelease while mapped: less free"] = free - d.info()[0]
    d.call("", "cuMemUnmap", address, SIZE(2 * MIB))
    d.values["cuMemUnmap: less free"] = free - d.info()[0]
    d.call("again", "cuMemUnmap", address, SIZE(2 * MIB))
    d.call("half", "cuMemAddressFree", address, SIZE(2 * MIB))
    d.call("", "cuMemAddressFree", address, SIZE(4 * MIB))


def streams(d):
    d.context()
    stream, first, second = PTR(), PTR(), PTR()
    d.call("", "cuStreamCreate", ctypes.byref(stream), 1)
    d.call("not flags", "cuStreamCreate", ctypes.byref(PTR()), 99)
    d.call("null", "cuStreamCreate", None, 0)
    d.call("", "cuStreamCreateWithPriority", ctypes.byref(PTR()), 0, -1)
    d.call("idle", "cuStreamQuery", stream)
    d.call("", "cuStreamSynchronize", stream)
    d.call("", "cuEventCreate", ctypes.byref(first), 0)
    d.call("", "cuEventCreate", ctypes.byref(second), 0)
    d.call("not flags", "cuEventCreate", ctypes.byref(PTR()), 0x80)
    d.call("not recorded", "cuEventQuery", first)
    d.call("not recorded", "cuEventSynchronize", first)
    d.call("not recorded", "cuEventElapsedTime", ctypes.byref(ctypes.c_float()), first, second)
    for event in (first, second):
        d.call("", "cuEventRecord", event, stream)
        d.call("", "cuEventSynchronize", event)
    d.call("", "cuEventElapsedTime", ctypes.byref(ctypes.c_float()), first, second)
    d.call("", "cuStreamWaitEvent", stream, first, 0)
    d.call("", "cuEventDestroy_v2", first)
    d.call("", "cuStreamDestroy_v2", stream)
    d.call("null", "cuStreamDestroy_v2", None)


def modules(d):
    d.context()
    module, function = PTR(), PTR()
    d.call("", "cuModuleLoadData", ctypes.byref(module), SAXPY.encode() + b"\0")
    d.call("not an image", "cuModuleLoadData", ctypes.byref(PTR()), b"garbage\0")
    d.call("not PTX", "cuModuleLoadData", ctypes.byref(PTR()), b".version 6.4\n.target sm_60\ngarbage\0")
    d.call("no file", "cuModuleLoad", ctypes.byref(PTR()), b"/nonexistent")
    d.call("", "cuModuleGetFunction", ctypes.byref(function), module, b"saxpy")
    d.call("not there", "cuModuleGetFunction", ctypes.byref(PTR()), module, b"nothing")
    d.call("null", "cuModuleGetFunction", ctypes.byref(PTR()), None, b"saxpy")
    d.call("not there", "cuModuleGetGlobal_v2", ctypes.byref(U64()), ctypes.byref(SIZE()), module, b"nothing")
    for attribute in (0, 1, 3, 4, 5, 6):
        d.value(str(attribute), "cuFuncGetAttribute", I, attribute, function)
    x, y = d.memory(4 * MIB), d.memory(4 * MIB)
    values = (U(1 << 20), ctypes.c_float(2.0), x, y)
    pointers = (PTR * 4)(*[ctypes.cast(ctypes.byref(value), PTR) for value in values])

    def launch(name, grid, block, shared=0, kernel=function):
        d.call(name, "cuLaunchKernel", kernel, *grid, *block, shared, None, pointers, None)
    launch("", (4096, 1, 1), (256, 1, 1))
    launch("no blocks", (0, 1, 1), (256, 1, 1))
    launch("no threads", (1, 1, 1), (0, 1, 1))
    launch("2048 threads", (1, 1, 1), (2048, 1, 1))
    launch("1 MiB of shared memory", (1, 1, 1), (32, 1, 1), MIB)
    launch("no function", (1, 1, 1), (32, 1, 1), 0, None)
    d.call("after a launch", "cuCtxSynchronize")
    d.call("", "cuModuleUnload", module)
    d.call("null", "cuModuleUnload", None)


def graphs(d):
    d.context()
    graph, instance, node, free = PTR(), PTR(), PTR(), d.info()[0]
    d.call("", "cuGraphCreate", ctypes.byref(graph), 0)
    d.call("not flags", "cuGraphCreate", ctypes.byref(PTR()), 1)
    request = ctypes.create_string_buffer(88 + 24 + 8)  # CUDA_MEM_ALLOC_NODE_PARAMS
    (U * 1).from_buffer(request, 0)[0] = PINNED
    (U * 2).from_buffer(request, 8)[:] = [ON_DEVICE, 0]
    ctypes.c_size_t.from_buffer(request, 104).value = 32 * MIB
    d.call("", "cuGraphAddMemAllocNode", ctypes.byref(node), graph, None, SIZE(0), request)
    d.call("", "cuGraphInstantiateWithFlags", ctypes.byref(instance), graph, U64(1))
    d.call("", "cuGraphLaunch", instance, None)
    d.call("", "cuCtxSynchronize")
    d.values["cuGraphLaunch with 32 MiB: less free"] = free - d.info()[0]
    for attribute in range(4):
        d.value(str(attribute), "cuDeviceGetGraphMemAttribute", U64, before=(0, attribute))
    d.call("", "cuGraphExecDestroy", instance)
    d.call("", "cuGraphDestroy", graph)
    d.call("", "cuDeviceGraphMemTrim", 0)
    d.values["cuGraphDestroy: less free"] = free - d.info()[0]


def entry_points(d):
    d.start()
    for name, version, flags in (("cuMemAlloc", 12000, 0), ("cuMemAlloc", 2000, 0), ("cuMemAlloc", 3020, 0), ("cuNothing", 12000, 0), ("", 12000, 0),
                                 ("cuMemAlloc_v2", 12000, 0), ("cuLaunchKernel", 12000, 2), ("cuMemAlloc", 12000, 99),
                                 ("cuMemAlloc", 99999, 0), ("cuGetProcAddress", 12000, 0)):
        found, status = PTR(), I(-1)
        d.call(f"{name} {version} {flags}", "cuGetProcAddress_v2", name.encode(), ctypes.byref(found), version, U64(flags),
               ctypes.byref(status))
        d.values[f"cuGetProcAddress_v2 {name} {version} {flags}"] = [bool(found.value), status.value]
    d.call("null", "cuGetProcAddress_v2", None, ctypes.byref(PTR()), 12000, U64(0), ctypes.byref(I()))
    d.call("", "cuGetProcAddress", b"cuMemAlloc", ctypes.byref(PTR()), 12000, U64(0))
    d.call("not a table", "cuGetExportTable", ctypes.byref(PTR()), bytes(16))


CASES = {"before_init": before_init, "devices": devices, "without_context": without_context, "contexts": contexts, "memory": memory,
         "copies": copies, "pools": pools, "virtual_memory": virtual_memory, "streams": streams, "modules": modules, "graphs": graphs,
         "entry_points": entry_points}
# CUDA_VISIBLE_DEVICES → the code of cuInit and the number of devices.
VISIBLE = ("", "0", "-1", "99", "0,0", "0,99", "99,0", "-1,0", "0,-1", " 0", "0 ", "x", "0x0", "GPU", "GPU-", "GPU-00000000", "MIG-00000000", "UUID", "UUID prefix",
           "UUID without GPU-", "UUID upper case", "UUID,UUID", "0,UUID")


def visible(d):
    d.values["cuInit"] = d.library.cuInit(0)
    count = I(-1)
    d.values["cuDeviceGetCount"] = d.library.cuDeviceGetCount(ctypes.byref(count))
    d.values["count"] = count.value


def own_uuid(d):
    d.start()
    raw = (ctypes.c_ubyte * 16)()
    d.library.cuDeviceGetUuid(raw, 0)
    text = bytes(raw).hex()
    d.values["uuid"] = f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def in_child(d):
    """A context of the parent is none of the child's."""
    d.context()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        count, address = I(), U64()
        found = [d.library.cuDeviceGetCount(ctypes.byref(count)), d.library.cuMemAlloc_v2(ctypes.byref(address), SIZE(MIB)), d.library.cuInit(0)]
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.waitpid(child, 0)
    d.values["after fork: cuDeviceGetCount, cuMemAlloc_v2, cuInit"] = json.loads(os.read(read, 100))


def run_case(name, environment=None):
    """A call that ends the process has the signal for a code, and the case goes on without it."""
    ended = {}
    while len(ended) < MOST_ENDS:
        done = subprocess.run([sys.executable, "-B", __file__, name, *ended], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, **(environment or {})})
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        if lines and "codes" in lines[-1]:
            return {"codes": {**lines[-1]["codes"], **ended}, "values": lines[-1]["values"]}
        if not lines:
            break
        ended[lines[-1]["calling"]] = f"exit status {done.returncode}"
    return {"codes": {f"case {name}": done.stderr.strip()[-300:]}, "values": {}}


def record():
    codes, values = {}, {}
    for name in (*CASES, "in_child"):
        found = run_case(name)
        codes.update(found["codes"])
        values.update(found["values"])
    uuid = run_case("own_uuid")["values"].get("uuid", "")
    forms = {"UUID": uuid, "UUID prefix": uuid[:12], "UUID without GPU-": uuid[4:], "UUID upper case": uuid.upper(), "UUID,UUID": f"{uuid},{uuid}",
             "0,UUID": f"0,{uuid}"}
    for text in VISIBLE:
        values[f"CUDA_VISIBLE_DEVICES={text!r}: cuInit, cuDeviceGetCount, devices"] = list(
            run_case("visible", {"CUDA_VISIBLE_DEVICES": forms.get(text, text)})["values"].values())
    return {"codes": codes, "values": values}


def main():
    if len(sys.argv) == 1:
        print(json.dumps(record()))
        return
    driver = Driver(sys.argv[2:])
    {**CASES, "visible": visible, "own_uuid": own_uuid, "in_child": in_child}[sys.argv[1]](driver)
    print(json.dumps({"codes": driver.codes, "values": driver.values}))


if __name__ == "__main__":
    main()
