// The node's metrics, wired: the settings of `gpulet.metrics`, the counters file followed as it changes, the
// driver's samples, and everything else that goes onto the page of metrics. Loop's thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "agent/agent.h"
#include "agent/metrics_care.h"
#include "agent/nvml_driver.h"
#include "agent/nvml_sampler.h"
#include "base/file_watch.h"
#include "config/config.h"

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
  // A counters file that is bad is told once, and the one before stays in force; at the start, the defaults.
  void apply(const config::Config& config);
  void watch(bool watched);  // whether somebody watches
  void on_snapshot(const inventory::SnapshotPtr& snapshot);

  // All but what status_pages() says itself.
  void add_to(metrics::Exposition& page, const State& state, const health::ViewPtr& view) const;
  // Null while detached.
  const MetricsCare* care() const { return care_.get(); }

 private:
  void follow_counters();
  void read_counters();
  void set();

  Loop& loop_;
  Reporter& reporter_;
  const std::string node_;
  const std::set<metrics::Field> more_;
  std::function<void()> sampled_;
  config::MetricsSettings settings_;
  metrics::Counters counters_ = metrics::default_counters();
  std::string counters_file_, counters_error_;
  std::unique_ptr<FileWatch> counters_watch_;
  bool watched_ = false;
  inventory::SnapshotPtr snapshot_;
  std::optional<Time> snapshot_at_;
  NvmlDriver* driver_ = nullptr;
  std::unique_ptr<NvmlSampler> sampler_;
  std::unique_ptr<MetricsCare> care_;
};

}  // namespace gpulet::agent
