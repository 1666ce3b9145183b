// Samples the GPUs on an interval of its own and keeps what the pages of metrics are made of; a scrape asks
// nobody. One GPU that hangs costs its own series, a kubelet that is slow or away leaves who holds what as it
// was last known. Loop's thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/loop.h"
#include "inventory/snapshot.h"
#include "kubelet/pod_resources.h"
#include "metrics/counters.h"
#include "metrics/meter.h"
#include "metrics/own_page.h"
#include "metrics/pod_labels.h"
#include "metrics/processes.h"

namespace gpulet::agent {

// Where samples come from: the driver (agent/nvml_sampler.h).
class Sampler {
 public:
  virtual ~Sampler() = default;
  struct Sampled {
    metrics::GpuSample gpu;
    metrics::CgroupsOfProcess cgroups;
  };
  using Done = std::function<void(Result<Sampled>)>;
  // What is asked for from now on, beside what attribution needs.
  virtual void want(std::set<metrics::Field> fields) = 0;
  // The GPU of that index in `snapshot`. Does not block; `done` comes on the loop, once, none after
  // destruction. Not twice at a time for one GPU.
  virtual void sample(inventory::SnapshotPtr snapshot, std::size_t index, Time now, Done done) = 0;
};

struct MetricsSettings {
  Duration interval = std::chrono::seconds(15);  // 0: nothing is sampled
  metrics::Counters counters = metrics::default_counters();
  metrics::PageOptions page{};
  metrics::WindowSizes windows{};
  bool pod_uid = false;     // whether it is shown
  bool pod_labels = false;  // whether they are shown, by `patterns`
  metrics::LabelPatterns patterns{};
  // What else is sampled, for others than Prometheus.
  std::set<metrics::Field> more{};
};

class MetricsCare {
 public:
  struct Ports {
    Sampler& sampler;
    kubelet::PodResources& pod_resources;
    // The Pods of this node by UID (metrics::pods_of_logs). Blocks shortly.
    std::function<Result<metrics::PodUids>()> pods;
    // After each sample. Not from inside a call of this class.
    std::function<void()> sampled;
  };
  MetricsCare(Loop& loop, Ports ports);
  ~MetricsCare();
  MetricsCare(const MetricsCare&) = delete;

  // At once; what is added up stays.
  void set(MetricsSettings settings);
  // The newest; null: no driver is there. The first is sampled at once.
  void on_snapshot(inventory::SnapshotPtr snapshot);
  // `text`: what the XID means.
  void on_xid(const DeviceUuid& gpu, std::optional<unsigned> gpu_instance, std::uint64_t code,
              std::string text);
  // The Pods' labels, as the API server tells them; without them no label is shown.
  void on_pod_labels(std::map<metrics::PodName, std::map<std::string, std::string>> labels);

  // DCGM's metrics and the devices' own. Nothing before the first sample, or without a driver.
  void add_to(metrics::Exposition& page) const;
  // Ages and errors; the rest is not known here.
  metrics::AgentNumbers numbers() const;
  const metrics::Meter& meter() const { return meter_; }
  // Who holds what, as the kubelet last said; null before its first answer.
  const std::vector<kubelet::ContainerDevices>* containers() const {
    return containers_at_ ? &listed_ : nullptr;
  }

 private:
  struct Round;
  void arm();
  void forget();
  void begin();
  void ask_pods();
  void finish();
  void conclude(const std::shared_ptr<Round>& round);
  metrics::Meter::Pods pods_of(const Round& round);

  Loop& loop_;
  Ports ports_;
  MetricsSettings settings_;
  metrics::Meter meter_;
  inventory::SnapshotPtr snapshot_;
  std::shared_ptr<Round> round_;  // under way
  std::set<DeviceUuid> out_;      // asked, and not answered yet
  bool pods_out_ = false;
  std::vector<metrics::ContainerDevices> containers_;  // as last known
  std::vector<kubelet::ContainerDevices> listed_;
  std::optional<Time> containers_at_, sampled_at_;
  std::optional<Duration> pods_took_;  // for the last answer
  std::uint64_t pod_errors_ = 0;
  metrics::PodUids uids_;
  std::map<metrics::PodName, std::map<std::string, std::string>> labels_;
  Subscription timer_, patience_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// A round waits so long for who has not answered, or half of the interval if that is less.
inline constexpr Duration kSamplePatience = std::chrono::seconds(2);

}  // namespace gpulet::agent
