"""Run inside the container of check_cdi.py: the GPUs that NVML sees there, and where its library comes from."""
import json
import sys

sys.path.insert(0, "/test")
import cuda  # noqa: E402
import nvml  # noqa: E402

with nvml.Nvml("libnvidia-ml.so.1") as library:
    print(json.dumps({"uuids": [library.text("nvmlDeviceGetUUID", device) for device in library.devices()],
                      "library": cuda.mapped("libnvidia-ml")}))
