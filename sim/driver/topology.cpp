// What stands between GPUs, and between GPUs and CPUs: PCIe ancestry, peer access, affinity, the fabric.
#include <algorithm>

#include "sim/driver/call.h"

using namespace gpulet::sim;

namespace {

constexpr unsigned int kBitsPerWord = 64;

// Two GPUs, of which the first is the call's.
struct Pair {
  GpuCall call;
  nvmlReturn_t refused;
  unsigned int other = 0;
  Pair(nvmlDevice_t first, nvmlDevice_t second, const void* result)
      : call(first), refused(call.refused(result)) {
    if (refused == NVML_SUCCESS) refused = call.peer(second, &other);
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

bool linked(const Gpu& from, const Gpu& to) {
  const bool direct = std::any_of(std::begin(from.links), std::end(from.links), [&to](const NvLink& link) {
    return link.present != 0 && link.active != 0 && link.remote == kRemoteGpu &&
           same_address(link.remote_pci, to.pci);
  });
  return direct || (has_switch_link(from) && has_switch_link(to));
}

nvmlReturn_t cpu_affinity(nvmlDevice_t device, unsigned int size, unsigned long* set) {
  const GpuCall call(device);
  if (const auto refused = call.refused(set)) return refused;
  if (size == 0) return NVML_ERROR_INVALID_ARGUMENT;
  const auto& words = call.gpu().cpu_affinity;
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
  const Pair pair(first, second, level);
  if (pair.refused) return pair.refused;
  *level = static_cast<nvmlGpuTopologyLevel_t>(pair.call.gpu().topology[pair.other]);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level,
                                              unsigned int* count, nvmlDevice_t* devices) {
  const GpuCall call(device);
  if (const auto refused = call.refused(count)) return refused;
  const unsigned int room = *count;
  unsigned int found = 0;
  for (unsigned int i = 0; i < call.machine().gpu_count; ++i) {
    if (i == call.index() || call.gpu().topology[i] != static_cast<unsigned int>(level)) continue;
    if (devices != nullptr && found < room) devices[found] = gpu_handle(call.machine(), i);
    ++found;
  }
  *count = devices == nullptr ? found : std::min(found, room);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int* count, nvmlDevice_t* devices) {
  if (const auto refused = pass_driver_faults()) return refused;
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->read();
  if (const auto refused = driver_ready(*machine)) return refused;
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
  const Pair pair(first, second, same);
  if (pair.refused) return pair.refused;
  *same = pair.call.gpu().board_id == pair.call.machine().gpus[pair.other].board_id ? 1 : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second, nvmlGpuP2PCapsIndex_t index,
                                    nvmlGpuP2PStatus_t* status) {
  const Pair pair(first, second, status);
  if (pair.refused) return pair.refused;
  if (pair.other == pair.call.index() || index >= NVML_P2P_CAPS_INDEX_UNKNOWN)
    return NVML_ERROR_INVALID_ARGUMENT;
  const Gpu& from = pair.call.gpu();
  const Gpu& to = pair.call.machine().gpus[pair.other];
  *status = NVML_P2P_STATUS_OK;
  if (from.mig.current != 0 || to.mig.current != 0) {
    *status = NVML_P2P_STATUS_NOT_SUPPORTED;
  } else if (index == NVML_P2P_CAPS_INDEX_NVLINK || index == NVML_P2P_CAPS_INDEX_ATOMICS) {
    if (!linked(from, to)) *status = NVML_P2P_STATUS_NOT_SUPPORTED;
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
  const auto refused = GpuCall(device).refused(set);
  return refused != NVML_SUCCESS ? refused : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long* set,
                                         nvmlAffinityScope_t scope) {
  const GpuCall call(device);
  if (const auto refused = call.refused(set)) return refused;
  if (size == 0 || scope > NVML_AFFINITY_SCOPE_SOCKET) return NVML_ERROR_INVALID_ARGUMENT;
  const std::int32_t node = call.gpu().numa_node;
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
  if (const auto refused = call.refused(info)) return refused;
  *info = {};
  fill_fabric(call.gpu().fabric, info);
  info->cliqueId = call.gpu().fabric.clique_id;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t* info) {
  const GpuCall call(device);
  if (const auto refused = call.refused(info)) return refused;
  const bool third = info->version == nvmlGpuFabricInfo_v3;
  if (!third && info->version != nvmlGpuFabricInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  // The second version is the third without its last member: nothing is written behind it.
  const Fabric& fabric = call.gpu().fabric;
  fill_fabric(fabric, info);
  info->cliqueId = fabric.clique_id;
  info->healthMask = fabric.health_mask;
  if (third) info->healthSummary = fabric.health_summary;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo_v4(nvmlDevice_t device, nvmlGpuFabricInfo_v4_t* info) {
  const GpuCall call(device);
  if (const auto refused = call.refused(info)) return refused;
  const Fabric& fabric = call.gpu().fabric;
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
