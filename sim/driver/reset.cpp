// The reset of a GPU, which NVML does not have: `nvidia-smi -r` asks the kernel module. The stand-in calls
// this.
#include "sim/driver/mig.h"

using namespace gpulet::sim;

extern "C" __attribute__((visibility("default"))) nvmlReturn_t nvmlSimulatedDeviceReset(nvmlDevice_t device) {
  const GpuEdit call(device);
  if (const auto refused = call.refused()) return refused;
  const bool wanted = call.gpu().recovery_action != 0;
  const auto done = reset_gpu(call.machine(), call.index());
  if (!done) return NVML_ERROR_IN_USE;
  if (wanted) post_event(call.machine(), call.index(), kEventGpuRecoveryAction, 0);
  return show_instances(call, NVML_SUCCESS);
}
