#!/usr/bin/env python3
"""A client of the kernel module's own interface (RM API), without libcuda: it takes video memory in sizes that libcuda
rounds up, and by a client that another process has made.

  rm_client.py take MINOR BYTES COUNT PAGES   makes a client of GPU /dev/nvidiaMINOR, and up to COUNT memory objects
  rm_client.py lend MINOR FD                  makes a client, and sends it on the Unix socket FD
  rm_client.py borrow FD BYTES COUNT PAGES    makes up to COUNT memory objects by the client that `lend` sends on FD
PAGES: default, 4k or huge. Prints one JSON line, and stays until its standard input closes. Exit status 0; 1 with a
JSON line {"error": …} when a call fails. A refused object is no failure: `refused` names its status.

It makes and frees clients, devices and memory objects, and asks two things; nothing is mapped, and nothing runs on the
GPU. Layouts and numbers are facts of NVIDIA/open-gpu-kernel-modules 615.71.09, where no other version is named. They
are read, not run on a GPU. The module compares the size of each ioctl's structure with its own (nv.c,
nv_validate_ioctl_data; escape.c, RmValidateIoctl) and answers EINVAL to another one: an interface that has changed ends
in an error that names the call. No call before asks for the driver's version.
"""
import contextlib
import ctypes
import fcntl
import json
import os
import socket
import sys

from cuda import say

CONTROL_NODE = "/dev/nvidiactl"
# kernel-open/common/inc/nv-ioctl-numbers.h; src/nvidia/arch/nvalloc/unix/include/nv_escape.h (515.43.04).
MAGIC, CARD_INFO, RM_FREE, RM_CONTROL, RM_ALLOC = ord("F"), 200, 0x29, 0x2A, 0x2B
MAX_CARDS = 32  # NV_MAX_DEVICES; EINVAL to room for fewer than there are
# src/common/sdk/nvidia/inc: nvos.h; class/cl0080.h and class/cl0040.h (515.43.04).
ROOT_CLASS, DEVICE_CLASS, MEMORY_CLASS = 0x41, 0x80, 0x40
# ctrl/ctrl0000/ctrl0000gpu.h: NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2.
GET_ID_INFO = 0x205
# nvos.h: NVOS32_ATTR_PAGE_SIZE is bits 24:23, NVOS32_ATTR_PHYSICALITY bits 28:27. Bits 26:25 are 0: video memory.
PAGE_SIZES = {"default": 0 << 23, "4k": 1 << 23, "huge": 3 << 23}
CONTIGUOUS_IF_POSSIBLE = 3 << 27
# nvstatuscodes.h of src/common/sdk/nvidia/inc: those that the calls below are known to return.
OUT_OF_MEMORY, HARD_LIMIT = "NV_ERR_NO_MEMORY", "NV_ERR_RESOURCE_ACCOUNTING_HARD_LIMIT_EXCEEDED"
STATUSES = {
    0x1A: "NV_ERR_INSUFFICIENT_RESOURCES", 0x1B: "NV_ERR_INSUFFICIENT_PERMISSIONS", 0x1F: "NV_ERR_INVALID_ARGUMENT",
    0x22: "NV_ERR_INVALID_CLASS", 0x23: "NV_ERR_INVALID_CLIENT", 0x33: "NV_ERR_INVALID_OBJECT_HANDLE",
    0x36: "NV_ERR_INVALID_OBJECT_PARENT", 0x39: "NV_ERR_INVALID_OWNER", 0x3A: "NV_ERR_INVALID_PARAM_STRUCT",
    0x40: "NV_ERR_INVALID_STATE", 0x51: OUT_OF_MEMORY, 0x56: "NV_ERR_NOT_SUPPORTED", 0x59: "NV_ERR_OPERATING_SYSTEM",
    0x8D: HARD_LIMIT,
}
# The module copies as much of an object's parameters as its own structure has, whatever size the caller names.
PARAMETER_ROOM = 4096
RECEIVE_S = 10

U8, U16, U32, S32, U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64


class PciAddress(ctypes.Structure):
    """nv_pci_info_t of kernel-open/common/inc/nv-ioctl.h (590.48.01)."""
    _fields_ = [("domain", U32), ("bus", U8), ("slot", U8), ("function", U8), ("vendor", U16), ("device", U16)]


