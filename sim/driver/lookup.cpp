// From an index, a UUID, a serial number or a PCI address to a handle.
#include <cstdio>
#include <string>
#include <string_view>

#include "sim/driver/call.h"
#include "sim/state/mig.h"

using namespace gpulet::sim;

namespace {

// Looks at all GPUs under the lock: `find(machine)` gives an index or gpu_count. Then goes through that GPU's
// faults.
template <class Find>
nvmlReturn_t look_up(const void* key, nvmlDevice_t* device, nvmlReturn_t otherwise, Find find) {
  if (const auto refused = pass_driver_faults()) return refused;
  unsigned int index = 0;
  {
    const ReadGuard machine = session().state.load(std::memory_order_acquire)->read();
    if (const auto refused = driver_ready(*machine)) return refused;
    if (key == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
    while (index < machine->gpu_count && (is_hidden(index) || !find(machine->gpus[index]))) ++index;
    if (index == machine->gpu_count) return otherwise;
  }
  const GpuCall call(index);
  if (const auto refused = call.refused(device)) return refused;
  *device = call.gpu_handle();
  return NVML_SUCCESS;
}

nvmlReturn_t by_index(unsigned int index, nvmlDevice_t* device) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (state != nullptr) index = nth_visible(*state->read(), index);
  const GpuCall call(index);
  if (const auto refused = call.refused(device)) return refused;
  *device = call.gpu_handle();
  return NVML_SUCCESS;
}

nvmlReturn_t count_gpus(unsigned int* count) {
  if (const auto refused = pass_driver_faults()) return refused;
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->read();
  if (const auto refused = driver_ready(*machine)) return refused;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  for (std::uint32_t i = 0; i < machine->gpu_count; ++i) *count += is_hidden(i) ? 0 : 1;
  return NVML_SUCCESS;
}

// A MIG device by its own UUID, or by the form of drivers before 470: "MIG-GPU-.../<gi>/<ci>".
bool is_mig_device(const Gpu& gpu, const MigDevice& device, std::string_view uuid) {
  if (uuid == device.compute_instance->uuid) return true;
  const std::string old = std::string("MIG-") + gpu.uuid + "/" + std::to_string(device.gpu_instance->id) +
                          "/" + std::to_string(device.compute_instance->id);
  return uuid == old;
}

std::optional<MigDevice> find_mig_device(const Gpu& gpu, std::string_view uuid) {
  for (std::uint32_t i = 0;; ++i) {
    const auto device = mig_device(gpu, i);
    if (!device || is_mig_device(gpu, *device, uuid)) return device;
  }
}

nvmlReturn_t by_mig_uuid(std::string_view uuid, nvmlDevice_t* device) {
  unsigned int index = 0;
  {
    const ReadGuard machine = session().state.load(std::memory_order_acquire)->read();
    while (index < machine->gpu_count && (is_hidden(index) || !find_mig_device(machine->gpus[index], uuid)))
      ++index;
    if (index == machine->gpu_count) return NVML_ERROR_NOT_FOUND;
  }
  const GpuCall call(index);
  if (const auto refused = call.refused()) return refused;
  const auto found = find_mig_device(call.gpu(), uuid);
  if (!found) return NVML_ERROR_NOT_FOUND;
  *device = call.mig_handle(*found->gpu_instance, *found->compute_instance);
  return NVML_SUCCESS;
}

nvmlReturn_t by_uuid(const char* uuid, nvmlDevice_t* device) {
  if (uuid != nullptr && device != nullptr && std::string_view(uuid).substr(0, 4) == "MIG-") {
    if (const auto refused = enter_driver()) return refused;
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
        const auto refused = enter_driver();
        return refused != NVML_SUCCESS ? refused : NVML_ERROR_INVALID_ARGUMENT;
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
  if (const auto refused = enter_driver()) return refused;
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
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(index)) return refused;
  if (!call.is_mig()) {
    *index = 0;
    for (std::uint32_t i = 0; i < call.index(); ++i) *index += is_hidden(i) ? 0 : 1;
    return NVML_SUCCESS;
  }
  for (std::uint32_t i = 0;; ++i) {
    const auto found = mig_device(call.gpu(), i);
    if (!found) return NVML_ERROR_NOT_FOUND;
    if (found->compute_instance != &call.compute_instance()) continue;
    *index = i;
    return NVML_SUCCESS;
  }
}
