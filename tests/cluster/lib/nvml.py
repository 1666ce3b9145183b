"""Reads a machine by NVIDIA's own bindings and changes its MIG layout; runs where the machine's driver is loaded.

  nvml.py gpus                     change nothing: the reference that the tests compare with
  nvml.py cut GPU SLICES@START...  turn MIG on, with one GPU instance of that many slices at each start, and a compute instance in each
  nvml.py whole GPU                destroy its instances and turn MIG off

Each prints the resulting state of every GPU.
"""
import json
import sys

import pynvml as n

MAX_MIG_DEVICES = 7


def links(device):
    found = []
    for link in range(n.NVML_NVLINK_MAX_LINKS):
        try:
            if n.nvmlDeviceGetNvLinkState(device, link):
                found.append([n.nvmlDeviceGetNvLinkRemoteDeviceType(device, link),
                              n.nvmlDeviceGetNvLinkRemotePciInfo(device, link).busId])
        except n.NVMLError:
            pass
    return found


def mig_device(device, index):
    """None where there is no such device (any more: the agent may be changing the layout)."""
    try:
        mig = n.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
        gi = n.nvmlDeviceGetGpuInstanceId(mig)
        placement = n.nvmlGpuInstanceGetInfo(n.nvmlDeviceGetGpuInstanceById(device, gi)).placement
        return {"uuid": n.nvmlDeviceGetUUID(mig), "profile": n.nvmlDeviceGetName(mig).rpartition("MIG ")[2],
                "gi": gi, "ci": n.nvmlDeviceGetComputeInstanceId(mig), "start": placement.start}
    except (n.NVMLError_NotFound, n.NVMLError_InvalidArgument, n.NVMLError_NotSupported):
        return None


def mig_devices(device):
    return [found for index in range(MAX_MIG_DEVICES) if (found := mig_device(device, index))]


def gpus():
    found = []
    for index in range(n.nvmlDeviceGetCount()):
        device = n.nvmlDeviceGetHandleByIndex(index)
        found.append({"index": index, "uuid": n.nvmlDeviceGetUUID(device), "minor": n.nvmlDeviceGetMinorNumber(device),
                      "links": links(device), "bus": n.nvmlDeviceGetPciInfo(device).busId,
                      "name": n.nvmlDeviceGetName(device), "memory": n.nvmlDeviceGetMemoryInfo(device).total,
                      "power_limit": n.nvmlDeviceGetPowerManagementLimit(device),
                      "compute_mode": n.nvmlDeviceGetComputeMode(device), "mig": mig_devices(device)})
    return found


def profile_of(device, slices):
    """The GPU instance profile of that many slices without extras: NVML enumerates profiles by slices."""
    kind = {1: n.NVML_GPU_INSTANCE_PROFILE_1_SLICE, 2: n.NVML_GPU_INSTANCE_PROFILE_2_SLICE,
            3: n.NVML_GPU_INSTANCE_PROFILE_3_SLICE}[slices]
    return n.nvmlDeviceGetGpuInstanceProfileInfo(device, kind)


def cut(device, places):
    n.nvmlDeviceSetMigMode(device, n.NVML_DEVICE_MIG_ENABLE)
    for place in places:
        slices, start = map(int, place.split("@"))
        profile = profile_of(device, slices)
        # Memory slices of a placement, from the profile's possible placements.
        count = n.c_uint(0)
        n.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile.id, None, n.byref(count))
        possible = (n.c_nvmlGpuInstancePlacement_t * count.value)()
        n.nvmlDeviceGetGpuInstancePossiblePlacements(device, profile.id, possible, n.byref(count))
        chosen = next(one for one in possible if one.start == start)
        instance = n.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.id, n.byref(chosen))
        kind = {1: n.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, 2: n.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE,
                3: n.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE}[slices]
        compute = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(
            instance, kind, n.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
        n.nvmlGpuInstanceCreateComputeInstance(instance, compute.id)


def whole(device):
    for mig in mig_devices(device):
        instance = n.nvmlDeviceGetGpuInstanceById(device, mig["gi"])
        n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(instance, mig["ci"]))
        n.nvmlGpuInstanceDestroy(instance)
    n.nvmlDeviceSetMigMode(device, n.NVML_DEVICE_MIG_DISABLE)


if __name__ == "__main__":
    n.nvmlInit()
    if sys.argv[1] == "cut":
        cut(n.nvmlDeviceGetHandleByIndex(int(sys.argv[2])), sys.argv[3:])
    elif sys.argv[1] == "whole":
        whole(n.nvmlDeviceGetHandleByIndex(int(sys.argv[2])))
    else:
        assert sys.argv[1] == "gpus", sys.argv
    print(json.dumps(gpus()))
