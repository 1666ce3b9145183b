// What a GPU is: names, numbers of the card, modes.
#include <string>

#include "sim/driver/call.h"

using namespace gpulet::sim;

namespace {

// "NVIDIA H100 80GB HBM3 MIG 1g.10gb"; "... MIG 1c.3g.40gb" where a compute instance has not all of its GPU
// instance.
std::string full_name(const GpuCall& call) {
  std::string name = call.gpu().name;
  if (!call.is_mig()) return name;
  name += " MIG ";
  if (call.compute_instance().length != call.profile().slices)
    name += std::to_string(call.compute_instance().length) + "c.";
  return name + call.profile().name;
}

nvmlReturn_t disabled(nvmlDevice_t device, nvmlEnableState_t* state) {
  return get(device, state, [](const Gpu&) { return NVML_FEATURE_DISABLED; });
}

}  // namespace

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(name)) return refused;
  return put_text(full_name(call).c_str(), name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(uuid)) return refused;
  return put_text(call.is_mig() ? call.compute_instance().uuid : call.gpu().uuid, uuid, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char* serial, unsigned int length) {
  return get_text(device, serial, length, [](const Gpu& gpu) { return gpu.serial; });
}
nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char* number, unsigned int length) {
  return get_text(device, number, length, [](const Gpu& gpu) { return gpu.board_part_number; });
}
nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char* version, unsigned int length) {
  return get_text(device, version, length, [](const Gpu& gpu) { return gpu.vbios_version; });
}
nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char* version, unsigned int length) {
  return get_text(device, version, length, [](const Gpu& gpu) { return gpu.inforom_image; });
}

nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char* version,
                                         unsigned int length) {
  if (object >= NVML_INFOROM_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return get_text(device, version, length, [object](const Gpu& gpu) {
    if (object == NVML_INFOROM_OEM) return gpu.inforom_oem;
    return object == NVML_INFOROM_ECC ? gpu.inforom_ecc : gpu.inforom_power;
  });
}

nvmlReturn_t nvmlDeviceGetInforomConfigurationChecksum(nvmlDevice_t device, unsigned int* checksum) {
  return get(device, checksum, [](const Gpu& gpu) { return gpu.pci_device_id ^ gpu.board_id; });
}
nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device) {
  const GpuCall call(device);
  if (const auto refused = call.refused()) return refused;
  if (call.gpu().inforom_image[0] == '\0') return NVML_ERROR_NOT_SUPPORTED;  // a card without one
  return call.gpu().faults.inforom != 0 ? NVML_ERROR_CORRUPTED_INFOROM : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t* brand) {
  return get(device, brand, [](const Gpu& gpu) { return gpu.brand; });
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t* architecture) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(architecture)) return refused;
  *architecture = call.gpu().architecture;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(major, minor)) return refused;
  *major = call.gpu().compute_major;
  *minor = call.gpu().compute_minor;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minor) {
  return get(device, minor, [](const Gpu& gpu) { return gpu.minor; });
}
nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int* module) {
  return get(device, module, [](const Gpu& gpu) { return gpu.module_id; });
}
nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int* board) {
  return get(device, board, [](const Gpu& gpu) { return gpu.board_id; });
}

nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int* multi) {
  const GpuCall call(device);
  if (const auto refused = call.refused(multi)) return refused;
  *multi = 0;
  for (unsigned int i = 0; i < call.machine().gpu_count; ++i) {
    if (i != call.index() && call.machine().gpus[i].board_id == call.gpu().board_id) *multi = 1;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int* cores) {
  return get(device, cores, [](const Gpu& gpu) { return gpu.cores; });
}
nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int* bits) {
  return get(device, bits, [](const Gpu& gpu) { return gpu.memory_bus_bits; });
}
nvmlReturn_t nvmlDeviceGetIrqNum(nvmlDevice_t device, unsigned int* irq) {
  return get(device, irq, [](const Gpu& gpu) { return 64 + gpu.minor; });
}
nvmlReturn_t nvmlDeviceGetPowerSource(nvmlDevice_t device, nvmlPowerSource_t* source) {
  return get(device, source, [](const Gpu&) { return NVML_POWER_SOURCE_AC; });
}
nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, nvmlBusType_t* type) {
  return get(device, type, [](const Gpu&) { return NVML_BUS_TYPE_PCIE; });
}
nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return disabled(device, mode);
}
nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t* active) {
  return disabled(device, active);
}
nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return disabled(device, mode);
}
nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int* size) {
  return get(device, size, [](const Gpu&) { return 4000; });
}

nvmlReturn_t nvmlDeviceGetAPIRestriction(nvmlDevice_t device, nvmlRestrictedAPI_t api,
                                         nvmlEnableState_t* restricted) {
  const GpuCall call(device);
  if (const auto refused = call.refused(restricted)) return refused;
  if (api == NVML_RESTRICTED_API_SET_AUTO_BOOSTED_CLOCKS) return NVML_ERROR_NOT_SUPPORTED;
  if (api != NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS) return NVML_ERROR_INVALID_ARGUMENT;
  *restricted = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t* mode) {
  return get(device, mode, [](const Gpu&) { return NVML_GPU_VIRTUALIZATION_MODE_NONE; });
}

nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t* info) {
  const GpuCall call(device);
  if (const auto refused = call.refused(info)) return refused;
  info->isC2cEnabled = call.gpu().memory_numa_node != kNotReported ? 1 : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t* mode) {
  const GpuCall call(device);
  if (const auto refused = call.refused(mode)) return refused;
  if (mode->version != nvmlDeviceAddressingMode_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const bool coherent = call.gpu().memory_numa_node != kNotReported;
  mode->value = coherent ? NVML_DEVICE_ADDRESSING_MODE_ATS : NVML_DEVICE_ADDRESSING_MODE_HMM;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCapabilities(nvmlDevice_t device, nvmlDeviceCapabilities_t* caps) {
  const GpuCall call(device);
  if (const auto refused = call.refused(caps)) return refused;
  if (caps->version != nvmlDeviceCapabilities_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  caps->capMask = call.gpu().memory_numa_node != kNotReported ? NVML_DEV_CAP_EGM : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char* version) {
  const GpuCall call(device);
  if (const auto refused = call.refused(version)) return refused;
  if (call.gpu().gsp_firmware_mode == 0) return NVML_ERROR_NOT_SUPPORTED;
  return put_text(call.machine().driver.version, version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int* enabled,
                                          unsigned int* by_default) {
  const GpuCall call(device);
  if (const auto refused = call.refused(enabled, by_default)) return refused;
  *enabled = *by_default = call.gpu().gsp_firmware_mode;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return get(device, mode, [](const Gpu& gpu) { return gpu.persistence_mode; });
}
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  return get(device, mode, [](const Gpu& gpu) { return gpu.compute_mode; });
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode) {
  const GpuEdit call(device);
  if (const auto refused = call.refused()) return refused;
  if (mode > NVML_FEATURE_ENABLED) return NVML_ERROR_INVALID_ARGUMENT;
  call.gpu().persistence_mode = mode;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
  const GpuEdit call(device);
  if (const auto refused = call.refused()) return refused;
  if (mode >= NVML_COMPUTEMODE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  // Gone since Volta; MIG needs the default mode.
  if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD ||
      (mode != NVML_COMPUTEMODE_DEFAULT && call.gpu().mig.current != 0)) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  call.gpu().compute_mode = mode;
  return NVML_SUCCESS;
}
