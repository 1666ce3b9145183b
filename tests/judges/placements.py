"""Makes MIG devices by nvidia-ml-py, as their names say: sets of names as JSON on standard input, each on empty GPUs."""
import ctypes
import json
import re
import sys

import pynvml as nvml

NAME = re.compile(r"gpu-(\d+)-mig-.*-(\d+)-(\d+)")


def by_minor():
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return {nvml.nvmlDeviceGetMinorNumber(handle): handle for handle in handles}


def profile_sizes(handle):
    """Memory slices by the id of the profile."""
    sizes = {}
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            profile = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index)
        except nvml.NVMLError:
            continue
        count, places = ctypes.c_uint(), (nvml.c_nvmlGpuInstancePlacement_t * 16)()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile.id, places, ctypes.byref(count))
        sizes[profile.id] = places[0].size
    return sizes


def main():
    nvml.nvmlInit()
    gpus = by_minor()
    sizes = profile_sizes(gpus[0])
    for names in json.load(sys.stdin):
        made = []
        for name in names:
            minor, profile, start = map(int, NAME.fullmatch(name).groups())
            place = nvml.c_nvmlGpuInstancePlacement_t(start=start, size=sizes[profile])
            try:
                made.append(nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpus[minor], profile, ctypes.byref(place)))
            except nvml.NVMLError as error:
                sys.exit(f"{name} of {names}: {error}")
        for instance in made:
            nvml.nvmlGpuInstanceDestroy(instance)


if __name__ == "__main__":
    main()
