// A GPU: lookup by index, UUID, serial number or PCI address; identity; modes; reset.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "sim/driver/mig.h"
#include "sim/driver/rights.h"
#include "sim/state/mig.h"

using namespace gpulet::sim;

namespace {

// Runs `find(machine)`, which returns an index or gpu_count, under the lock. Then applies that GPU's faults.
template <class Find>
nvmlReturn_t look_up(const void* key, nvmlDevice_t* device, nvmlReturn_t otherwise, Find find) {
  if (const auto error = wait_out_driver_faults()) return error;
  unsigned int index = 0;
  {
    const ReadGuard machine = session().state.load(std::memory_order_acquire)->lock_for_read();
    if (const auto error = driver_ready(*machine)) return error;
    if (key == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    while (index < machine->gpu_count && (is_hidden(index) || !find(machine->gpus[index]))) ++index;
    if (index == machine->gpu_count) return otherwise;
  }
  const GpuCall call(index);
  if (const auto error = call.entry_error(device)) return error;
  *device = call.gpu_handle();
  return NVML_SUCCESS;
}

nvmlReturn_t by_index(unsigned int index, nvmlDevice_t* device) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (state != nullptr) index = nth_visible(*state->lock_for_read(), index);
  const GpuCall call(index);
  if (const auto error = call.entry_error(device)) return error;
  *device = call.gpu_handle();
  return NVML_SUCCESS;
}

nvmlReturn_t count_gpus(unsigned int* count) {
  if (const auto error = wait_out_driver_faults()) return error;
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->lock_for_read();
  if (const auto error = driver_ready(*machine)) return error;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  for (std::uint32_t i = 0; i < machine->gpu_count; ++i) *count += is_hidden(i) ? 0 : 1;
  return NVML_SUCCESS;
}

// Finds a MIG device by its UUID or by the form before driver 470: "MIG-GPU-.../<gi>/<ci>".
bool is_mig_device(const Gpu& gpu, const MigDevice& device, std::string_view uuid) {
  if (uuid == device.compute_instance->uuid) return true;
  const std::string old = std::string("MIG-") + gpu.uuid + "/" + std::to_string(device.gpu_instance->id) +
                          "/" + std::to_string(device.compute_instance->id);
  return uuid == old;
}

std::optional<MigDevice> find_mig_device(const Gpu& gpu, std::string_view uuid) {
  for (std::uint32_t i = 0;; ++i) {
    const auto device = visible_mig_device(gpu, i);
    if (!device || is_mig_device(gpu, *device, uuid)) return device;
  }
}

nvmlReturn_t by_mig_uuid(std::string_view uuid, nvmlDevice_t* device) {
  unsigned int index = 0;
  {
    const ReadGuard machine = session().state.load(std::memory_order_acquire)->lock_for_read();
    while (index < machine->gpu_count && (is_hidden(index) || !find_mig_device(machine->gpus[index], uuid)))
      ++index;
    if (index == machine->gpu_count) return NVML_ERROR_NOT_FOUND;
  }
  const GpuCall call(index);
  if (const auto error = call.entry_error()) return error;
  const auto found = find_mig_device(call.gpu_state(), uuid);
  if (!found) return NVML_ERROR_NOT_FOUND;
  *device = call.mig_handle(*found->gpu_instance, *found->compute_instance);
  return NVML_SUCCESS;
}

nvmlReturn_t by_uuid(const char* uuid, nvmlDevice_t* device) {
  if (uuid != nullptr && device != nullptr && std::string_view(uuid).substr(0, 4) == "MIG-") {
    if (const auto error = enter_driver()) return error;
    return by_mig_uuid(uuid, device);
  }
  return look_up(uuid, device, NVML_ERROR_NOT_FOUND,
                 [uuid](const Gpu& gpu) { return std::string_view(uuid) == gpu.uuid; });
}

nvmlReturn_t by_pci_bus_id(const char* bus_id, nvmlDevice_t* device) {
  unsigned int domain = 0;
  unsigned int bus = 0;
  unsigned int slot = 0;
  unsigned int function = 0;
  if (bus_id != nullptr) {
    const bool full = std::sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) >= 3;
    if (!full) {
      domain = 0;
      if (std::sscanf(bus_id, "%x:%x.%x", &bus, &slot, &function) < 2) {
        const auto error = enter_driver();
        return error != NVML_SUCCESS ? error : NVML_ERROR_INVALID_ARGUMENT;
      }
    }
  }
  return look_up(bus_id, device, NVML_ERROR_NOT_FOUND, [=](const Gpu& gpu) {
    return gpu.pci.domain == domain && gpu.pci.bus == bus && gpu.pci.device == slot &&
           gpu.pci.function == function;
  });
}

}  // namespace

