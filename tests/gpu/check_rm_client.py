"""rm_client.py without the kernel module: its layouts, its loops against a module of this file, and how a client is
passed on. What the real module answers is in check_limits.py."""
import contextlib
import ctypes
import json
import os
import socket
import sys
import tempfile
from unittest import mock

import rm_client
from machine import HERE, run
from report import same
from rm_client import RmClient

# Of NVIDIA's headers compiled for x86-64: the size, and the offset of the last member that is set or read.
LAYOUTS = {
    rm_client.Card: (72, "minor", 56), rm_client.Allocate: (32, "status", 28), rm_client.Free: (16, "status", 12),
    rm_client.Control: (32, "status", 28), rm_client.IdInfo: (32, "device_instance", 8),
    rm_client.DeviceParameters: (56, "share", 4), rm_client.MemoryParameters: (128, "size", 64),
}
MINOR, GPU_ID, INSTANCE, LIMIT = 3, 0x700, 2, 10 << 20


class Module:
    """The few rules of the kernel module that a client meets: one GPU, and a limit of LIMIT bytes."""

    def __init__(self):
        self.last, self.kinds, self.sizes = 0xCAF00000, {}, {}

    def escape(self, _file, number, _call, argument):
        {rm_client.CARD_INFO: self.cards, rm_client.RM_CONTROL: self.control, rm_client.RM_ALLOC: self.allocate,
         rm_client.RM_FREE: self.free}[number](argument)

    def cards(self, cards):
        cards[0] = rm_client.Card(valid=1, gpu_id=0x100, minor=0)
        cards[1] = rm_client.Card(valid=1, gpu_id=GPU_ID, minor=MINOR)

    def control(self, request):
        same(self.kinds[request.client], rm_client.ROOT_CLASS, "class of the client")
        same(request.size, ctypes.sizeof(rm_client.IdInfo), "size of the parameters")
        info = rm_client.IdInfo.from_address(request.parameters)
        same(info.gpu_id, GPU_ID, "GPU of the minor number")
        info.device_instance = INSTANCE

    def allocate(self, request):
        if request.kind == rm_client.DEVICE_CLASS:
            asked = rm_client.DeviceParameters.from_address(request.parameters)
            same((asked.instance, asked.share, request.parent), (INSTANCE, request.root, request.root), "device")
        elif request.kind == rm_client.MEMORY_CLASS:
            asked = rm_client.MemoryParameters.from_address(request.parameters)
            same(self.kinds[request.parent], rm_client.DEVICE_CLASS, "class of the parent")
            same((asked.owner != 0, asked.internal_flags, asked.range_low, asked.range_high), (True, 0, 0, 0), "memory")
            if sum(self.sizes.values()) + asked.size > LIMIT:
                request.status = 0x8D
                return
            self.sizes[self.last + 1] = asked.size
        self.last += 1
        self.kinds[self.last] = request.kind
        request.made = self.last

    def free(self, request):
        same(self.kinds[request.parent], rm_client.DEVICE_CLASS, "class of the parent")
        del self.sizes[request.freed]


def check_rm_client(report, _machine):
    with report.check("module interface: layouts and numbers"):
        for kind, (size, last, offset) in LAYOUTS.items():
            same((ctypes.sizeof(kind), getattr(kind, last).offset), (size, offset),
                 f"size of {kind.__name__}, and offset of its {last}")
        same(rm_client.request_number(rm_client.RM_ALLOC, 32), 0xC020462B, "number of NV_ESC_RM_ALLOC")
    with report.check("module interface: objects are made until one is refused, and freed"):
        module = Module()
        with mock.patch.object(rm_client, "escape", module.escape):
            client = RmClient(None, None).make(MINOR)
            made, refused = rm_client.take_objects(client, 4 << 20, 5, "default")
            same((len(made), refused), (2, {"status": 0x8D, "name": rm_client.HARD_LIMIT}), "objects, refusal")
            more, refused = rm_client.take_objects(client, 4096, 7, "4k")
            same((len(more), refused), (7, None), "objects, refusal")
            for one in made + more:
                client.free(one)
        same(module.sizes, {}, "objects left")
    with report.check("module interface: a client is received after its sender has closed all"):
        check_passing()
    with report.check("module interface: a program without its device nodes says so"):
        # Without a driver there is no /dev/nvidiactl; with one, no such GPU.
        done = run(sys.executable, "-B", HERE / "rm_client.py", "take", 999999, 4096, 1, "4k", check=False)
        error = json.loads(done.stdout)["error"]
        same((done.returncode, "/dev/nvidia" in error and "No such file" in error), (1, True), f"status, and {error}")


def check_passing():
    with contextlib.ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.enter_context(theirs)
        control, gpu = (rm_client.open_node(stack.enter_context(tempfile.NamedTemporaryFile()).name) for _ in range(2))
        with ours, control, gpu:
            nodes = [os.fstat(file.fileno()).st_ino for file in (control, gpu)]
            control.write(b"offset of this open file")
            rm_client.send_client(ours, RmClient(control, gpu, 17, 18))
        client = rm_client.receive_client(stack, theirs)
        same((client.client, client.device), (17, 18), "handles")
        same([os.fstat(file.fileno()).st_ino for file in (client.control, client.gpu)], nodes, "files")
        same(client.control.tell(), len("offset of this open file"), "offset of the open file, which is the same one")
