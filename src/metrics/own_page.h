// What only gpulet measures: who holds which device and what each Pod has used of it, how GPUs are cut, how
// each device stands, and how the agent itself does. docs/metrics.md lists the names.
//
// A device's labels: gpu, UUID, device and modelName as DCGM's; of a MIG device GPU_I_PROFILE and GPU_I_ID of
// its GPU instance, and GPU_C_ID where the instance has several.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "health/view.h"
#include "inventory/snapshot.h"
#include "metrics/accounts.h"
#include "metrics/attribution.h"
#include "metrics/dcgm_page.h"
#include "metrics/exposition.h"

namespace gpulet::metrics {

// Allocation, use and MIG layout of the snapshot's devices. What is not known has no series.
void add_devices(Exposition& page, const inventory::Snapshot& snapshot, const Holders& holders,
                 const Uses& uses, const Accounts& accounts);

// States, open faults and relapses of every device that is judged; of one that is no more in the node by its
// UUID alone.
void add_health(Exposition& page, const health::View& view, const inventory::Snapshot& snapshot);

// What the agent counts of itself. What is nullopt is not shown.
struct AgentNumbers {
  std::uint64_t driver_calls = 0;
  std::chrono::nanoseconds driver_time{};
  std::uint64_t driver_hanging = 0;
  std::optional<std::chrono::nanoseconds> snapshot_age{}, sample_age{};
  std::optional<std::chrono::nanoseconds> pod_resources_age{};  // of the kubelet's last answer
  std::uint64_t pod_resources_errors = 0;
  std::optional<std::chrono::nanoseconds> pod_resources_time{};  // that the kubelet took for its last answer
  std::uint64_t snapshot_generation = 0;                         // 0: none yet
  std::uint64_t pods_moved = 0;
  std::optional<std::size_t> rights_missing{};
  // What the kubelet asked of each resource, and the score of its last preferred allocation.
  struct Call {
    std::string resource, call;
    std::uint64_t answered = 0, refused = 0;
    std::chrono::nanoseconds time{};
  };
  std::vector<Call> kubelet_calls{};
  std::map<std::string, std::int64_t> placement_scores{};  // by resource
};
void add_agent(Exposition& page, const AgentNumbers& numbers);

}  // namespace gpulet::metrics
