// Interconnects: PCI address, ids and traffic; NVLink; topology, affinity and fabric.
#include <algorithm>

#include "sim/driver/call.h"

using namespace gpulet::sim;

namespace {

nvmlReturn_t pci_info(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(pci)) return error;
  fill_pci(call.gpu_state().pci, call.gpu_state().pci_device_id, call.gpu_state().pci_subsystem_id, pci);
  return NVML_SUCCESS;
}

// MB/s of one lane, by generation.
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
  if (const auto error = call.entry_error(pci)) return error;
  if (pci->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlPciInfo_t plain;
  fill_pci(call.gpu_state().pci, call.gpu_state().pci_device_id, call.gpu_state().pci_subsystem_id, &plain);
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
  if (const auto error = call.entry_error(speed)) return error;
  const std::int32_t generation = call.gpu_state().pcie_generation;
  if (generation < 1 || generation >= static_cast<std::int32_t>(std::size(kLaneMbps)))
    return NVML_ERROR_NOT_SUPPORTED;
  *speed = kLaneMbps[generation];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int* value) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(value)) return error;
  if (counter >= NVML_PCIE_UTIL_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  *value = counter == NVML_PCIE_UTIL_TX_BYTES ? call.gpu_state().pcie_tx_kbps : call.gpu_state().pcie_rx_kbps;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int* value) {
  return get(device, value, [](const Gpu& gpu) { return gpu.pcie_replays; });
}

namespace {

// Implements a call about one link: `read(link)` fills the result.
template <class Result, class Read>
nvmlReturn_t read_link_value(nvmlDevice_t device, unsigned int index, Result* result, Read read) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(result)) return error;
  const NvLink* link = nullptr;
  if (const auto missing = find_link(call.gpu_state(), index, &link)) return missing;
  return read(*link);
}

