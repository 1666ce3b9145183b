// `gpulet scheduler`: the extender's Events, metrics and HTTP interface.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/loop.h"
#include "base/result.h"
#include "extender/ask_monitor.h"
#include "extender/cluster_watcher.h"
#include "http/message.h"
#include "k8s/event_recorder.h"
#include "scheduler/core/decision.h"
#include "scheduler/core/explain.h"
#include "scheduler/core/extender_json.h"
#include "scheduler/core/preemption.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::extender {

// Reports problems to a Pod's owner as Events: an annotation is malformed, or the Pod fits nowhere, and why.
// kube-scheduler asks about a pending Pod again and again: the same message repeats every kRepeatSame, a
// different one every kRepeatOther. Pure but for the clock that is passed in.

inline constexpr Duration kRepeatSame = std::chrono::minutes(10);
inline constexpr Duration kRepeatOther = std::chrono::minutes(1);
inline constexpr std::size_t kMaxSentEvents = 4096;  // by Pod and reason

inline constexpr const char* kMalformedReason = "GpuRequestMalformed";
inline constexpr const char* kUnschedulableReason = "GpuUnschedulable";

class PodEventReporter {
 public:
  explicit PodEventReporter(std::function<void(k8s::Event)> send) : send_(std::move(send)) {}

  void report_malformed(const scheduler::PodRequest& pod, Time now);
  // No candidate node passes.
  void report_unschedulable(const scheduler::PodRequest& pod, const scheduler::ExtenderArgs& args,
                            std::span<const scheduler::ExtenderArgs::FailedNode> failed, Time now);

  std::uint64_t sent_count() const { return sent_; }

 private:
  void send_event(const scheduler::PodRequest& pod, const char* reason, std::string message, Time now);

  struct SentEvent {
    std::string message;
    Time at;
  };
  std::function<void(k8s::Event)> send_;
  std::map<std::pair<std::string, std::string>, SentEvent> sent_events_;  // by Pod UID and reason
  std::uint64_t sent_ = 0;
};

// "no node of 5 fits: n1 and 2 more: …": the reasons, most frequent first, each with a count and one node.
std::string unschedulable_message(const scheduler::ExtenderArgs& args,
                                  std::span<const scheduler::ExtenderArgs::FailedNode> failed);

// The extender's own metrics in Prometheus' format, in server_metrics.cpp.

// Upper bounds of the histogram buckets in microseconds.
inline constexpr std::array<std::uint64_t, 12> kBucketBoundsMicros = {
    50, 100, 250, 500, 1'000, 2'500, 5'000, 10'000, 25'000, 50'000, 100'000, 250'000};

class Histogram {
 public:
  void record_duration(Duration took);
  // Samples with `labels` ("verb=\"filter\""), named after the family.
  std::string histogram_text(const std::string& family, const std::string& labels) const;

 private:
  std::array<std::uint64_t, kBucketBoundsMicros.size()> counts_{};  // per bucket, not cumulative
  std::uint64_t count_ = 0;
  std::chrono::duration<double> sum_{};
};

struct ExtenderMetrics {
  Histogram filter, prioritize, preempt;
  std::uint64_t passed = 0, unpublished = 0, not_scored = 0;  // nodes
  std::map<scheduler::RejectReason, std::uint64_t> rejected;  // nodes
  std::uint64_t kept = 0, corrected = 0, dropped = 0;         // nodes proposed for preemption
  std::uint64_t unschedulable = 0;                            // filter requests for which no node passed
  std::uint64_t bad_requests = 0, malformed = 0, events = 0;
  std::uint64_t not_asked = 0;  // Pods
  std::uint64_t waiting = 0;    // filter requests that waited for the news that victims have left
};

struct ClusterSizes {
  std::size_t nodes = 0, pods = 0, pools = 0, kinds = 0;
  std::uint64_t lists = 0, objects_rejected = 0;
  bool ready = false;
};

// Prometheus' text format 0.0.4.
std::string metrics_text(const ExtenderMetrics& numbers, const ClusterSizes& sizes);

// The extender's HTTP interface, for kube-scheduler and for people:
//
//   POST /filter, /prioritize   extender v1 (scheduler/core/extender_json.h)
//   POST /preempt               extender v1 (scheduler/core/preemption_json.h)
//   GET  /explain?namespace=&pod=[&format=json]
//   GET  /metrics, /healthz, /readyz
//
// Responses come from the cached cluster state at once, with two exceptions: /explain fetches an unbound Pod
// from the API server, and /filter waits while victims of its Pod are known to leave.

