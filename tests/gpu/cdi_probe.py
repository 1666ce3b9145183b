"""Run inside a container: the GPUs that NVML sees there, and where its library comes from. `cdi_probe.py [SECONDS]` stays so long."""
import json
import sys
import time

sys.path.insert(0, "/test")
import cuda  # noqa: E402
import nvml  # noqa: E402

with nvml.Nvml("libnvidia-ml.so.1") as library:
    print(json.dumps({"uuids": [library.text("nvmlDeviceGetUUID", device) for device in library.devices()],
                      "library": cuda.mapped("libnvidia-ml")}), flush=True)
if len(sys.argv) > 1:
    time.sleep(float(sys.argv[1]))
