"""Changes by another process, as nvidia-ml-py sees them in this one."""
import ctypes
import os
import subprocess
import threading

import judge
import pynvml as nvml
from judge import check, machine, same

NO_INSTANCE = 0xFFFFFFFF
WAIT_MS = 20_000


def control(*words):
    subprocess.run([os.environ["JUDGE_CONTROL"], *words, "--root", os.environ["JUDGE_ROOT"]], check=True, capture_output=True, timeout=20)


def device(index):
    return nvml.nvmlDeviceGetHandleByIndex(index)


def uuid(index):
    return nvml.nvmlDeviceGetUUID(device(index))


def refuses(error, function, *arguments):
    try:
        function(*arguments)
    except error:
        return
    raise AssertionError(f"{function.__name__} is not refused")


@check
def an_xid_arrives():
    events = nvml.nvmlEventSetCreate()
    try:
        for index in range(2):
            nvml.nvmlDeviceRegisterEvents(device(index), nvml.nvmlEventTypeXidCriticalError, events)
        control("ecc", "0", "corrected", "3")  # not in the mask
        control("xid", "2", "31")  # not registered
        control("xid", "1", "94")
        event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
        same((event.eventType, event.eventData), (nvml.nvmlEventTypeXidCriticalError, 94))
        same((event.gpuInstanceId, event.computeInstanceId), (NO_INSTANCE, NO_INSTANCE))
        same(nvml.nvmlDeviceGetUUID(event.device), uuid(1))
        refuses(nvml.NVMLError_Timeout, nvml.nvmlEventSetWait_v2, events, 1)
    finally:
        nvml.nvmlEventSetFree(events)


@check
def a_waiter_is_woken():
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(device(0), nvml.nvmlEventTypeXidCriticalError, events)
    got = []
    waiter = threading.Thread(target=lambda: got.append(nvml.nvmlEventSetWait_v2(events, WAIT_MS).eventData))
    waiter.start()
    control("xid", "0", "48")
    waiter.join(WAIT_MS / 1000)
    same(got, [48])
    same(nvml.nvmlDeviceGetFieldValues(device(0), [230])[0].value.uiVal, 1, "recovery action")
    control("heal", "0")
    same(nvml.nvmlDeviceGetFieldValues(device(0), [230])[0].value.uiVal, 0, "recovery action")
    nvml.nvmlEventSetFree(events)


@check
def a_lost_gpu_is_lost_and_the_others_are_not():
    before, lost = uuid(1), device(1)
    control("lost", "1")
    refuses(nvml.NVMLError_GpuIsLost, nvml.nvmlDeviceGetMemoryInfo, lost)
    refuses(nvml.NVMLError_GpuIsLost, nvml.nvmlDeviceGetHandleByIndex, 1)
    same(nvml.nvmlDeviceGetCount(), len(machine()["gpus"]))
    nvml.nvmlDeviceGetMemoryInfo(device(0))
    control("heal", "1")
    same(uuid(1), before, "healed, it is the same GPU")


@check
def a_hanging_gpu_hangs_until_healed():
    control("hang", "1")
    done = threading.Event()
    handle = ctypes.c_void_p()
    library = ctypes.CDLL("libnvidia-ml.so.1")

    def ask():
        library.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle))
        done.set()
    threading.Thread(target=ask, daemon=True).start()
    nvml.nvmlDeviceGetMemoryInfo(device(0))
    same(done.wait(0.2), False, "returned")
    control("heal", "1")
    same(done.wait(20), True, "returned")


@check
def errors_are_counted():
    before = nvml.nvmlDeviceGetTotalEccErrors(device(0), nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC)
    control("ecc", "0", "uncorrected", "2")
    same(nvml.nvmlDeviceGetTotalEccErrors(device(0), nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC), before + 2)
    control("thermal", "0", str(machine()["gpus"][0]["temperature_c"]["slowdown"]))
    slowed = nvml.nvmlDeviceGetCurrentClocksEventReasons(device(0))
    same(bool(slowed & nvml.nvmlClocksThrottleReasonHwThermalSlowdown), True)
    control("heal")
    if machine()["gpus"][0]["links"]:
        control("nvlink", "0", "0", "down")
        same(nvml.nvmlDeviceGetNvLinkState(device(0), 0), 0)
        control("nvlink", "0", "0", "up")
        same(nvml.nvmlDeviceGetNvLinkState(device(0), 0), 1)
    if not machine()["gpus"][0].get("retired_pages"):
        control("remap", "0", "pending")
        same(list(nvml.nvmlDeviceGetRemappedRows(device(0)))[2], 1)
        control("heal")


@check
def a_replaced_gpu_is_another():
    before, old = uuid(1), device(1)
    control("replace", "1")
    refuses(nvml.NVMLError_GpuIsLost, nvml.nvmlDeviceGetUUID, old)
    if uuid(1) == before:
        raise AssertionError("the UUID is still that of the card before")


@check
def a_reloaded_driver_wants_initialising_again():
    before = [uuid(index) for index in range(len(machine()["gpus"]))]
    control("driver-reload", "--force", "--version", "580.95.05")
    refuses(nvml.NVMLError_Uninitialized, nvml.nvmlDeviceGetCount)
    nvml.nvmlInit()
    same(nvml.nvmlSystemGetDriverVersion(), "580.95.05")
    same([uuid(index) for index in range(len(before))], before)


if __name__ == "__main__":
    nvml.nvmlInit()
    judge.main()
    nvml.nvmlShutdown()