nvmlReturn_t nvmlDeviceGetCount(unsigned int* count) { return count_gpus(count); }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) { return count_gpus(count); }
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  return by_index(index, device);
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  return by_index(index, device);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* id, nvmlDevice_t* device) {
  return by_pci_bus_id(id, device);
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device) {
  return by_pci_bus_id(id, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice_t* device) {
  return look_up(serial, device, NVML_ERROR_NOT_FOUND,
                 [serial](const Gpu& gpu) { return std::string_view(serial) == gpu.serial; });
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  return by_uuid(uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  if (const auto error = enter_driver()) return error;
  if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->version != nvmlUUID_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (uuid->type == NVML_UUID_TYPE_ASCII) return by_uuid(uuid->value.str, device);
  if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof(uuid->value.bytes); ++i) {
    char byte[3];
    std::snprintf(byte, sizeof(byte), "%02x", uuid->value.bytes[i]);
    text += byte;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return by_uuid(text.c_str(), device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(index)) return error;
  if (!call.is_mig()) {
    *index = 0;
    for (std::uint32_t i = 0; i < call.gpu_index(); ++i) *index += is_hidden(i) ? 0 : 1;
    return NVML_SUCCESS;
  }
  for (std::uint32_t i = 0;; ++i) {
    const auto found = visible_mig_device(call.gpu_state(), i);
    if (!found) return NVML_ERROR_NOT_FOUND;
    if (found->compute_instance != &call.compute_instance()) continue;
    *index = i;
    return NVML_SUCCESS;
  }
}

// Identity and modes of a GPU.

namespace {

// "NVIDIA H100 80GB HBM3 MIG 1g.10gb"; "... MIG 1c.3g.40gb" where a compute instance is smaller than its GPU
// instance.
std::string full_name(const GpuCall& call) {
  std::string name = call.gpu_state().name;
  if (!call.is_mig()) return name;
  name += " MIG ";
  if (call.compute_instance().length != call.mig_profile().slices)
    name += std::to_string(call.compute_instance().length) + "c.";
  return name + call.mig_profile().name;
}

nvmlReturn_t report_disabled(nvmlDevice_t device, nvmlEnableState_t* state) {
  return get(device, state, [](const Gpu&) { return NVML_FEATURE_DISABLED; });
}

}  // namespace

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(name)) return error;
  return put_text(full_name(call).c_str(), name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(uuid)) return error;
  return put_text(call.is_mig() ? call.compute_instance().uuid : call.gpu_state().uuid, uuid, length);
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
  if (const auto error = call.entry_error()) return error;
  if (call.gpu_state().inforom_image[0] == '\0')
    return NVML_ERROR_NOT_SUPPORTED;  // a card without an InfoROM
  return call.gpu_state().faults.inforom != 0 ? NVML_ERROR_CORRUPTED_INFOROM : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t* brand) {
  return get(device, brand, [](const Gpu& gpu) { return gpu.brand; });
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t* architecture) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(architecture)) return error;
  *architecture = call.gpu_state().architecture;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(major, minor)) return error;
  *major = call.gpu_state().compute_major;
  *minor = call.gpu_state().compute_minor;
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
  if (const auto error = call.entry_error(multi)) return error;
  *multi = 0;
  for (unsigned int i = 0; i < call.machine().gpu_count; ++i) {
    if (i != call.gpu_index() && call.machine().gpus[i].board_id == call.gpu_state().board_id) *multi = 1;
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
// nvidia-smi 580 shows "Requested functionality has been deprecated": forums.developer.nvidia.com, 341249.
nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(mode)) return error;
  if (driver_branch(call.machine()) >= kBranch580) return NVML_ERROR_DEPRECATED;
  *mode = static_cast<nvmlEnableState_t>(call.gpu_state().display_connected);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t* active) {
  return get(device, active,
             [](const Gpu& gpu) { return static_cast<nvmlEnableState_t>(gpu.display_active); });
}
nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return report_disabled(device, mode);
}
nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned int* size) {
  return get(device, size, [](const Gpu&) { return 4000; });
}

