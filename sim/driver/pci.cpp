// The PCI side: address, ids, link, traffic.
#include <cstdio>

#include "sim/driver/pci.h"

namespace gpulet::sim {

void fill_pci(const PciAddress& address, std::uint32_t device_id, std::uint32_t subsystem_id,
              nvmlPciInfo_t* pci) {
  *pci = {};
  pci->domain = address.domain;
  pci->bus = address.bus;
  pci->device = address.device;
  pci->pciDeviceId = device_id;
  pci->pciSubSystemId = subsystem_id;
  // The old form has room for four digits of the domain only.
  std::snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "%04X:%02X:%02X.%X", address.domain & 0xffffU,
                address.bus, address.device, address.function & 0xfU);
  std::snprintf(pci->busId, sizeof(pci->busId), "%08X:%02X:%02X.%X", address.domain, address.bus,
                address.device, address.function);
}

}  // namespace gpulet::sim

using namespace gpulet::sim;

namespace {

nvmlReturn_t pci_info(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  const GpuCall call(device);
  if (const auto refused = call.refused(pci)) return refused;
  fill_pci(call.gpu().pci, call.gpu().pci_device_id, call.gpu().pci_subsystem_id, pci);
  return NVML_SUCCESS;
}

// Megabytes a second of one lane, by generation.
constexpr unsigned int kLaneMbps[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};

}  // namespace

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* pci) { return pci_info(device, pci); }
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return pci_info(device, pci);
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  return pci_info(device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t* pci) {
  const GpuCall call(device);
  if (const auto refused = call.refused(pci)) return refused;
  if (pci->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlPciInfo_t plain;
  fill_pci(call.gpu().pci, call.gpu().pci_device_id, call.gpu().pci_subsystem_id, &plain);
  pci->domain = plain.domain;
  pci->bus = plain.bus;
  pci->device = plain.device;
  pci->pciDeviceId = plain.pciDeviceId;
  pci->pciSubSystemId = plain.pciSubSystemId;
  pci->baseClass = 0x03;  // display controller
  pci->subClass = 0x02;   // 3D
  std::memcpy(pci->busId, plain.busId, sizeof(pci->busId));
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int* generation) {
  return get_reported(device, generation, [](const Gpu& gpu) { return gpu.pcie_generation_max; });
}
nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int* generation) {
  return get_reported(device, generation, [](const Gpu& gpu) { return gpu.pcie_generation_max; });
}
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int* width) {
  return get_reported(device, width, [](const Gpu& gpu) { return gpu.pcie_width_max; });
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int* generation) {
  return get_reported(device, generation, [](const Gpu& gpu) { return gpu.pcie_generation; });
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int* width) {
  return get_reported(device, width, [](const Gpu& gpu) { return gpu.pcie_width; });
}

nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned int* speed) {
  // NVML_PCIE_LINK_MAX_SPEED_* number the generations from 1.
  return get_reported(device, speed, [](const Gpu& gpu) { return gpu.pcie_generation_max; });
}

nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int* speed) {
  const GpuCall call(device);
  if (const auto refused = call.refused(speed)) return refused;
  const std::int32_t generation = call.gpu().pcie_generation;
  if (generation < 1 || generation >= static_cast<std::int32_t>(std::size(kLaneMbps)))
    return NVML_ERROR_NOT_SUPPORTED;
  *speed = kLaneMbps[generation];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int* value) {
  const GpuCall call(device);
  if (const auto refused = call.refused(value)) return refused;
  if (counter >= NVML_PCIE_UTIL_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  *value = counter == NVML_PCIE_UTIL_TX_BYTES ? call.gpu().pcie_tx_kbps : call.gpu().pcie_rx_kbps;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int* value) {
  return get(device, value, [](const Gpu& gpu) { return gpu.pcie_replays; });
}
