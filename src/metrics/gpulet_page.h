// gpulet's own metrics: allocation and usage of each device by Pod, MIG layout, device health, and the agent
// itself.
//
// Device labels: gpu, UUID, device and modelName as DCGM; MIG devices also have GPU_I_PROFILE and GPU_I_ID of
// their GPU instance, and GPU_C_ID if the instance has several.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "health/report/node_health.h"
#include "inventory/snapshot.h"
#include "metrics/attribution.h"
#include "metrics/dcgm_page.h"
#include "metrics/exposition.h"
#include "metrics/usage_accounting.h"

namespace gpulet::metrics {

// Allocation, usage and MIG layout of the snapshot's devices. Unknown values have no series.
void add_device_metrics(Exposition& page, const inventory::Snapshot& snapshot, const Holders& holders,
                        const Attribution& attribution, const UsageAccounting& accounting);

// State, data and errors of each NVLink in the sample. Unknown values have no series.
void add_link_metrics(Exposition& page, const inventory::Snapshot& snapshot, const Sample& sample);

// What each namespace held and used; of "" what no Pod used.
void add_namespace_metrics(Exposition& page, const UsageAccounting& accounting);

// Expected use of a GPU, in percent.
struct ExpectedUse {
  double busy = 0, memory = 0;
  void raise_to(const ExpectedUse& other) {
    busy = std::max(busy, other.busy);
    memory = std::max(memory, other.memory);
  }
};

// How far the forecasts look. `name`: their label.
struct ForecastHorizon {
  std::string_view name;
  std::chrono::minutes length;
};
inline constexpr std::array<ForecastHorizon, 3> kForecastHorizons = {
    {{"15m", std::chrono::minutes(15)}, {"1h", std::chrono::hours(1)}, {"3h", std::chrono::hours(3)}}};
using UseByHorizon = std::array<ExpectedUse, kForecastHorizons.size()>;

// The greatest expected use within each horizon, of the GPU and of each Pod's part of it.
struct GpuForecast {
  UseByHorizon gpu{};
  std::map<PodName, UseByHorizon> pods{};
};
// GPUs that are not in the snapshot have no series.
void add_forecast_metrics(Exposition& page, const inventory::Snapshot& snapshot,
                          const std::map<DeviceUuid, GpuForecast>& forecasts);

// State, open faults and relapses of every monitored device. A device that has left the node has only its
// UUID.
void add_health_metrics(Exposition& page, const health::HealthView& view,
                        const inventory::Snapshot& snapshot);

// Pods that were asked to leave a hot GPU.
struct RebalanceCounts {
  std::uint64_t evicted = 0, refused = 0, dry_run = 0;
  friend bool operator==(const RebalanceCounts&, const RebalanceCounts&) = default;
};

// What the audit of memory limits found (fraction/memory_audit.h).
struct MemoryAuditCounts {
  std::uint64_t warned = 0, killed = 0, evicted = 0, failed = 0;  // containers above their limit
  friend bool operator==(const MemoryAuditCounts&, const MemoryAuditCounts&) = default;
};
struct MemoryAuditStats {
  // A container with a limit on a GPU.
  struct Container {
    DeviceUuid gpu;
    PodName pod;
    std::string container;
    Bytes limit;  // 0: only MPS limits it, each of its processes
    std::optional<Bytes> used{};         // nullopt: not read yet
    std::string grade{};                 // how hard the limit is: "audited"; empty: unknown
    std::vector<std::string> reasons{};  // why it is not harder, one line each
    friend bool operator==(const Container&, const Container&) = default;
  };
  std::vector<Container> containers{};
  std::map<DeviceUuid, Bytes> unlisted{};  // of the audited GPUs
  MemoryAuditCounts counts{};
};
// GPUs that are not in the snapshot have no series.
void add_memory_audit_metrics(Exposition& page, const inventory::Snapshot& snapshot,
                              const MemoryAuditStats& stats);

// The power limit of a GPU that the agent sets.
struct GpuPowerLimit {
  DeviceUuid gpu;
  std::optional<MilliWatts> limit{};
  std::string source{};      // what it comes from: "schedule"
  bool has_problem = false;  // limit or clocks are not as they are to be
};
// GPUs that are not in the snapshot have no series.
void add_power_metrics(Exposition& page, const inventory::Snapshot& snapshot,
                       std::span<const GpuPowerLimit> limits);

// The last preflight of a GPU.
struct GpuPreflight {
  struct Result {
    std::string check, peer, result;
    std::optional<std::uint64_t> bytes_per_second{};
  };
  DeviceUuid gpu;
  std::optional<std::chrono::nanoseconds> age{};  // nullopt: by an earlier agent
  std::vector<Result> results{};
};
// GPUs that are not in the snapshot have no series.
void add_preflight_metrics(Exposition& page, const inventory::Snapshot& snapshot,
                           std::span<const GpuPreflight> preflights);

// What the kubelet asks of this node as a driver of Dynamic Resource Allocation. Names and labels are those
// of NVIDIA's DRA driver.
struct ClaimStats {
  struct Operation {
    std::size_t in_flight = 0;
    std::vector<std::uint64_t> durations{};  // of claims that succeeded, as Exposition::Histogram::counts
    std::chrono::nanoseconds time{};         // of the same claims
    std::map<std::string, std::uint64_t> errors{};  // claims that were refused, by the name of the code
  };
  std::string driver, node;
  std::vector<double> duration_bounds{};  // in seconds
  Operation prepare{}, unprepare{};
  std::size_t prepared_claims = 0;
  std::map<std::string, std::size_t> prepared_devices{};  // by type; a device of two claims counts twice
};

// Changes of GPUs' MIG layouts on demand (agent/mig/demand_controller.h).
struct MigReconfigurations {
  std::uint64_t for_demand = 0, returned = 0;
  friend bool operator==(const MigReconfigurations&, const MigReconfigurations&) = default;
};

// Resets of GPUs, and whether a reboot of the node is requested.
struct RepairStats {
  std::uint64_t done = 0, failed = 0, dry_run = 0;
  bool is_reboot_requested = false;
};

// The agent's counts of itself. nullopt: no series.
struct AgentStats {
  std::uint64_t driver_calls = 0;
  std::chrono::nanoseconds driver_time{};
  std::uint64_t driver_hanging = 0;
  bool driver_released = false;  // closed on request, or about to be
  // Driver calls that returned no value, by function and return code (nvml/return_codes.h).
  struct NvmlError {
    std::string function, code;
    std::uint64_t count = 0;
  };
  std::vector<NvmlError> nvml_errors{};
  std::optional<std::chrono::nanoseconds> snapshot_age{}, sample_age{};
  std::optional<std::chrono::nanoseconds> pod_resources_age{};  // of the kubelet's last response
  std::uint64_t pod_resources_errors = 0;
  std::optional<std::chrono::nanoseconds> pod_resources_time{};  // duration of the last call
  std::uint64_t snapshot_generation = 0;                         // 0: none yet
  std::uint64_t pods_evicted = 0;
  std::optional<RebalanceCounts> rebalanced{};
  std::optional<std::uint64_t> rejected_pods_deleted{};
  std::optional<std::size_t> containers_cut_off{};
  std::optional<std::size_t> permissions_missing{};
  // The kubelet's device plugin calls, by resource and call.
  struct Call {
    std::string resource, call;
    std::uint64_t succeeded = 0, failed = 0;
    std::chrono::nanoseconds time{};
  };
  std::vector<Call> kubelet_calls{};
  std::map<std::string, std::int64_t> placement_scores{};  // of the last preferred allocation, by resource
  std::optional<ClaimStats> claims{};
  std::optional<RepairStats> repairs{};
  std::optional<bool> host_engine_connected{};  // agent/observe/host_engine_sampler.h
  std::optional<MigReconfigurations> mig_reconfigurations{};
};
void add_agent_metrics(Exposition& page, const AgentStats& stats);

}  // namespace gpulet::metrics
