// MIG modes, and MIG devices as clients see them.
#include "sim/driver/mig.h"

#include <algorithm>

using namespace gpulet::sim;

namespace {

nvmlReturn_t attributes_of(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(attributes)) return refused;
  if (!call.is_mig()) return NVML_ERROR_NOT_SUPPORTED;
  const MigProfile& profile = call.profile();
  const ComputeProfile& compute = profile.compute_profiles[call.compute_instance().profile];
  attributes->multiprocessorCount = compute.multiprocessors;
  attributes->sharedCopyEngineCount = profile.copy_engines;
  attributes->sharedDecoderCount = profile.decoders;
  attributes->sharedEncoderCount = profile.encoders;
  attributes->sharedJpegCount = profile.jpegs;
  attributes->sharedOfaCount = profile.ofas;
  attributes->gpuInstanceSliceCount = profile.slices;
  attributes->computeInstanceSliceCount = compute.slices;
  attributes->memorySizeMB = profile.memory_mib;
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t* activation) {
  const MigEdit call(device);
  if (const auto refused = call.refused(activation)) return refused;
  if (mode > NVML_DEVICE_MIG_ENABLE) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = to_nvml(set_mig_mode(call.gpu(), mode == NVML_DEVICE_MIG_ENABLE));
  if (result == NVML_ERROR_NOT_SUPPORTED) return result;
  // The mode is noted as pending; whether it took effect is the other result.
  *activation = result;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* current, unsigned int* pending) {
  const GpuCall call(device);
  if (const auto refused = call.refused(current, pending)) return refused;
  if (call.gpu().mig.capable == 0) return NVML_ERROR_NOT_SUPPORTED;
  *current = call.gpu().mig.current;
  *pending = call.gpu().mig.pending;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* is_mig) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(is_mig)) return refused;
  *is_mig = call.is_mig() ? 1 : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int* id) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(id)) return refused;
  if (!call.is_mig()) return NVML_ERROR_NOT_SUPPORTED;
  *id = call.gpu_instance().id;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int* id) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(id)) return refused;
  if (!call.is_mig()) return NVML_ERROR_NOT_SUPPORTED;
  *id = call.compute_instance().id;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  const GpuCall call(device);
  if (const auto refused = call.refused(count)) return refused;
  const Mig& mig = call.gpu().mig;
  *count = 0;
  if (mig.current == 0) return NVML_SUCCESS;
  for (std::uint32_t i = 0; i < mig.profile_count; ++i) *count = std::max(*count, mig.profiles[i].slices);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t* mig) {
  const GpuCall call(device);
  if (const auto refused = call.refused(mig)) return refused;
  if (call.gpu().mig.capable == 0) return NVML_ERROR_NOT_SUPPORTED;
  const auto found = mig_device(call.gpu(), index);
  if (!found) return NVML_ERROR_NOT_FOUND;
  *mig = call.mig_handle(*found->gpu_instance, *found->compute_instance);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t* device) {
  const GpuCall call(mig, Accepts::kMigToo);
  if (const auto refused = call.refused(device)) return refused;
  if (!call.is_mig()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = call.gpu_handle();
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  return attributes_of(device, attributes);
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  return attributes_of(device, attributes);
}
