"""nvidia-ml-py creates and destroys MIG instances like mig-parted, and the driver root follows."""
import ctypes
import os
import pathlib
import subprocess
import sys

import judge
import pynvml as nvml
from judge import check, machine, same

ROOT = pathlib.Path(os.environ["JUDGE_ROOT"])
PROFILES = machine()["gpus"][0].get("mig", {}).get("profiles", [])
NEEDS_RESET = machine()["gpus"][0].get("mig", {}).get("mode_needs_reset", False)


def device():
    return nvml.nvmlDeviceGetHandleByIndex(0)


def device_handle(index):
    return nvml.nvmlDeviceGetMigDeviceHandleByIndex(device(), index)


def profile(slices):
    return next(p for p in PROFILES if p["slices"] == slices)


def instances_of(wanted, parent=None):
    """GPU instances of a profile, or the compute instances of one GPU instance."""
    kind = nvml.c_nvmlComputeInstance_t if parent else nvml.c_nvmlGpuInstance_t
    count, found = ctypes.c_uint(), (kind * 8)()
    if parent:
        nvml.nvmlGpuInstanceGetComputeInstances(parent, wanted, found, ctypes.byref(count))
    else:
        nvml.nvmlDeviceGetGpuInstances(device(), wanted, found, ctypes.byref(count))
    return found[:count.value]


def refused(error, function, *arguments):
    try:
        function(*arguments)
    except error:
        return
    raise AssertionError(f"{function.__name__} is not refused")


def reset():
    """As on hardware, `nvidia-smi -r` requires that no other process holds the GPU, and activates a pending mode."""
    arguments = (os.P_WAIT, ROOT / "usr/bin/nvidia-smi", "nvidia-smi", "-i", "0", "-r")
    same(os.spawnl(*arguments), nvml.NVML_ERROR_IN_USE)
    nvml.nvmlShutdown()
    same(os.spawnl(*arguments), 0)
    nvml.nvmlInit()


def set_mode_while_in_use(mode):
    """Another process has NVML open: the mode is pending."""
    code = "import pynvml; pynvml.nvmlInit(); print('open', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as monitor:
        same(monitor.stdout.readline(), b"open\n")
        same(nvml.nvmlDeviceSetMigMode(device(), mode), nvml.NVML_ERROR_IN_USE)
        same(nvml.nvmlDeviceGetMigMode(device()), [1 - mode, mode])
        monitor.communicate(b"\n")


@check
def mode():
    set_mode_while_in_use(nvml.NVML_DEVICE_MIG_ENABLE)
    # The driver resets an idle Ampere GPU for its mode.
    same(nvml.nvmlDeviceSetMigMode(device(), nvml.NVML_DEVICE_MIG_ENABLE), nvml.NVML_SUCCESS)
    same(nvml.nvmlDeviceGetMigMode(device()), [1, 1])
    same(nvml.nvmlDeviceGetMaxMigDeviceCount(device()), 7)


@check
def fills_with_the_smallest():
    small = profile(1)
    for _ in range(small["instances"]):
        instance = nvml.nvmlDeviceCreateGpuInstance(device(), small["id"])
        info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0)
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, info.id)
    refused(nvml.NVMLError_InsufficientResources, nvml.nvmlDeviceCreateGpuInstance, device(), small["id"])
    same(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device(), small["id"]), 0)
    uuids = set()
    for index in range(small["instances"]):
        mig = device_handle(index)
        same(nvml.nvmlDeviceIsMigDeviceHandle(mig).value, 1)
        same(nvml.nvmlDeviceGetName(mig), f"{machine()['gpus'][0]['name']} MIG {small['name']}")
        uuid = nvml.nvmlDeviceGetUUID(mig)
        uuids.add(uuid)
        same(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(uuid)), uuid)
        attributes = nvml.nvmlDeviceGetAttributes(mig)
        same((attributes.multiprocessorCount, attributes.gpuInstanceSliceCount, attributes.memorySizeMB),
             (small["multiprocessors"], 1, small["memory_mib"]))
        same(nvml.nvmlDeviceGetMemoryInfo(mig).total, small["memory_mib"] << 20)
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)
        same(nvml.nvmlDeviceGetUUID(parent), nvml.nvmlDeviceGetUUID(device()))
    same(len(uuids), small["instances"])
    refused(nvml.NVMLError_NotFound, device_handle, small["instances"])


@check
def the_driver_root_shows_them():
    minors = dict(line.split() for line in (ROOT / "proc/driver/nvidia-caps/mig-minors").read_text().splitlines())
    for index in range(profile(1)["instances"]):
        gi, ci = (call(device_handle(index)) for call in (nvml.nvmlDeviceGetGpuInstanceId, nvml.nvmlDeviceGetComputeInstanceId))
        for name in (f"gpu0/gi{gi}/access", f"gpu0/gi{gi}/ci{ci}/access"):
            shown = ROOT / "proc/driver/nvidia/capabilities" / name.replace("gpu0/", "gpu0/mig/")
            same(shown.read_text().splitlines()[0], f"DeviceFileMinor: {minors[name]}")
            if os.environ["JUDGE_NODES"] == "1":
                same(os.minor((ROOT / f"dev/nvidia-caps/nvidia-cap{minors[name]}").stat().st_rdev), int(minors[name]))


@check
def destroys_them_inner_first():
    instances = instances_of(profile(1)["id"])
    same(len(instances), profile(1)["instances"])
    refused(nvml.NVMLError_InUse, nvml.nvmlGpuInstanceDestroy, instances[0])
    for instance in instances:
        for compute in instances_of(0, instance):
            nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(instance)
    same(list((ROOT / "proc/driver/nvidia/capabilities/gpu0/mig").iterdir()), [])


@check
def places_where_it_is_told():
    half = profile(3)
    wanted = ctypes.byref(nvml.c_nvmlGpuInstancePlacement_t(4, 4))
    instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(device(), half["id"], wanted)
    info = nvml.nvmlGpuInstanceGetInfo(instance)
    same((info.placement.start, info.placement.size, info.profileId), (4, 4, half["id"]))
    refused(nvml.NVMLError_InsufficientResources, nvml.nvmlDeviceCreateGpuInstanceWithPlacement, device(), half["id"], wanted)
    refused(nvml.NVMLError_InsufficientResources, nvml.nvmlDeviceCreateGpuInstance, device(), profile(7)["id"])
    nvml.nvmlGpuInstanceDestroy(instance)


@check
def mode_off_again():
    set_mode_while_in_use(nvml.NVML_DEVICE_MIG_DISABLE)
    if NEEDS_RESET:
        reset()
    else:
        same(nvml.nvmlDeviceSetMigMode(device(), nvml.NVML_DEVICE_MIG_DISABLE), nvml.NVML_SUCCESS)
    same(nvml.nvmlDeviceGetMigMode(device()), [0, 0])


if __name__ == "__main__":
    nvml.nvmlInit()
    judge.main()
    nvml.nvmlShutdown()