class Card(ctypes.Structure):
    """nv_ioctl_card_info_t of the same file; nv.c of 615.71.09 fills the same members."""
    _fields_ = [("valid", U8), ("pci", PciAddress), ("gpu_id", U32), ("interrupt_line", U16), ("registers", U64),
                ("registers_size", U64), ("memory", U64), ("memory_size", U64), ("minor", U32), ("name", U8 * 10)]


class Allocate(ctypes.Structure):
    """NVOS21_PARAMETERS of nvos.h. With `made` 0 the module chooses the handle."""
    _fields_ = [("root", U32), ("parent", U32), ("made", U32), ("kind", U32), ("parameters", U64),
                ("size", U32), ("status", U32)]


class Free(ctypes.Structure):
    """NVOS00_PARAMETERS of nvos.h."""
    _fields_ = [("root", U32), ("parent", U32), ("freed", U32), ("status", U32)]


class Control(ctypes.Structure):
    """NVOS54_PARAMETERS of nvos.h."""
    _fields_ = [("client", U32), ("target", U32), ("command", U32), ("flags", U32), ("parameters", U64), ("size", U32),
                ("status", U32)]


class IdInfo(ctypes.Structure):
    """NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS of ctrl0000gpu.h."""
    _fields_ = [("gpu_id", U32), ("flags", U32), ("device_instance", U32), ("subdevice_instance", U32),
                ("sli_status", U32), ("board_id", U32), ("gpu_instance", U32), ("numa", S32)]


class DeviceParameters(ctypes.Structure):
    """NV0080_ALLOC_PARAMETERS of cl0080.h. `share` is the client itself: an address space of its own."""
    _fields_ = [("instance", U32), ("share", U32), ("target_client", U32), ("target_device", U32), ("flags", U32),
                ("space_size", U64), ("space_start", U64), ("space_limit", U64), ("space_mode", U32)]


class MemoryParameters(ctypes.Structure):
    """NV_MEMORY_ALLOCATION_PARAMS of nvos.h. `owner` is any number but 0, all ones and those of the module itself
    (standard_mem.c, stdmemValidateParams, 515.43.04)."""
    _fields_ = [("owner", U32), ("type", U32), ("flags", U32), ("width", U32), ("height", U32), ("pitch", S32),
                ("attributes", U32), ("attributes2", U32), ("format", U32), ("compression", U32), ("zcull", U32),
                ("range_low", U64), ("range_high", U64), ("size", U64), ("alignment", U64), ("offset", U64),
                ("limit", U64), ("address", U64), ("tag_offset", U32), ("address_space", U32), ("internal_flags", U32),
                ("tag", U32), ("numa_node", S32)]


class RmError(Exception):
    """A call that the module refuses by its own status."""

    def __init__(self, call, status):
        self.status, self.name = status, STATUSES.get(status, "an RM status that has no name here")
        super().__init__(f"{call}: {self.name} ({status:#x})")


def request_number(number, size):
    """_IOWR of the module's magic letter."""
    return 3 << 30 | size << 16 | MAGIC << 8 | number


def escape(file, number, call, argument):
    try:
        fcntl.ioctl(file, request_number(number, ctypes.sizeof(argument)), argument)
    except OSError as error:
        text = f"{call} of {ctypes.sizeof(argument)} bytes: {os.strerror(error.errno)}"
        raise OSError(error.errno, text) from None


def open_node(path):
    return open(path, "r+b", buffering=0)  # both ways, as the module's own libraries open it


