#include "metrics/gpulet_page.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "metrics/gpulet_metrics.h"

namespace gpulet::metrics {
namespace {

using Named = std::vector<std::pair<std::string, std::string>>;

constexpr double kMillijoules = 1000, kMilliwatts = 1000;

template <class Number>
void add_metric(Exposition& page, Metric metric, const Exposition::Labels& labels, Number value) {
  const auto& info = info_of(metric);
  page.add_sample(info.name, info.type, info.help, labels, value);
}

Exposition::Labels make_labels(const Named& all) {
  std::vector<Exposition::Label> views;
  for (const auto& [name, value] : all) views.emplace_back(name, value);
  return Exposition::Labels(views);
}

Named concat_labels(Named all, const Named& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Named pod_labels(const PodName& pod) { return {{"namespace", pod.name_space}, {"pod", pod.name}}; }

double seconds_of(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

Named labels_of(const inventory::Gpu& gpu) {
  return {{"gpu", std::to_string(gpu.index)},
          {"UUID", gpu.uuid.str()},
          {"device", "nvidia" + std::to_string(gpu.index)},
          {"modelName", gpu.model}};
}

Named labels_of(const inventory::Gpu& gpu, const inventory::MigDevice& mig) {
  Named all = concat_labels(labels_of(gpu), {{"GPU_I_PROFILE", instance_profile(mig.profile)},
                                             {"GPU_I_ID", std::to_string(mig.gpu_instance)}});
  const auto same = std::count_if(gpu.mig_devices.begin(), gpu.mig_devices.end(),
                                  [&](const auto& other) { return other.gpu_instance == mig.gpu_instance; });
  if (same > 1) all.emplace_back("GPU_C_ID", std::to_string(mig.compute_instance));
  return all;
}

// A tenth is finer than any forecast.
double tenths(double percent) { return std::round(percent * 10) / 10; }

class DevicesPage {
 public:
  DevicesPage(Exposition& page, const Holders& holders, const Attribution& attribution,
              const UsageAccounting& accounting)
      : page_(page), holders_(holders), attribution_(attribution), accounting_(accounting) {}

  void add_snapshot(const inventory::Snapshot& snapshot) {
    for (const auto& gpu : snapshot.gpus) {
      // In MIG mode the MIG devices have the busy time. The driver reports energy for GPUs only.
      add_device(gpu.uuid, labels_of(gpu), true, !gpu.mig_enabled);
      for (const auto& mig : gpu.mig_devices) {
        const Named device = labels_of(gpu, mig);
        add_metric(page_, Metric::kMigInstance,
                   make_labels(concat_labels(device, {{"start", std::to_string(mig.placement_start)},
                                                      {"size", std::to_string(mig.placement_size)}})),
                   1);
        add_device(mig.uuid, device, false, true);
      }
    }
  }

 private:
  void add_device(const DeviceUuid& device, const Named& device_labels, bool energy, bool busy) {
    add_holders(device, device_labels);
    add_memory(device, device_labels);
    const auto found = accounting_.usage_by_device().find(device);
    if (found == accounting_.usage_by_device().end()) return;
    const auto add_usage = [&](const PodName& pod, const UsageAmount& usage) {
      const auto labels = make_labels(concat_labels(device_labels, pod_labels(pod)));
      if (energy) {
        add_metric(page_, Metric::kPodEnergy, labels, static_cast<double>(usage.millijoules) / kMillijoules);
      }
      if (!busy) return;
      add_metric(page_, Metric::kPodBusy, labels, seconds_of(usage.busy));
      if (pod == PodName{}) return;
      add_metric(page_, Metric::kPodHeld, labels, seconds_of(usage.held));
      add_metric(page_, Metric::kPodIdle, labels, seconds_of(usage.idle));
    };
    for (const auto& [pod, usage] : found->second.pods) add_usage(pod, usage);
    add_usage({}, found->second.unattributed);
  }

  void add_holders(const DeviceUuid& device, const Named& device_labels) {
    const auto found = holders_.find(device);
    if (found == holders_.end()) return;
    for (const auto& holder : found->second) {
      for (const auto& held : holder.held_shares) {
        Named labels =
            concat_labels(device_labels, {{"resource", held.resource.str()}, {"share", held.share}});
        labels = concat_labels(std::move(labels), pod_labels(holder.pod));
        labels.emplace_back("container", held.container);
        add_metric(page_, Metric::kDeviceAllocated, make_labels(labels), 1);
      }
    }
  }

  void add_memory(const DeviceUuid& device, const Named& device_labels) {
    const auto found = attribution_.devices.find(device);
    if (found == attribution_.devices.end() || !found->second.is_known) return;
    const auto add_pod_memory = [&](const PodName& pod, Bytes bytes) {
      add_metric(page_, Metric::kPodMemory, make_labels(concat_labels(device_labels, pod_labels(pod))),
                 bytes.value);
    };
    for (const auto& pod : found->second.pods) add_pod_memory(pod.holder.pod, pod.memory);
    add_pod_memory({}, found->second.unattributed_memory);
  }

  Exposition& page_;
  const Holders& holders_;
  const Attribution& attribution_;
  const UsageAccounting& accounting_;
};

Named labels_of(const health::DeviceView& device, const inventory::Snapshot& snapshot) {
  const auto* gpu = snapshot.find(device.scope.gpu);
  if (gpu == nullptr)
    return {{"gpu", ""}, {"UUID", device.scope.gpu.str()}, {"device", ""}, {"modelName", ""}};
  for (const auto& mig : gpu->mig_devices) {
    if (mig.gpu_instance == device.scope.gpu_instance &&
        mig.compute_instance == device.scope.compute_instance)
      return labels_of(*gpu, mig);
  }
  return labels_of(*gpu);
}

// The first of the faults that withdraw the device, or the beginning of its state.
Time withdrawn_since(const health::DeviceStatus& status) {
  Time since = status.since;
  for (const auto& fault : status.faults) {
    if (fault.effect >= health::Effect::kDrain) since = std::min(since, fault.opened);
  }
  return since;
}

}  // namespace

void add_device_metrics(Exposition& page, const inventory::Snapshot& snapshot, const Holders& holders,
                        const Attribution& attribution, const UsageAccounting& accounting) {
  DevicesPage(page, holders, attribution, accounting).add_snapshot(snapshot);
}

void add_link_metrics(Exposition& page, const inventory::Snapshot& snapshot, const Sample& sample) {
  for (const auto& reading : sample.gpus) {
    const auto* gpu = snapshot.find(reading.uuid);
    if (gpu == nullptr) continue;
    for (const auto& link : reading.links) {
      const Named named =
          concat_labels(labels_of(*gpu), {{"link", std::to_string(link.index)}, {"remote", link.remote}});
      const auto labels = make_labels(named);
      if (link.up) add_metric(page, Metric::kLinkUp, labels, *link.up ? 1 : 0);
      if (link.transmitted) add_metric(page, Metric::kLinkTransmitted, labels, link.transmitted->value);
      if (link.received) add_metric(page, Metric::kLinkReceived, labels, link.received->value);
      for (const auto& [kind, count] : link.errors)
        add_metric(page, Metric::kLinkErrors, make_labels(concat_labels(named, {{"kind", kind}})), count);
    }
  }
}

void add_namespace_metrics(Exposition& page, const UsageAccounting& accounting) {
  for (const auto& [name, usage] : accounting.usage_by_namespace()) {
    const Exposition::Labels labels{{"namespace", name}};
    add_metric(page, Metric::kNamespaceEnergy, labels, static_cast<double>(usage.millijoules) / kMillijoules);
    add_metric(page, Metric::kNamespaceBusy, labels, seconds_of(usage.busy));
    if (name.empty()) continue;
    add_metric(page, Metric::kNamespaceHeld, labels, seconds_of(usage.held));
    add_metric(page, Metric::kNamespaceIdle, labels, seconds_of(usage.idle));
  }
}

void add_forecast_metrics(Exposition& page, const inventory::Snapshot& snapshot,
                          const std::map<DeviceUuid, GpuForecast>& forecasts) {
  for (const auto& gpu : snapshot.gpus) {
    const auto found = forecasts.find(gpu.uuid);
    if (found == forecasts.end()) continue;
    for (std::size_t i = 0; i < kForecastHorizons.size(); ++i) {
      const std::pair<std::string, std::string> horizon("horizon", kForecastHorizons[i].name);
      const Named labels = concat_labels(labels_of(gpu), {horizon});
      add_metric(page, Metric::kGpuForecast, make_labels(labels), tenths(found->second.gpu[i].busy));
      add_metric(page, Metric::kGpuMemoryForecast, make_labels(labels), tenths(found->second.gpu[i].memory));
      for (const auto& [pod, uses] : found->second.pods) {
        const Named of_pod = concat_labels(concat_labels(labels_of(gpu), pod_labels(pod)), {horizon});
        add_metric(page, Metric::kPodForecast, make_labels(of_pod), tenths(uses[i].busy));
      }
    }
  }
}

void add_power_metrics(Exposition& page, const inventory::Snapshot& snapshot,
                       std::span<const GpuPowerLimit> limits) {
  for (const auto& one : limits) {
    const auto* gpu = snapshot.find(one.gpu);
    if (gpu == nullptr) continue;
    if (one.limit)
      add_metric(page, Metric::kPowerLimit,
                 make_labels(concat_labels(labels_of(*gpu), {{"source", one.source}})),
                 one.limit->value / kMilliwatts);
    add_metric(page, Metric::kPowerProblem, make_labels(labels_of(*gpu)), one.has_problem ? 1 : 0);
  }
}

void add_preflight_metrics(Exposition& page, const inventory::Snapshot& snapshot,
                           std::span<const GpuPreflight> preflights) {
  for (const auto& one : preflights) {
    const auto* gpu = snapshot.find(one.gpu);
    if (gpu == nullptr) continue;
    const auto labels = labels_of(*gpu);
    if (one.age) add_metric(page, Metric::kPreflightAge, make_labels(labels), seconds_of(*one.age));
    for (const auto& result : one.results) {
      const auto of_check = concat_labels(labels, {{"check", result.check}, {"peer", result.peer}});
      add_metric(page, Metric::kPreflightResult,
                 make_labels(concat_labels(of_check, {{"result", result.result}})), 1);
      if (result.bytes_per_second)
        add_metric(page, Metric::kPreflightSpeed, make_labels(of_check), *result.bytes_per_second);
    }
  }
}

void add_memory_audit_metrics(Exposition& page, const inventory::Snapshot& snapshot,
                              const MemoryAuditStats& stats) {
  for (const auto& one : stats.containers) {
    const auto* gpu = snapshot.find(one.gpu);
    if (gpu == nullptr) continue;
    const auto names =
        concat_labels(concat_labels(labels_of(*gpu), pod_labels(one.pod)), {{"container", one.container}});
    const auto labels = make_labels(names);
    if (one.limit != Bytes{}) add_metric(page, Metric::kMemoryLimit, labels, one.limit.value);
    if (!one.grade.empty())
      add_metric(page, Metric::kMemoryLimitGrade, make_labels(concat_labels(names, {{"grade", one.grade}})),
                 1);
    if (one.used) add_metric(page, Metric::kMemoryUsed, labels, one.used->value);
  }
  for (const auto& [uuid, memory] : stats.unlisted) {
    const auto* gpu = snapshot.find(uuid);
    if (gpu != nullptr) add_metric(page, Metric::kUnlistedMemory, make_labels(labels_of(*gpu)), memory.value);
  }
  const auto add_count = [&](const char* action, std::uint64_t count) {
    add_metric(page, Metric::kMemoryExceeded, {{"action", action}}, count);
  };
  add_count("warn", stats.counts.warned);
  add_count("kill", stats.counts.killed);
  add_count("evict", stats.counts.evicted);
  add_count("failed", stats.counts.failed);
}

void add_health_metrics(Exposition& page, const health::HealthView& view,
                        const inventory::Snapshot& snapshot) {
  for (const auto& device : view.devices) {
    // A MIG device that left with its GPU has no label that identifies it.
    if (!device.scope.is_whole_gpu() && snapshot.find(device.scope.gpu) == nullptr) continue;
    const Named labels = labels_of(device, snapshot);
    const auto& status = device.status;
    add_metric(page, Metric::kDeviceState,
               make_labels(concat_labels(labels, {{"state", std::string(health::enum_name(status.state))}})),
               1);
    add_metric(page, Metric::kDeviceOffered, make_labels(labels), health::is_offered(device) ? 1 : 0);
    add_metric(page, Metric::kDeviceRelapses, make_labels(labels), status.relapses);
    std::map<std::string, std::uint64_t> classes;
    for (const auto& fault : status.faults)
      ++classes[std::string(health::fault_rule(fault.fault_class).name)];
    for (const auto& [fault_class, count] : classes) {
      add_metric(page, Metric::kDeviceFaults, make_labels(concat_labels(labels, {{"class", fault_class}})),
                 count);
    }
    if (health::is_allocatable(status.state)) continue;
    add_metric(page, Metric::kDeviceQuarantine, make_labels(labels),
               seconds_of(view.at.now - withdrawn_since(status)));
  }
}

namespace {

void add_claim_operation(Exposition& page, const ClaimStats& stats, const char* name, Metric errors,
                         const ClaimStats::Operation& operation) {
  const Exposition::Labels labels{{"driver", stats.driver}, {"operation", name}};
  add_metric(page, Metric::kClaimRequests, labels,
             std::accumulate(operation.durations.begin(), operation.durations.end(), std::uint64_t{0}));
  const auto& info = info_of(Metric::kClaimRequestTime);
  page.add_histogram(info.name, info.help, labels,
                     {stats.duration_bounds, operation.durations, seconds_of(operation.time)});
  add_metric(page, Metric::kClaimRequestsInFlight, labels, operation.in_flight);
  for (const auto& [code, count] : operation.errors) {
    add_metric(page, errors, {{"driver", stats.driver}, {"error_type", code}}, count);
  }
}

void add_claim_metrics(Exposition& page, const ClaimStats& stats) {
  add_claim_operation(page, stats, "prepare", Metric::kClaimPrepareErrors, stats.prepare);
  add_claim_operation(page, stats, "unprepare", Metric::kClaimUnprepareErrors, stats.unprepare);
  for (const auto& [type, count] : stats.prepared_devices) {
    add_metric(page, Metric::kPreparedDevices,
               {{"node", stats.node}, {"driver", stats.driver}, {"device_type", type}}, count);
  }
  add_metric(page, Metric::kPreparedClaims, {}, stats.prepared_claims);
}

}  // namespace

void add_agent_metrics(Exposition& page, const AgentStats& stats) {
  const auto add_seconds = [&](Metric metric, const std::optional<std::chrono::nanoseconds>& value) {
    if (value) add_metric(page, metric, {}, seconds_of(*value));
  };
  add_metric(page, Metric::kDriverCalls, {}, stats.driver_calls);
  add_metric(page, Metric::kDriverCallTime, {}, seconds_of(stats.driver_time));
  add_metric(page, Metric::kDriverCallsHanging, {}, stats.driver_hanging);
  add_metric(page, Metric::kDriverReleased, {}, stats.driver_released ? 1 : 0);
  for (const auto& error : stats.nvml_errors)
    add_metric(page, Metric::kNvmlErrors, {{"function", error.function}, {"code", error.code}}, error.count);
  add_seconds(Metric::kSnapshotAge, stats.snapshot_age);
  add_seconds(Metric::kSampleAge, stats.sample_age);
  add_seconds(Metric::kPodResourcesAge, stats.pod_resources_age);
  add_seconds(Metric::kPodResourcesTime, stats.pod_resources_time);
  add_metric(page, Metric::kPodResourcesErrors, {}, stats.pod_resources_errors);
  add_metric(page, Metric::kSnapshotGeneration, {}, stats.snapshot_generation);
  add_metric(page, Metric::kPodsMoved, {}, stats.pods_evicted);
  if (stats.rebalanced) {
    const auto add_pods = [&](const char* result, std::uint64_t count) {
      add_metric(page, Metric::kPodsRebalanced, {{"result", result}}, count);
    };
    add_pods("evicted", stats.rebalanced->evicted);
    add_pods("refused", stats.rebalanced->refused);
    add_pods("dry_run", stats.rebalanced->dry_run);
  }
  if (stats.rejected_pods_deleted)
    add_metric(page, Metric::kRejectedPodsDeleted, {}, *stats.rejected_pods_deleted);
  if (stats.repairs) {
    const auto add_resets = [&](const char* result, std::uint64_t count) {
      add_metric(page, Metric::kGpuResets, {{"result", result}}, count);
    };
    add_resets("done", stats.repairs->done);
    add_resets("failed", stats.repairs->failed);
    add_resets("dry_run", stats.repairs->dry_run);
    add_metric(page, Metric::kRebootRequested, {}, stats.repairs->is_reboot_requested ? 1 : 0);
  }
  if (stats.mig_reconfigurations) {
    add_metric(page, Metric::kMigReconfigurations, {{"reason", "demand"}},
               stats.mig_reconfigurations->for_demand);
    add_metric(page, Metric::kMigReconfigurations, {{"reason", "return"}},
               stats.mig_reconfigurations->returned);
  }
  if (stats.containers_cut_off)
    add_metric(page, Metric::kContainersWithoutDeviceAccess, {}, *stats.containers_cut_off);
  if (stats.host_engine_connected)
    add_metric(page, Metric::kHostEngineConnected, {}, *stats.host_engine_connected ? 1 : 0);
  if (stats.permissions_missing) add_metric(page, Metric::kRightsMissing, {}, *stats.permissions_missing);
  for (const auto& call : stats.kubelet_calls) {
    const auto add_calls = [&](const char* result, std::uint64_t count) {
      add_metric(page, Metric::kKubeletCalls,
                 {{"resource", call.resource}, {"call", call.call}, {"result", result}}, count);
    };
    add_calls("answered", call.succeeded);
    add_calls("refused", call.failed);
    add_metric(page, Metric::kKubeletCallTime, {{"resource", call.resource}, {"call", call.call}},
               seconds_of(call.time));
  }
  for (const auto& [resource, score] : stats.placement_scores) {
    add_metric(page, Metric::kPlacementScore, {{"resource", resource}}, static_cast<double>(score));
  }
  if (stats.claims) add_claim_metrics(page, *stats.claims);
}

}  // namespace gpulet::metrics
