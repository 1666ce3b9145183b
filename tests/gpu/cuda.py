#!/usr/bin/env python3
"""Small CUDA programs on the driver API: PTX in this file, libcuda.so.1 by the loader, nothing else.

  cuda.py saxpy               computes and checks 1 Mi elements; prints one JSON line with the devices seen
  cuda.py hold MIB            allocates, prints one JSON line, stays until its standard input closes
  cuda.py busy SECONDS MIB    keeps every multiprocessor busy; one JSON line when it is
  cuda.py fault KIND          a kernel that fails: illegal-address, out-of-range-shared, misaligned
Exit status 0; 1 with a JSON line {"error": …} when a call fails; fault expects its error.
"""
import ctypes
import json
import os
import struct
import sys
import time

SUCCESS = 0
HEADER = ".version 6.4\n.target sm_60\n.address_size 64\n"
SAXPY = HEADER + """
.visible .entry saxpy(.param .u32 n, .param .f32 a, .param .u64 px, .param .u64 py) {
  .reg .pred %p; .reg .b32 %r<5>; .reg .f32 %f<4>; .reg .b64 %d<6>;
  ld.param.u32 %r0, [n]; ld.param.f32 %f0, [a]; ld.param.u64 %d0, [px]; ld.param.u64 %d1, [py];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p bra END;
  mul.wide.u32 %d2, %r4, 4;
  cvta.to.global.u64 %d0, %d0; cvta.to.global.u64 %d1, %d1;
  add.u64 %d3, %d0, %d2; add.u64 %d4, %d1, %d2;
  ld.global.f32 %f1, [%d3]; ld.global.f32 %f2, [%d4];
  fma.rn.f32 %f3, %f0, %f1, %f2;
  st.global.f32 [%d4], %f3;
END:
  ret;
}
"""
BUSY = HEADER + """
.visible .entry busy(.param .u32 rounds, .param .u64 out) {
  .reg .pred %p; .reg .b32 %r<3>; .reg .f32 %f<5>; .reg .b64 %d<2>;
  ld.param.u32 %r0, [rounds]; ld.param.u64 %d0, [out];
  mov.u32 %r1, %tid.x; cvt.rn.f32.u32 %f0, %r1;
  mov.f32 %f1, 0f3F800001; mov.f32 %f2, 0f3F800002; mov.f32 %f3, 0f3F800003;
LOOP:
  fma.rn.f32 %f1, %f1, %f0, %f2;
  fma.rn.f32 %f2, %f2, %f0, %f3;
  fma.rn.f32 %f3, %f3, %f0, %f1;
  fma.rn.f32 %f1, %f1, %f2, %f3;
  sub.u32 %r0, %r0, 1;
  setp.ne.u32 %p, %r0, 0;
  @%p bra LOOP;
  add.f32 %f4, %f1, %f2; add.f32 %f4, %f4, %f3;
  cvta.to.global.u64 %d0, %d0;
  st.global.f32 [%d0], %f4;
  ret;
}
"""
FAULTS = HEADER + """
.visible .entry illegal_address(.param .u64 out) {
  .reg .b64 %d; .reg .b32 %r;
  mov.u64 %d, 0x7f00dead0000; mov.u32 %r, 1;
  st.global.u32 [%d], %r;
  ret;
}
.visible .entry misaligned(.param .u64 out) {
  .reg .b64 %d; .reg .b32 %r;
  ld.param.u64 %d, [out]; add.u64 %d, %d, 1; mov.u32 %r, 1;
  st.global.u32 [%d], %r;
  ret;
}
.visible .entry out_of_range_shared(.param .u64 out) {
  .shared .align 4 .b32 here[4];
  .reg .b32 %r<3>;
  mov.u32 %r0, here; mov.u32 %r2, %tid.x; add.u32 %r0, %r0, 0x00F00000; add.u32 %r0, %r0, %r2; mov.u32 %r1, 1;
  st.shared.u32 [%r0], %r1;
  ret;
}
"""


class CudaError(Exception):
    def __init__(self, call, code, text):
        super().__init__(f"{call}: {text} ({code})")
        self.code = code