class RmClient:
    """An RM client with one device. The module frees both, and their memory, when the last copy of `control` closes
    (nv.c, nvidia_ctl_close).

    `gpu` is an open /dev/nvidiaN: only a process that has one may make a device (nv.c, nv_is_gpu_accessible, which
    device.c of 2024 asks), and the GPU stays initialised while one is open. Memory objects need `control` alone.
    """

    def __init__(self, control, gpu, client=0, device=0):
        self.control, self.gpu, self.client, self.device = control, gpu, client, device

    def make(self, minor):
        self.client = self.allocate("NV01_ROOT_CLIENT", 0, ROOT_CLASS)
        parameters = DeviceParameters(instance=self.device_instance(minor), share=self.client)
        self.device = self.allocate("NV01_DEVICE_0", self.client, DEVICE_CLASS, parameters)
        return self

    def device_instance(self, minor):
        cards = (Card * MAX_CARDS)()
        escape(self.control, CARD_INFO, "NV_ESC_CARD_INFO", cards)
        card = next((card for card in cards if card.valid and card.minor == minor), None)
        if not card:
            raise OSError(f"NV_ESC_CARD_INFO knows no GPU of minor number {minor}")
        info = IdInfo(gpu_id=card.gpu_id)
        request = Control(client=self.client, target=self.client, command=GET_ID_INFO,
                          parameters=ctypes.addressof(info), size=ctypes.sizeof(info))
        escape(self.control, RM_CONTROL, "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", request)
        if request.status:
            raise RmError("NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2", request.status)
        return info.device_instance

    def allocate(self, name, parent, kind, parameters=None):
        room, size = ctypes.create_string_buffer(PARAMETER_ROOM), 0
        if parameters is not None:
            size = ctypes.sizeof(parameters)
            ctypes.memmove(room, ctypes.byref(parameters), size)
        request = Allocate(root=self.client, parent=parent, kind=kind, size=size,
                           parameters=ctypes.addressof(room) if size else 0)
        escape(self.control, RM_ALLOC, f"NV_ESC_RM_ALLOC of {name}", request)
        if request.status:
            raise RmError(f"NV_ESC_RM_ALLOC of {name}", request.status)
        return request.made

    def take(self, size, pages):
        parameters = MemoryParameters(owner=self.client, size=size,
                                      attributes=PAGE_SIZES[pages] | CONTIGUOUS_IF_POSSIBLE)
        return self.allocate("NV01_MEMORY_LOCAL_USER", self.device, MEMORY_CLASS, parameters)

    def free(self, made):
        request = Free(root=self.client, parent=self.device, freed=made)
        escape(self.control, RM_FREE, "NV_ESC_RM_FREE", request)
        if request.status:
            raise RmError("NV_ESC_RM_FREE", request.status)


def take_objects(client, size, count, pages):
    """The handles of up to `count` objects, and the first refusal."""
    made = []
    while len(made) < count:
        try:
            made.append(client.take(size, pages))
        except RmError as error:
            return made, {"status": error.status, "name": error.name}
    return made, None


def hold_objects(client, size, count, pages):
    made, refused = take_objects(client, size, count, pages)
    say(objects=len(made), requested_mib=len(made) * size >> 20, refused=refused)
    sys.stdin.read()
    for one in made:
        client.free(one)


def made_client(stack, minor):
    control = stack.enter_context(open_node(CONTROL_NODE))
    return RmClient(control, stack.enter_context(open_node(f"/dev/nvidia{minor}"))).make(int(minor))


def take(stack, minor, size, count, pages):
    hold_objects(made_client(stack, minor), int(size), int(count), pages)


def send_client(channel, client):
    """Handles are plain numbers; the open files are what gives the right to use them."""
    message = json.dumps({"client": client.client, "device": client.device}).encode()
    socket.send_fds(channel, [message], [client.control.fileno(), client.gpu.fileno()])


def receive_client(stack, channel):
    channel.settimeout(RECEIVE_S)
    message, descriptors, _, _ = socket.recv_fds(channel, 256, 2)
    files = [stack.enter_context(os.fdopen(descriptor, "r+b", buffering=0)) for descriptor in descriptors]
    if len(files) != 2:
        raise OSError(f"{len(files)} descriptors received, not 2")
    return RmClient(*files, **json.loads(message))


def lend(stack, minor, channel):
    client = made_client(stack, minor)
    send_client(stack.enter_context(socket.socket(fileno=int(channel))), client)
    say(client=client.client, device=client.device)
    sys.stdin.read()


def borrow(stack, channel, size, count, pages):
    client = receive_client(stack, stack.enter_context(socket.socket(fileno=int(channel))))
    hold_objects(client, int(size), int(count), pages)


def main():
    what, *words = sys.argv[1:]
    try:
        with contextlib.ExitStack() as stack:
            {"take": take, "lend": lend, "borrow": borrow}[what](stack, *words)
    except (OSError, RmError) as error:
        say(error=str(error), code=getattr(error, "status", getattr(error, "errno", None)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