// kube-scheduler may ask about a Pod as soon as it knows that the victims have left, before the extender's
// own watch says so. A refusal then would evict others: the filter of such a Pod waits so long for that news.
// Within the extender's timeout in kube-scheduler, 2 s as shipped.
inline constexpr Duration kVictimNewsWait = std::chrono::milliseconds(500);
// Of requests that wait, a copy is held. Any further or larger one is answered at once: 5,000 node names are
// 150 KB.
inline constexpr std::size_t kMaxWaitingFilters = 16;
inline constexpr std::size_t kMaxWaitingBodyBytes = 1u << 20;

struct ServiceDependencies {
  Loop& loop;
  scheduler::ClusterState& cluster;
  ClusterWatcher& watcher;
  std::function<void(k8s::Event)> send_event;              // for a Pod; may be empty
  AskRecordStore* record = nullptr;                        // what replicas share (ask_monitor.h); null: none
  std::set<std::string> schedulers = {kDefaultScheduler};  // that should ask about their Pods
};

// Loop thread only.
class ExtenderService final : public http::RequestHandler {
 public:
  // `policy`: for Pods without one of their own or their namespace. `nodes_to_score`: if more nodes pass,
  // only that many of the best are returned, and kube-scheduler scores those alone: most of an extender's
  // cost is reading and writing node names. 0 returns all, as for a Pod with node preferences.
  ExtenderService(ServiceDependencies ports, std::string policy,
                  std::size_t nodes_to_score = scheduler::kNodesToScore, AskTiming asks = {});

  void handle_request(const http::Request& request, Time now, const http::ResponseCallback& reply) override;
  // ClusterWatcher's `bound` and `left`.
  void on_pod_bound(const scheduler::PodRequest& pod);
  void on_pod_left();
  // From now on /readyz reports not ready.
  void begin_shutdown() { shutting_down_ = true; }

  const ExtenderMetrics& metric_values() const { return metrics_; }

 private:
  using Handler = http::Response (ExtenderService::*)(const http::Request&);
  http::Response answer_scheduler(const http::Request& request, Handler handler, Histogram& durations);
  struct WaitingFilter;
  void handle_filter(const http::Request& request, const http::ResponseCallback& reply);
  http::Response filter_nodes(const scheduler::ExtenderArgs& args);
  bool waits_for_victims(const scheduler::ExtenderArgs& args);
  void answer_waiting(WaitingFilter& waiting);
  http::Response handle_prioritize(const http::Request& request);
  http::Response handle_preempt(const http::Request& request);
  void handle_explain(const http::Request& request, const http::ResponseCallback& reply);
  http::Response explain_pod(const scheduler::PodRequest& pod, bool json);
  http::Response handle_readyz() const;
  http::Response handle_metrics();

  // Those of `passed` that kube-scheduler should score.
  std::vector<std::size_t> select_best_nodes(const scheduler::ExtenderArgs& args,
                                             const scheduler::PodRequest& pod, std::string_view policy,
                                             std::vector<std::size_t> passed);

  // The Pod's policy, its namespace's, or the default; a malformed one is added to the Pod's malformed
  // annotations.
  scheduler::SelectedPolicy select_policy(scheduler::PodRequest& pod) const;

  // A filter request that waits for the news that Pods have left its Pod's nominated node.
  struct WaitingFilter {
    // `accepted_body`: one that has been parsed without an error.
    WaitingFilter(std::string accepted_body, Time begun_at, http::ResponseCallback callback)
        : body(std::move(accepted_body)),
          args(*scheduler::ExtenderArgs::parse_body(body)),
          begun(begun_at),
          reply(std::move(callback)) {}

    const std::string body;
    const scheduler::ExtenderArgs args;  // views into `body`
    Time begun;
    http::ResponseCallback reply;
    Subscription deadline;
  };

  ServiceDependencies dependencies_;
  const std::string policy_;
  const std::size_t nodes_to_score_;
  scheduler::Scorer scorer_;
  PodEventReporter events_;
  AskMonitor asks_;
  ExtenderMetrics metrics_;
  std::list<WaitingFilter> waiting_;
  scheduler::RecentPreemptions preemptions_;
  bool shutting_down_ = false;
};

}  // namespace gpulet::extender
