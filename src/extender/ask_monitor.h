// Notices that kube-scheduler binds Pods with GPUs without asking the extender: it is not configured, cannot
// reach the Service, or lacks a resource in managedResources. As the extender is `ignorable`, nothing fails
// then, and nobody would know.
//
// kube-scheduler asks any replica, and the replicas share one ConfigMap: when they were last asked by which
// scheduler about which resource, and which Pod was last bound without that.
//
//     asked.default-scheduler.nvidia.com_gpu: 2026-01-31T12:00:00.000Z
//     missed.default-scheduler.nvidia.com_gpu: 2026-01-31T12:00:00.000Z default-scheduler nvidia.com/gpu
//     team/a
//
// A Pod counts as missed when no replica was asked about its scheduler and resource for kAskWindow before it
// was bound. That is longer than kube-scheduler may wait between its decision and the binding (the plugin
// VolumeBinding: 10 minutes), so that a restarted replica, or one that another was asked instead of, is no
// false alarm. Pods that name their node themselves, and those of other schedulers, are not judged.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "k8s/event_recorder.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::extender {

inline constexpr const char* kDefaultScheduler = "default-scheduler";
inline constexpr const char* kNotAskedReason = "GpuSchedulerNotAsked";
// The ConfigMap's name is that of the extender's Service with this suffix.
inline constexpr const char* kRecordSuffix = "-record";
inline constexpr std::size_t kMaxAskKeys = 256;       // schedulers times resources
inline constexpr std::size_t kMaxUnjudgedPods = 256;  // further ones are not judged

// A Pod that was bound without a question.
struct MissedPod {
  WallTime at{};
  std::string scheduler, resource, pod;  // "team/train"
  friend bool operator==(const MissedPod&, const MissedPod&) = default;
};

// What the replicas share, by key ("default-scheduler.nvidia.com_gpu").
struct AskRecord {
  std::map<std::string, WallTime> asked;
  std::map<std::string, MissedPod> missed;
};

// The ConfigMap's `data`; entries of another form are ignored. Pure.
AskRecord parse_ask_record(const std::map<std::string, std::string>& data);
// The missed Pods after which no replica was asked by the same scheduler about the same resource. Pure.
std::vector<MissedPod> current_misses(const AskRecord& record);

// Reads and writes the ConfigMap, which must exist: needs get and patch on it. Loop's thread only.
class AskRecordStore {
 public:
  virtual ~AskRecordStore() = default;
  // Retried until the API server accepts it.
  virtual void set_entry(std::string key, std::string value) = 0;
  // Calls `done` once, from the loop, as soon as the API server answers. A second call replaces the first.
  virtual void read_record(std::function<void(AskRecord)> done) = 0;

  static std::unique_ptr<AskRecordStore> start_store(Loop& loop, k8s::ClientConfig access,
                                                     const std::string& config_map,
                                                     k8s::SendTiming timing = {});
};

struct AskTiming {
  Duration window = std::chrono::minutes(15);
  Duration record_every = std::chrono::minutes(5);   // a third of the window, so that two writes may be late
  Duration settle = std::chrono::seconds(30);        // until another replica's record has arrived
  Duration report_every = std::chrono::minutes(10);  // Events, by scheduler and resource
};

struct AskMonitorPorts {
  Loop& loop;
  std::function<void(k8s::Event)> send_event;  // may be empty
  AskRecordStore* record = nullptr;            // null: no other process is asked
};

// Loop's thread only.
class AskMonitor {
 public:
  // `schedulers`: spec.schedulerName of the Pods that should be asked about.
  AskMonitor(AskMonitorPorts ports, std::set<std::string> schedulers, AskTiming timing = {});
  AskMonitor(const AskMonitor&) = delete;

  // A scheduler asked about the Pod.
  void on_asked(const scheduler::PodRequest& pod);
  // The Pod was bound just now. `resources`: those of its requests that its node's agent offers.
  void on_bound(const scheduler::PodRequest& pod, const std::set<std::string>& resources);

  // Pods that were bound without a question.
  std::uint64_t missed_count() const { return missed_count_; }

 private:
  struct BoundPod {
    PodRef pod;
    std::string node, scheduler;
    std::map<std::string, std::string> resources;  // by key
    WallTime at{};
    Time judged_at;
  };
  void judge_later();
  void judge_pods(const AskRecord& record);
  void report_missed(const BoundPod& pod, const std::string& key, const std::string& resource,
                     const AskRecord& record);

  AskMonitorPorts ports_;
  const std::set<std::string> schedulers_;
  const AskTiming timing_;
  std::map<std::string, WallTime> asked_, recorded_, reported_;  // by key
  std::deque<BoundPod> unjudged_;
  std::uint64_t missed_count_ = 0;
  Subscription next_;
  Lifetime lifetime_;
};

}  // namespace gpulet::extender
