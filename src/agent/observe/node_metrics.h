// Which metrics are served: from a file, or from the key `metrics` of a ConfigMap, reloaded when it changes.
// An invalid list is reported once, and the previous one stays in force; at the start, dcgm-exporter's
// defaults. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/driver/nvml_adapters.h"
#include "agent/driver/nvml_driver.h"
#include "agent/node/agent.h"
#include "agent/node/ports.h"
#include "agent/observe/claim_status.h"
#include "agent/observe/host_engine_sampler.h"
#include "agent/observe/limit_status.h"
#include "agent/observe/metrics_collector.h"
#include "agent/observe/power_status.h"
#include "agent/observe/usage_store.h"
#include "agent/remediation/gpu_repairer.h"
#include "agent/remediation/pod_device_index.h"
#include "base/file_watch.h"
#include "config/config.h"
#include "device_plugin/allocation.h"
#include "k8s/watcher.h"
#include "metrics/counters.h"

namespace gpulet::agent {

class CountersSource {
 public:
  // `changed` is called after the counters have changed, not from inside a call.
  CountersSource(Loop& loop, Reporter& reporter, std::function<void()> changed);

  // `config_map` ("namespace:name") takes precedence over the file; both empty: the defaults.
  void set_source(const std::string& file, const std::string& config_map);
  // A ConfigMap is read from this API server; it needs get, list and watch on configmaps in its namespace.
  void set_access(k8s::ClientConfig access);

  const metrics::Counters& counters() const { return counters_; }

 private:
  void watch_source();
  void watch_counters_file();
  void watch_config_map();
  void reread_file();
  void use_counters(const Result<metrics::Counters>& counters, const std::string& where);

  Loop& loop_;
  Reporter& reporter_;
  std::function<void()> changed_;
  std::optional<k8s::ClientConfig> access_;
  std::string file_, config_map_;
  metrics::Counters counters_ = metrics::default_counters();
  std::string reported_error_;
  std::unique_ptr<FileWatcher> file_watch_;
  std::unique_ptr<k8s::ObjectWatcher> config_map_watch_;
};

// The node's metrics: joins the settings of `gpulet.metrics`, the counters, the driver's samples and the
// agent's own numbers into the page of metrics. Loop's thread only.

// The sampling interval while a client watches the node live.
inline constexpr Duration kWatchedInterval = std::chrono::seconds(1);

// What other parts of the agent count and what keeps them from serving, for the pages.
struct NodeCounts {
  std::map<ResourceName, device_plugin::ResourceCalls> kubelet;
  std::uint64_t pods_evicted = 0;
  std::optional<metrics::RebalanceCounts> rebalanced{};
  std::optional<std::uint64_t> rejected_pods_deleted{};
  std::optional<std::size_t> permissions_missing{};
  std::optional<metrics::ClaimStats> claims{};
  ClaimStatus claim_status{};
  std::optional<metrics::MemoryAuditStats> memory_audit{};  // while limits are audited
  std::vector<std::string> problems{};  // why the agent is not ready, one line each: AgentStatus::problems()
  std::optional<MemoryLimitStatus> memory_limit{};  // where the node wants memory limits
  // agent/remediation/cut_off_pods.h
  std::optional<std::vector<std::string>> containers_cut_off{};
  std::optional<RepairCounts> repairs{};  // where gpulet.repair is enabled
  std::vector<GpuPowerStatus> power{};    // of GPUs whose limit the agent sets, or cannot
  std::optional<metrics::MigReconfigurations> mig_reconfigurations{};  // with gpulet.mig.onDemand
  std::vector<metrics::GpuPreflight> preflights{};                     // by this agent
};

class NodeMetrics {
 public:
  // `node`: value of the host label. `more`: fields sampled beside those of the page. `sampled` is called
  // after each sample. `devices`: MetricsCollector::Ports.
  NodeMetrics(Loop& loop, Reporter& reporter, std::string node, std::set<metrics::Field> more,
              std::function<void()> sampled, std::function<device_plugin::DevicesByResource()> devices);

  // Where sums are kept over restarts; an empty directory: nowhere.
  void set_state_dir(const std::string& directory) { usage_.set_state_dir(directory); }
  // Samples through these from now on; sums go on. They outlive this, or the next detach_driver().
  void attach_driver(NvmlDriver& driver, device_plugin::PodResources& pod_resources,
                     const config::Config& config);
  void detach_driver();
  // Invalid counters, devices or label patterns are reported once, and the previous ones stay in force; at
  // the start, the defaults.
  void apply_metrics_config(const config::Config& config);
  // The API server, for the Pods' labels and for counters of a ConfigMap.
  void set_access(const k8s::ClientConfig& access);
  void set_watched(bool watched);  // whether a client watches live
  void set_snapshot(const inventory::SnapshotPtr& snapshot);

  // Adds all metrics but those of build_status_pages().
  void add_to(metrics::Exposition& page, const AgentStatus& state, const health::HealthViewPtr& view,
              const NodeCounts& counts) const;
  // When the sums began; absent before the first attach_driver().
  std::optional<WallTime> usage_since() const { return usage_.since(); }
  // Null while detached.
  const MetricsCollector* collector() const { return collector_.get(); }

 private:
  template <class Value>
  void replace_if_valid(Value& mine, Result<Value> now, std::string& reported);
  void watch_pod_labels();
  void on_sampled();
  void push_settings();

  Loop& loop_;
  Reporter& reporter_;
  const std::string node_;
  const std::set<metrics::Field> extra_fields_;
  std::function<void()> sampled_;
  std::function<device_plugin::DevicesByResource()> devices_;
  config::MetricsSettings settings_;
  std::string driver_root_;
  CountersSource counters_;
  metrics::DeviceFilter device_filter_;
  metrics::PodLabelPatterns patterns_;
  std::string device_filter_error_, patterns_error_;  // as reported
  std::unique_ptr<k8s::ObjectReader> reader_;
  std::unique_ptr<PodLabelCache> pod_labels_;
  bool watched_ = false;
  inventory::SnapshotPtr snapshot_;
  std::optional<Time> snapshot_at_;
  NvmlDriver* driver_ = nullptr;
  std::unique_ptr<NvmlSampler> sampler_;
  std::unique_ptr<HostEngineSampler> host_engine_;
  std::unique_ptr<MetricsCollector> collector_;
  UsageStore usage_;  // reads `collector_` when it is destroyed
};

}  // namespace gpulet::agent