nvmlReturn_t remote_pci(nvmlDevice_t device, unsigned int index, nvmlPciInfo_t* pci) {
  return read_link_value(device, index, pci, [pci](const NvLink& link) {
    if (link.active == 0) return NVML_ERROR_NOT_SUPPORTED;
    fill_pci(link.remote_pci, link.remote_device_id, 0, pci);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t edit_link_errors(nvmlDevice_t device, unsigned int index) {
  const BasicGpuCall<Machine> call(device);  // nvml.h names no right
  if (const auto error = call.entry_error()) return error;
  const NvLink* found = nullptr;
  if (const auto missing = find_link(call.gpu_state(), index, &found)) return missing;
  NvLink& link = call.gpu_state().links[index];
  link.replay_errors = link.recovery_errors = link.crc_flit_errors = link.crc_data_errors = link.ecc_errors =
      0;
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int index, nvmlEnableState_t* active) {
  return read_link_value(device, index, active, [active](const NvLink& link) {
    *active = link.active != 0 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int index, unsigned int* version) {
  return read_link_value(device, index, version, [version](const NvLink& link) {
    *version = link.version;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int index,
                                           nvmlNvLinkCapability_t capability, unsigned int* result) {
  return read_link_value(device, index, result, [=](const NvLink&) {
    if (capability >= NVML_NVLINK_CAP_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    *result = capability == NVML_NVLINK_CAP_SLI_BRIDGE ? 0 : 1;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int index, nvmlPciInfo_t* pci) {
  return remote_pci(device, index, pci);
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int index,
                                                 nvmlPciInfo_t* pci) {
  return remote_pci(device, index, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int index,
                                                 nvmlIntNvLinkDeviceType_t* type) {
  return read_link_value(device, index, type, [type](const NvLink& link) {
    if (link.active == 0) return NVML_ERROR_NOT_SUPPORTED;
    *type = static_cast<nvmlIntNvLinkDeviceType_t>(link.remote);
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int index,
                                             nvmlNvLinkErrorCounter_t counter, unsigned long long* value) {
  return read_link_value(device, index, value, [=](const NvLink& link) {
    switch (counter) {
      case NVML_NVLINK_ERROR_DL_REPLAY:
        *value = link.replay_errors;
        break;
      case NVML_NVLINK_ERROR_DL_RECOVERY:
        *value = link.recovery_errors;
        break;
      case NVML_NVLINK_ERROR_DL_CRC_FLIT:
        *value = link.crc_flit_errors;
        break;
      case NVML_NVLINK_ERROR_DL_CRC_DATA:
        *value = link.crc_data_errors;
        break;
      case NVML_NVLINK_ERROR_DL_ECC_DATA:
        *value = link.ecc_errors;
        break;
      default:
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return NVML_SUCCESS;
  });
}

nvmlReturn_t nvmlDeviceResetNvLinkErrorCounters(nvmlDevice_t device, unsigned int index) {
  return edit_link_errors(device, index);
}

// Topology of GPUs and CPUs: common PCIe ancestor, peer access, affinity, fabric.

namespace {

constexpr unsigned int kBitsPerWord = 64;

// Two GPUs; the first belongs to the call.
struct GpuPair {
  GpuCall call;
  nvmlReturn_t entry_error;
  unsigned int other = 0;
  GpuPair(nvmlDevice_t first, nvmlDevice_t second, const void* result)
      : call(first), entry_error(call.entry_error(result)) {
    if (entry_error == NVML_SUCCESS) entry_error = call.peer_call(second, &other);
  }
};

bool same_address(const PciAddress& a, const PciAddress& b) {
  return a.domain == b.domain && a.bus == b.bus && a.device == b.device && a.function == b.function;
}

bool has_switch_link(const Gpu& gpu) {
  return std::any_of(std::begin(gpu.links), std::end(gpu.links), [](const NvLink& link) {
    return link.present != 0 && link.active != 0 && link.remote == kRemoteSwitch;
  });
}

bool is_linked(const Gpu& from, const Gpu& to) {
  const bool direct = std::any_of(std::begin(from.links), std::end(from.links), [&to](const NvLink& link) {
    return link.present != 0 && link.active != 0 && link.remote == kRemoteGpu &&
           same_address(link.remote_pci, to.pci);
  });
  return direct || (has_switch_link(from) && has_switch_link(to));
}

nvmlReturn_t cpu_affinity(nvmlDevice_t device, unsigned int size, unsigned long* set) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(set)) return error;
  if (size == 0) return NVML_ERROR_INVALID_ARGUMENT;
  const auto& words = call.gpu_state().cpu_affinity;
  if (std::all_of(std::begin(words), std::end(words), [](std::uint64_t word) { return word == 0; }))
    return NVML_ERROR_NOT_SUPPORTED;
  for (unsigned int i = 0; i < size; ++i) set[i] = i < kMaxCpuWords ? words[i] : 0;
  return NVML_SUCCESS;
}

template <class Info>
void fill_fabric(const Fabric& fabric, Info* info) {
  std::copy(std::begin(fabric.cluster_uuid), std::end(fabric.cluster_uuid), info->clusterUuid);
  info->status = static_cast<nvmlReturn_t>(fabric.status);
  info->state = fabric.state;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second,
                                                 nvmlGpuTopologyLevel_t* level) {
  const GpuPair pair(first, second, level);
  if (pair.entry_error) return pair.entry_error;
  *level = static_cast<nvmlGpuTopologyLevel_t>(pair.call.gpu_state().topology[pair.other]);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int* count, nvmlDevice_t* devices) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(count)) return error;
  const unsigned int room = *count;
  unsigned int found = 0;
  for (unsigned int i = 0; i < call.machine().gpu_count; ++i) {
    if (i == call.gpu_index() || call.gpu_state().topology[i] != static_cast<unsigned int>(level)) continue;
    if (devices != nullptr && found < room) devices[found] = gpu_handle(call.machine(), i);
    ++found;
  }
  *count = devices == nullptr ? found : std::min(found, room);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int* count, nvmlDevice_t* devices) {
  if (const auto error = wait_out_driver_faults()) return error;
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->lock_for_read();
  if (const auto error = driver_ready(*machine)) return error;
  if (count == nullptr || cpu >= kMaxCpuWords * kBitsPerWord) return NVML_ERROR_INVALID_ARGUMENT;
  const unsigned int room = *count;
  unsigned int found = 0;
  for (unsigned int i = 0; i < machine->gpu_count; ++i) {
    if ((machine->gpus[i].cpu_affinity[cpu / kBitsPerWord] >> cpu % kBitsPerWord & 1) == 0) continue;
    if (devices != nullptr && found < room) devices[found] = gpu_handle(*machine, i);
    ++found;
  }
  *count = devices == nullptr ? found : std::min(found, room);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t first, nvmlDevice_t second, int* same) {
  const GpuPair pair(first, second, same);
  if (pair.entry_error) return pair.entry_error;
  *same = pair.call.gpu_state().board_id == pair.call.machine().gpus[pair.other].board_id ? 1 : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, nvmlGpuP2PCapsIndex_t index,
                                    nvmlGpuP2PStatus_t* status) {
  const GpuPair pair(first, second, status);
  if (pair.entry_error) return pair.entry_error;
  if (index >= NVML_P2P_CAPS_INDEX_UNKNOWN) return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& from = pair.call.gpu_state();
  const Gpu& to = pair.call.machine().gpus[pair.other];
  *status = NVML_P2P_STATUS_OK;
  if (from.mig.current != 0 || to.mig.current != 0) {
    *status = NVML_P2P_STATUS_NOT_SUPPORTED;
  } else if (index == NVML_P2P_CAPS_INDEX_NVLINK || index == NVML_P2P_CAPS_INDEX_ATOMICS) {
    if (!is_linked(from, to)) *status = NVML_P2P_STATUS_NOT_SUPPORTED;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long* set) {
  return cpu_affinity(device, size, set);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size, unsigned long* set,
                                                 nvmlAffinityScope_t scope) {
  if (scope == NVML_AFFINITY_SCOPE_NODE || scope == NVML_AFFINITY_SCOPE_SOCKET)
    return cpu_affinity(device, size, set);
  const auto error = GpuCall(device).entry_error(set);
  return error != NVML_SUCCESS ? error : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long* set,
                                         nvmlAffinityScope_t scope) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(set)) return error;
  if (size == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET) return NVML_ERROR_INVALID_ARGUMENT;
  const std::int32_t node = call.gpu_state().numa_node;
  if (node < 0) return NVML_ERROR_NOT_SUPPORTED;
  std::fill(set, set + size, 0UL);
  const auto word = static_cast<unsigned int>(node) / kBitsPerWord;
  if (word >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
  set[word] = 1UL << (static_cast<unsigned int>(node) % kBitsPerWord);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int* node) {
  return get_reported(device, node, [](const Gpu& gpu) { return gpu.memory_numa_node; });
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  *info = {};
  fill_fabric(call.gpu_state().fabric, info);
  info->cliqueId = call.gpu_state().fabric.clique_id;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  const bool third = info->version == nvmlGpuFabricInfo_v3;
  if (!third && info->version != nvmlGpuFabricInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  // Version 2 is version 3 without its last member, which must not be written.
  const Fabric& fabric = call.gpu_state().fabric;
  fill_fabric(fabric, info);
  info->cliqueId = fabric.clique_id;
  info->healthMask = fabric.health_mask;
  if (third) info->healthSummary = fabric.health_summary;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  const Fabric& fabric = call.gpu_state().fabric;
  *info = {};
  fill_fabric(fabric, info);
  info->healthMask = fabric.health_mask;
  info->healthSummary = fabric.health_summary;
  if (fabric.state == NVML_GPU_FABRIC_STATE_COMPLETED) {
    info->numCliques = 1;
    info->cliques[0] = {NVML_GPU_FABRIC_CLIQUE_TYPE_UNICAST_POINTER, fabric.clique_id};
  }
  return NVML_SUCCESS;
}