class Cuda:
    """The first device with its primary context."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(self.count))
        self.device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != SUCCESS:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"unknown").decode())

    def uuids(self):
        found = []
        for index in range(self.count.value):
            device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            self.call("cuDeviceGet", ctypes.byref(device), index)
            self.call("cuDeviceGetUuid", raw, device)
            text = bytes(raw).hex()
            found.append(f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")
        return found

    def attribute(self, number):
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def allocate(self, size):
        address = ctypes.c_ulonglong()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def function(self, ptx, name):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx.encode() + b"\0")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def launch(self, function, blocks, threads, *values):
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values])
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, pointers, None)

    def wait(self):
        self.call("cuCtxSynchronize")


def say(**what):
    print(json.dumps({"pid": os.getpid(), **what}), flush=True)


def saxpy():
    cuda, count = Cuda(), 1 << 20
    x = struct.pack(f"{count}f", *[at % 1000 for at in range(count)])
    y = struct.pack(f"{count}f", *[1.0] * count)
    px, py = cuda.allocate(len(x)), cuda.allocate(len(y))
    cuda.call("cuMemcpyHtoD_v2", px, x, ctypes.c_size_t(len(x)))
    cuda.call("cuMemcpyHtoD_v2", py, y, ctypes.c_size_t(len(y)))
    cuda.launch(cuda.function(SAXPY, "saxpy"), count // 256, 256, ctypes.c_uint(count), ctypes.c_float(2.0), px, py)
    cuda.wait()
    back = ctypes.create_string_buffer(len(y))
    cuda.call("cuMemcpyDtoH_v2", back, py, ctypes.c_size_t(len(y)))
    wrong = sum(found != 2.0 * (at % 1000) + 1.0 for at, found in enumerate(struct.unpack(f"{count}f", back.raw)))
    say(uuids=cuda.uuids(), wrong=wrong, library=mapped("libcuda"))
    return 1 if wrong else 0


def mapped(name):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next((line.split()[-1] for line in maps if f"/{name}" in line), None)


def hold(mib):
    cuda = Cuda()
    if mib:
        cuda.allocate(mib << 20)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    say(allocated_mib=mib, total_mib=total.value >> 20, multiprocessors=cuda.attribute(16))
    sys.stdin.read()
    return 0


def allocate_until_refused(limit_mib):
    """For a client with a memory limit: how many MiB it gets."""
    cuda, mib = Cuda(), 0
    try:
        while mib < limit_mib:
            cuda.allocate(64 << 20)
            mib += 64
    except CudaError as error:
        say(got_mib=mib, refused=str(error), multiprocessors=cuda.attribute(16))
        return 0
    say(got_mib=mib, refused=None, multiprocessors=cuda.attribute(16))
    return 0


def busy(seconds, mib):
    cuda = Cuda()
    out = cuda.allocate(max(mib, 1) << 20)
    function = cuda.function(BUSY, "busy")
    blocks, rounds = cuda.attribute(16) * 8, ctypes.c_uint(20000)
    cuda.launch(function, blocks, 256, rounds, out)
    cuda.wait()
    started = time.monotonic()
    cuda.launch(function, blocks, 256, rounds, out)
    cuda.wait()
    rounds.value = int(20000 * 0.05 / max(time.monotonic() - started, 1e-5))  # 50 ms each
    say(busy=True, memory_mib=mib)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(4):  # queued, so that the GPU does not wait for this process
            cuda.launch(function, blocks, 256, rounds, out)
        cuda.wait()
    return 0


def fault(kind):
    cuda = Cuda()
    out = cuda.allocate(4096)
    function = cuda.function(FAULTS, kind.replace("-", "_"))
    say(ready=True)
    cuda.launch(function, 1, 32, out)
    try:
        cuda.wait()
    except CudaError as error:
        say(fault=str(error), code=error.code, at=time.time())
        return 0
    say(fault=None)
    return 1


def main():
    what, *words = sys.argv[1:]
    programs = {"saxpy": saxpy, "hold": lambda mib: hold(int(mib)), "limit": lambda mib: allocate_until_refused(int(mib)),
                "busy": lambda seconds, mib: busy(float(seconds), int(mib)), "fault": fault}
    try:
        return programs[what](*words)
    except (CudaError, OSError) as error:
        say(error=str(error), code=getattr(error, "code", None))
        return 1


if __name__ == "__main__":
    sys.exit(main())
