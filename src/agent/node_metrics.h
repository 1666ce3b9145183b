// The node's metrics, wired: the settings of `gpulet.metrics`, the counters file followed as it changes, the
// driver's samples, and everything else that goes onto the page of metrics. Loop's thread only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/agent.h"
#include "agent/counters_source.h"
#include "agent/metrics_care.h"
#include "agent/nvml_driver.h"
#include "agent/nvml_sampler.h"
#include "agent/pod_labels.h"
#include "config/config.h"
#include "kubelet/calls.h"

namespace gpulet::agent {

// While somebody watches the node's GPUs live, they are measured so often.
inline constexpr Duration kWatchedInterval = std::chrono::seconds(1);

class NodeMetrics {
 public:
  // `node`: what the label of the host says. `more`: what is sampled beside what the page shows. `sampled`:
  // after each sample.
  NodeMetrics(Loop& loop, Reporter& reporter, std::string node, std::set<metrics::Field> more,
              std::function<void()> sampled);

  // Measures by these from now on; what was added up begins anew. They outlive it, or the next detach().
  void attach(NvmlDriver& driver, kubelet::PodResources& pod_resources, const config::Config& config);
  void detach();
  // What is bad among counters, devices and patterns of labels is told once, and what was in force before it
  // stays; at the start, the defaults.
  void apply(const config::Config& config);
  // The API server, once it is known: for the Pods' labels, and for counters out of a ConfigMap.
  void set_access(const cluster::Access& access);
  void watch(bool watched);  // whether somebody watches
  void on_snapshot(const inventory::SnapshotPtr& snapshot);

  // What others count.
  struct Counts {
    std::map<ResourceName, kubelet::ResourceCalls> kubelet;
    std::uint64_t pods_moved = 0;
    std::optional<std::size_t> rights_missing{};
  };
  // All but what status_pages() says itself.
  void add_to(metrics::Exposition& page, const State& state, const health::ViewPtr& view,
              const Counts& counts) const;
  // Null while detached.
  const MetricsCare* care() const { return care_.get(); }

 private:
  template <class Value>
  void take(Value& mine, Result<Value> now, std::string& told);
  void follow_pod_labels();
  void on_sampled();
  void set();

  Loop& loop_;
  Reporter& reporter_;
  const std::string node_;
  const std::set<metrics::Field> more_;
  std::function<void()> sampled_;
  config::MetricsSettings settings_;
  CountersSource counters_;
  metrics::Shown shown_;
  metrics::LabelPatterns patterns_;
  std::string shown_error_, patterns_error_;  // as told
  std::unique_ptr<cluster::Reader> reader_;
  std::unique_ptr<PodLabels> pod_labels_;
  bool watched_ = false;
  inventory::SnapshotPtr snapshot_;
  std::optional<Time> snapshot_at_;
  NvmlDriver* driver_ = nullptr;
  std::unique_ptr<NvmlSampler> sampler_;
  std::unique_ptr<MetricsCare> care_;
};

}  // namespace gpulet::agent
