// Samples the GPUs at an interval and keeps the content of the metrics pages; a scrape calls no driver. A GPU
// that hangs costs its own series; while the kubelet is slow or away, the last known device holders stay.
// Loop's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/loop.h"
#include "device_plugin/pod_resources.h"
#include "inventory/snapshot.h"
#include "metrics/aggregator.h"
#include "metrics/attribution.h"
#include "metrics/counters.h"
#include "metrics/gpulet_page.h"
#include "metrics/pods.h"

namespace gpulet::agent {

// The source of samples: the driver (agent/driver/nvml_adapters.h).
class Sampler {
 public:
  virtual ~Sampler() = default;
  struct Sampled {
    metrics::GpuSample gpu;
    metrics::CgroupsByPid cgroups;
  };
  using Done = std::function<void(Result<Sampled>)>;
  // The fields to sample from now on, beside those of attribution.
  virtual void set_fields(std::set<metrics::Field> fields) = 0;
  // Samples the GPU with that index in `snapshot`. Does not block; `done` is called once on the loop, not
  // after destruction. One call at a time per GPU.
  virtual void sample_gpu(inventory::SnapshotPtr snapshot, std::size_t index, Time now, Done done) = 0;
};

struct CollectorSettings {
  Duration interval = std::chrono::seconds(15);  // 0: no sampling
  metrics::Counters counters = metrics::default_counters();
  metrics::PageOptions page{};
  metrics::WindowSizes windows{};
  bool pod_uid = false;     // whether it is on the page
  bool pod_labels = false;  // whether they are on the page, by `patterns`
  metrics::PodLabelPatterns patterns{};
  // Also sampled, for other readers than Prometheus.
  std::set<metrics::Field> extra_fields{};
};

class MetricsCollector {
 public:
  struct Ports {
    Sampler& sampler;
    device_plugin::PodResources& pod_resources;
    // The Pods of this node by UID (metrics::read_pod_uids). Blocks briefly.
    std::function<Result<metrics::PodByUid>()> pod_uids;
    // Called after each sample, not from inside a call of this class.
    std::function<void()> sampled;
    // Every device of every resource that this node serves. Called while Pods hold shares.
    std::function<device_plugin::DevicesByResource()> devices{};
  };
  MetricsCollector(Loop& loop, Ports ports);
  ~MetricsCollector();
  MetricsCollector(const MetricsCollector&) = delete;

  // Takes effect at once; sums stay.
  void apply_settings(CollectorSettings settings);
  // The newest snapshot; null: no driver. The first is sampled at once.
  void set_snapshot(inventory::SnapshotPtr snapshot);
  // `text`: the meaning of the XID.
  void on_xid(const DeviceUuid& gpu, std::optional<unsigned> gpu_instance, std::uint64_t code,
              std::string text);
  // The Pods' labels from the API server; without them the page has none.
  void on_pod_labels(std::map<PodName, std::map<std::string, std::string>> labels);

  // Adds DCGM's metrics and gpulet's own per device; none before the first sample, or without a driver.
  void add_to(metrics::Exposition& page) const;
  // Ages and error counts; the caller adds the rest.
  metrics::AgentStats agent_numbers() const;
  const metrics::Aggregator& aggregator() const { return aggregator_; }
  metrics::Aggregator& aggregator() { return aggregator_; }
  // The containers that hold devices, as last listed by the kubelet; null before the first list.
  const std::vector<ContainerDevices>* containers() const { return containers_at_ ? &containers_ : nullptr; }

 private:
  struct Round;
  void schedule_round();
  void clear_samples();
  void start_round();
  void list_containers();
  void finish_round();
  void finish_if_complete(const std::shared_ptr<Round>& round);
  metrics::Aggregator::PodContext pods_in_round(const Round& round);

  Loop& loop_;
  Ports ports_;
  CollectorSettings settings_;
  metrics::Aggregator aggregator_;
  inventory::SnapshotPtr snapshot_;
  std::shared_ptr<Round> round_;    // in progress
  std::set<DeviceUuid> in_flight_;  // requested, without a result yet
  bool listing_containers_ = false;
  std::vector<ContainerDevices> containers_;  // as last known
  std::optional<Time> containers_at_, sampled_at_;
  std::optional<Duration> list_duration_;  // of the last list
  std::uint64_t list_errors_ = 0;
  metrics::PodByUid uids_;
  std::map<PodName, std::map<std::string, std::string>> labels_;
  Subscription timer_, round_timeout_;
  Lifetime lifetime_;
};

// How long a round waits for missing results; at most half of the interval.
inline constexpr Duration kSampleTimeout = std::chrono::seconds(2);

}  // namespace gpulet::agent