nvmlReturn_t nvmlDeviceGetAPIRestriction(nvmlDevice_t device, nvmlRestrictedAPI_t api,
                                         nvmlEnableState_t* restricted) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(restricted)) return error;
  if (api == NVML_RESTRICTED_API_SET_AUTO_BOOSTED_CLOCKS) return NVML_ERROR_NOT_SUPPORTED;
  if (api != NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS) return NVML_ERROR_INVALID_ARGUMENT;
  *restricted = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t* mode) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(mode)) return error;
  *mode = static_cast<nvmlGpuVirtualizationMode_t>(call.machine().driver.virtualization);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  info->isC2cEnabled = call.gpu_state().memory_numa_node != kNotReported ? 1 : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t* mode) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(mode)) return error;
  if (mode->version != nvmlDeviceAddressingMode_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const bool coherent = call.gpu_state().memory_numa_node != kNotReported;
  mode->value = coherent ? NVML_DEVICE_ADDRESSING_MODE_ATS : NVML_DEVICE_ADDRESSING_MODE_HMM;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCapabilities(nvmlDevice_t device, nvmlDeviceCapabilities_t* caps) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(caps)) return error;
  if (caps->version != nvmlDeviceCapabilities_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  caps->capMask = call.gpu_state().memory_numa_node != kNotReported ? NVML_DEV_CAP_EGM : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char* version) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(version)) return error;
  if (call.gpu_state().gsp_firmware_mode == 0) return NVML_ERROR_NOT_SUPPORTED;
  return put_text(call.machine().driver.version, version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

nvmlReturn_t nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned int* enabled,
                                          unsigned int* by_default) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(enabled, by_default)) return error;
  *enabled = *by_default = call.gpu_state().gsp_firmware_mode;
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
  if (const auto error = call.entry_error()) return error;
  if (mode > NVML_FEATURE_ENABLED) return NVML_ERROR_INVALID_ARGUMENT;
  call.gpu_state().persistence_mode = mode;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
  const GpuEdit call(device);
  if (const auto error = call.entry_error()) return error;
  if (mode >= NVML_COMPUTEMODE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  // Removed since Volta; MIG requires the default mode.
  if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD ||
      (mode != NVML_COMPUTEMODE_DEFAULT && call.gpu_state().mig.current != 0)) {
    return NVML_ERROR_NOT_SUPPORTED;
  }
  call.gpu_state().compute_mode = mode;
  return NVML_SUCCESS;
}

// Resets GPUs. NVML has no reset: NVIDIA's `nvidia-smi -r` uses the kernel module, the simulated one calls
// this.

namespace {

// Sleeps while a reset of the GPU hangs, then for the time that it takes.
void wait_out_reset(nvmlDevice_t device) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  const auto decoded = decode_handle(device);
  if (state == nullptr || !decoded) return;
  while (true) {
    const std::uint32_t seen = state->change_count();
    {
      const ReadGuard machine = state->lock_for_read();
      if (decoded->gpu >= machine->gpu_count || machine->driver.loaded == 0) return;
      const Faults& faults = machine->gpus[decoded->gpu].faults;
      if (faults.reset_hang == 0) {
        if (faults.reset_ms != 0) break;
        return;
      }
    }
    state->wait_for_change(seen, -1);
  }
  usleep(state->lock_for_read()->gpus[decoded->gpu].faults.reset_ms * 1000);
}

gpulet::Status check_reset(const Machine& machine, const std::vector<std::uint32_t>& gpus) {
  for (const auto gpu : gpus) {
    std::string missing;
    for (const auto partner : reset_partners(machine, gpu)) {
      if (std::ranges::find(gpus, partner) == gpus.end()) missing += " " + std::to_string(partner);
    }
    if (!missing.empty())
      return gpulet::fail(gpulet::Code::kFailedPrecondition,
                          "connected by NVLinks and to be reset in the same command:" + missing);
    GPULET_TRY(check_unused_by_others(machine, gpu));
  }
  return {};
}

}  // namespace

// `reason` gets the reason of IN_USE: "in use by: 1234 dcgm-exporter".
extern "C" __attribute__((visibility("default"))) nvmlReturn_t nvmlSimulatedReset(const nvmlDevice_t* devices,
                                                                                  unsigned int count,
                                                                                  char* reason,
                                                                                  unsigned int length) {
  if (devices == nullptr || count == 0) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned int i = 0; i < count; ++i) wait_out_reset(devices[i]);
  const GpuEdit call(devices[0]);
  if (const auto error = call.entry_error(reason)) return error;
  std::vector<std::uint32_t> gpus = {call.gpu_index()};
  for (unsigned int i = 1; i < count; ++i) {
    unsigned int other = 0;
    if (const auto error = call.peer_call(devices[i], &other)) return error;
    gpus.push_back(other);
  }
  for (const auto gpu : gpus) {
    if (const auto error = call.machine().gpus[gpu].faults.reset_error)
      return static_cast<nvmlReturn_t>(error);
  }
  auto done = check_reset(call.machine(), gpus);
  for (const auto gpu : gpus) {
    const bool wanted = call.machine().gpus[gpu].recovery_action != 0;
    if (done) done = reset_gpu(call.machine(), gpu);
    if (done && wanted) post_event(call.machine(), gpu, kEventGpuRecoveryAction, 0);
  }
  if (!done) {
    put_text(done.error().message().substr(0, length - 1).c_str(), reason, length);
    return NVML_ERROR_IN_USE;
  }
  return publish_instances(call, NVML_SUCCESS);
}

// Without vGPU there is nothing to license.
nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v4(nvmlDevice_t device,
                                                    nvmlGridLicensableFeatures_t* features) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(features)) return error;
  *features = {};
  return NVML_SUCCESS;
}
