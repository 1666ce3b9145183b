"""A CUDA client of other people's making. Usage: cuda_client.py bindings|numba

Takes all memory that it gets in pieces of 64 MiB, and prints one JSON line: what it saw and the error at the end. Stays,
with one piece, until its standard input closes.
"""
import gc
import json
import os
import sys

PIECE = 64 << 20
MESSAGE = bytes(range(256)) * 16


def use_bindings():
    from cuda.bindings import driver

    def call(result):
        error, *values = result
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{error!r}")
        return values[0] if len(values) == 1 else values

    call(driver.cuInit(0))
    devices = [call(driver.cuDeviceGet(at)) for at in range(call(driver.cuDeviceGetCount()))]
    context = call(driver.cuDevicePrimaryCtxRetain(devices[0]))
    call(driver.cuCtxSetCurrent(context))
    free, total = call(driver.cuMemGetInfo())
    first = call(driver.cuMemAlloc(PIECE))
    call(driver.cuMemcpyHtoD(first, MESSAGE, len(MESSAGE)))
    back = bytearray(len(MESSAGE))
    call(driver.cuMemcpyDtoH(back, first, len(MESSAGE)))
    pieces, error = [], driver.CUresult.CUDA_SUCCESS
    while error == driver.CUresult.CUDA_SUCCESS:
        error, address = driver.cuMemAlloc(PIECE)
        pieces.append(address)
    for address in pieces[:-1]:
        call(driver.cuMemFree(address))
    return {"names": [call(driver.cuDeviceGetName(96, device)).split(b"\0")[0].decode() for device in devices],
            "uuids": [bytes(call(driver.cuDeviceGetUuid(device)).bytes).hex() for device in devices],
            "total": total, "device_total": call(driver.cuDeviceTotalMem(devices[0])), "free": free, "code": int(error),
            "error": error.name, "pieces": len(pieces), "copied": bytes(back) == MESSAGE}, (context, first)


def use_numba():
    import numpy
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError
    context = cuda.current_context()
    free, total = context.get_memory_info()
    first = cuda.to_device(numpy.arange(PIECE, dtype=numpy.uint8))
    copied = bool((first.copy_to_host() == numpy.arange(PIECE, dtype=numpy.uint8)).all())
    pieces, code, error = [], 0, ""
    while not code:
        try:
            pieces.append(context.memalloc(PIECE))
        except CudaAPIError as refused:
            code, error = refused.code, str(refused)
    count = len(pieces) + 1
    pieces.clear()
    gc.collect()
    context.memory_manager.deallocations.clear()
    return {"names": [gpu._device.name.decode() if isinstance(gpu._device.name, bytes) else gpu._device.name for gpu in cuda.gpus],
            "uuids": [gpu._device.uuid.removeprefix("GPU-").replace("-", "") for gpu in cuda.gpus], "total": total,
            "device_total": total, "free": free, "code": code, "error": error, "pieces": count, "copied": copied}, first


if __name__ == "__main__":
    seen, kept = {"bindings": use_bindings, "numba": use_numba}[sys.argv[1]]()
    print(json.dumps({"pid": os.getpid(), **seen}), flush=True)
    sys.stdin.read()
