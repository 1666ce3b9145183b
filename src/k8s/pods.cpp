#include "k8s/pods.h"

#include <algorithm>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>

#include "base/dns_name.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "k8s/api_client.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;
using Kind = EvictionUpdate::Kind;

constexpr int kNotFound = 404, kConflict = 409, kTooManyRequests = 429;

class SequentialEviction final : public Eviction {
 public:
  // An empty uid matches any Pod of that name.
  struct Target {
    std::string pod, uid;
  };
  SequentialEviction(Loop& loop, ClientConfig access, std::vector<Target> pods, UpdateCallback on_update,
                     EvictionTiming timing)
      : loop_(loop),
        node_(access.node_name),
        client_(loop, std::move(access), timing.request_limit),
        on_update_(std::move(on_update)) {
    auto seed = static_cast<std::uint64_t>(loop.now().time_since_epoch().count());
    for (auto& pod : pods) {
      evictions_.push_back(std::make_unique<PodState>(std::move(pod), Backoff(timing.backoff, seed++)));
      ready_.push_back(evictions_.back().get());
    }
    next_ = loop_.after(Duration::zero(), [this] { send_next_request(); });
  }

 private:
  enum class State { kUnread, kRead, kRequested, kFinished };
  struct PodState {
    PodState(Target pod_wanted, Backoff waits)
        : pod(std::move(pod_wanted.pod)), target(std::move(pod_wanted.uid)), backoff(waits) {}
    std::string pod, target;
    Backoff backoff;
    State state = State::kUnread;
    std::string uid;  // of the Pod as read
    std::optional<EvictionUpdate> reported;
    Subscription retry;
  };

  // One request at a time. All Pods are read before the first eviction.
  void send_next_request() {
    if (busy_) return;
    if (ready_.empty()) return client_.close_connection();
    PodState& eviction = *ready_.front();
    ready_.pop_front();
    const auto name = text::split(eviction.pod, '/');
    if (name.size() != 2 || !is_dns_label(name[0]) || !is_dns_subdomain(name[1]))
      return queue_update(eviction, Kind::kRefused, "not the name of a Pod");
    busy_ = true;
    const std::string path = "/api/v1/namespaces/" + name[0] + "/pods/" + name[1];
    if (eviction.state == State::kUnread) {
      client_.send_request({.method = "GET", .path = path},
                           [this, &eviction](const Result<http::ClientResponse>& response) {
                             busy_ = false;
                             on_pod_read(eviction, response);
                           });
      return;
    }
    const json body = {{"apiVersion", "policy/v1"},
                       {"kind", "Eviction"},
                       {"metadata", {{"namespace", name[0]}, {"name", name[1]}}},
                       {"deleteOptions", {{"preconditions", {{"uid", eviction.uid}}}}}};
    client_.send_request({.method = "POST",
                          .path = path + "/eviction",
                          .content_type = "application/json",
                          .body = serialize_json(body)},
                         [this, &eviction](const Result<http::ClientResponse>& response) {
                           busy_ = false;
                           on_eviction_response(eviction, response);
                         });
  }

  void on_pod_read(PodState& eviction, const Result<http::ClientResponse>& response) {
    if (!response) return retry_later(eviction, response.error().full_message());
    if (response->status == kNotFound) return queue_update(eviction, Kind::kGone);
    if (response->status != 200)
      return retry_later(eviction,
                         describe_response(*response) + missing_permission(*response, "get on pods"));
    const auto pod = parse_json(response->body);
    const auto& metadata = json_member(pod, "metadata");
    eviction.uid = json_text(json_member(metadata, "uid"));
    if (eviction.uid.empty())
      return retry_later(eviction, "the API server returned something that is not a Pod");
    // Another Pod has the name by now.
    if (!eviction.target.empty() && eviction.uid != eviction.target)
      return queue_update(eviction, Kind::kGone);
    if (json_text(json_member(json_member(pod, "spec"), "nodeName")) != node_)
      return queue_update(eviction, Kind::kGone);
    if (json_member(json_member(metadata, "annotations"), kMirrorPod).is_string()) {
      return queue_update(eviction, Kind::kRefused,
                          "it is a static Pod, which the kubelet runs from a file on the node");
    }
    if (json_member(metadata, "deletionTimestamp").is_string())
      return queue_update(eviction, Kind::kTerminating);
    eviction.state = State::kRead;
    eviction.backoff.reset();
    release();
    send_next_request();
  }

  void on_eviction_response(PodState& eviction, const Result<http::ClientResponse>& response) {
    if (!response) return retry_later(eviction, response.error().full_message());
    const int status = response->status;
    if (status / 100 == 2) return queue_update(eviction, Kind::kTerminating);
    if (status == kNotFound) return queue_update(eviction, Kind::kGone);
    if (status == kConflict) eviction.state = State::kUnread;  // another Pod may have the name: read again
    const bool may_change = status >= 500 || status == 401 || status == 403 || status == 408 ||
                            status == kConflict || status == kTooManyRequests;
    if (!may_change) return queue_update(eviction, Kind::kRefused, describe_response(*response));
    retry_later(eviction,
                describe_response(*response) + missing_permission(*response, "create on pods/eviction"));
  }

  static std::string missing_permission(const http::ClientResponse& response, const std::string& right) {
    return response.status == 403 ? " (the agent needs " + right + ")" : "";
  }

  void retry_later(PodState& eviction, std::string why) {
    eviction.retry = loop_.after(eviction.backoff.next_delay(), [this, &eviction] {
      ready_.push_back(&eviction);
      send_next_request();
    });
    queue_update(eviction, Kind::kWaiting, std::move(why));
  }

  void release() {
    if (std::ranges::any_of(evictions_, [](const auto& one) { return one->state == State::kUnread; })) return;
    for (const auto& one : evictions_) {
      if (one->state != State::kRead) continue;
      one->state = State::kRequested;
      ready_.push_back(one.get());
    }
  }

  void queue_update(PodState& eviction, Kind kind, std::string why = {}) {
    if (kind != Kind::kWaiting) eviction.state = State::kFinished;
    // If one Pod cannot be evicted, evicting the others is useless.
    if (kind == Kind::kRefused) {
      ready_.clear();
      for (const auto& one : evictions_) {
        one->state = State::kFinished;
        one->retry.reset();
      }
    }
    release();
    next_ = loop_.after(Duration::zero(), [this] { send_next_request(); });
    EvictionUpdate update{eviction.pod, kind, std::move(why)};
    if (eviction.reported == update) return;
    eviction.reported = update;
    unreported_.push_back(std::move(update));
    delivery_ = loop_.after(Duration::zero(), [this] { deliver_next_update(); });
  }

  // In its own turn of the loop, and as the last action: the callback may destroy this object and the client.
  void deliver_next_update() {
    const EvictionUpdate update = std::move(unreported_.front());
    unreported_.pop_front();
    if (!unreported_.empty()) delivery_ = loop_.after(Duration::zero(), [this] { deliver_next_update(); });
    const UpdateCallback callback = on_update_;
    callback(update);
  }

  Loop& loop_;
  const std::string node_;
  ApiClient client_;
  UpdateCallback on_update_;
  std::vector<std::unique_ptr<PodState>> evictions_;
  std::deque<PodState*> ready_;
  bool busy_ = false;
  std::deque<EvictionUpdate> unreported_;
  Subscription next_, delivery_;
};

}  // namespace

std::unique_ptr<Eviction> Eviction::start_eviction(Loop& loop, ClientConfig access,
                                                   std::vector<std::string> pods, UpdateCallback on_update,
                                                   EvictionTiming timing) {
  std::vector<SequentialEviction::Target> wanted;
  for (auto& pod : pods) wanted.push_back({std::move(pod), ""});
  return std::make_unique<SequentialEviction>(loop, std::move(access), std::move(wanted),
                                              std::move(on_update), timing);
}

std::unique_ptr<Eviction> Eviction::start_eviction(Loop& loop, ClientConfig access, std::vector<PodRef> pods,
                                                   UpdateCallback on_update, EvictionTiming timing) {
  std::vector<SequentialEviction::Target> wanted;
  for (auto& pod : pods) wanted.push_back({pod.name_space + "/" + pod.name, std::move(pod.uid)});
  return std::make_unique<SequentialEviction>(loop, std::move(access), std::move(wanted),
                                              std::move(on_update), timing);
}

namespace {

using nlohmann::json;
using Outcome = RetryingSender::Outcome;
using Values = std::map<std::string, std::optional<std::string>>;

class AnnotationWriter final : public PodAnnotations {
 public:
  AnnotationWriter(Loop& loop, ClientConfig access, SendTiming timing)
      : loop_(loop),
        backoff_(timing.backoff),
        seed_(static_cast<std::uint64_t>(loop.now().time_since_epoch().count())),
        sending_(loop, std::move(access), timing, "the annotations of a Pod", [this] { update_next_pod(); }) {
  }

  Status set_annotation(const PodRef& pod, const std::string& key,
                        std::optional<std::string> value) override {
    if (!is_dns_label(pod.name_space) || !is_dns_subdomain(pod.name) || pod.uid.empty()) {
      return fail(Code::kInvalidArgument, "not the name of a Pod", pod.name_space + "/" + pod.name);
    }
    if (value) value = truncate_utf8(std::move(*value), kMaxAnnotationBytes);
    auto& noted = pods_[pod];
    if (!noted) noted = std::make_shared<AnnotatedPod>(AnnotatedPod{pod, Backoff(backoff_, seed_++)});
    noted->touched = ++touches_;
    noted->desired[key] = std::move(value);
    if (noted->is_settled()) return {};
    queue_pod(noted);
    while (pods_.size() > kMaxAnnotatedPods) forget_oldest();
    return {};
  }

  void forget_pod(const PodRef& pod) override {
    const auto found = pods_.find(pod);
    if (found != pods_.end()) erase(found);
  }

  SendStatus annotation_status() const override {
    SendStatus delivery = sending_.send_status();
    delivery.pending = std::ranges::any_of(pods_, [](const auto& one) { return !one.second->is_settled(); });
    return delivery;
  }

  std::size_t pod_count() const override { return pods_.size(); }

 private:
  struct AnnotatedPod {
    PodRef pod;
    Backoff backoff;
    Values desired{}, written{};
    std::uint64_t touched = 0;
    bool queued = false, gone = false;
    Subscription retry{};
    bool is_settled() const { return desired == written; }
  };
  using AnnotatedPodPtr = std::shared_ptr<AnnotatedPod>;
  using Pods = std::map<PodRef, AnnotatedPodPtr>;

  void queue_pod(const AnnotatedPodPtr& noted) {
    if (noted->queued || noted->retry) return;
    noted->queued = true;
    ready_.push_back(noted);
    sending_.wake();
  }

  void erase(Pods::iterator found) {
    found->second->gone = true;
    found->second->retry.reset();
    pods_.erase(found);
  }

  void forget_oldest() {
    erase(std::ranges::min_element(pods_, {}, [](const auto& one) { return one.second->touched; }));
  }

  void update_next_pod() {
    if (under_way_ && !under_way_->queued) {
      under_way_->queued = true;
      ready_.push_front(under_way_);
    }
    under_way_.reset();
    while (!ready_.empty()) {
      const AnnotatedPodPtr noted = std::move(ready_.front());
      ready_.pop_front();
      noted->queued = false;
      if (!noted->gone && !noted->is_settled()) return send_annotations(noted);
    }
    sending_.idle(!annotation_status().pending);
  }

  void send_annotations(const AnnotatedPodPtr& noted) {
    json annotations = json::object();
    for (const auto& [key, value] : noted->desired) {
      const auto taken = noted->written.find(key);
      if (taken != noted->written.end() && taken->second == value) continue;
      annotations[key] = value ? json(*value) : json(nullptr);
    }
    const json body = {{"metadata", {{"uid", noted->pod.uid}, {"annotations", annotations}}}};
    sending_.send_request(
        {.method = "PATCH",
         .path = "/api/v1/namespaces/" + noted->pod.name_space + "/pods/" + noted->pod.name,
         .content_type = "application/merge-patch+json",
         .body = serialize_json(body),
         .accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"},
        "patch on pods", [this, noted, sent = noted->desired](const http::ClientResponse& response) {
          return on_annotations_written(noted, sent, response);
        });
    under_way_ = noted;
  }

  Outcome on_annotations_written(const AnnotatedPodPtr& noted, const Values& sent,
                                 const http::ClientResponse& response) {
    under_way_.reset();
    if (response.status == 200) {
      noted->written = sent;
      noted->backoff.reset();
      if (!noted->is_settled()) queue_pod(noted);
      return Outcome::kDone;
    }
    // Deleted, or another Pod of that name: a patch cannot change its uid.
    if (response.status == 404 || response.status == 422) {
      if (response.status == 422) {
        log::info("cannot annotate a Pod", {{"pod", noted->pod.name}, {"why", describe_response(response)}});
      }
      if (!noted->gone) forget_pod(noted->pod);
      return Outcome::kNext;
    }
    noted->retry = loop_.after(noted->backoff.next_delay(), [this, weak = std::weak_ptr(noted)] {
      const auto due = weak.lock();
      if (!due) return;
      due->retry.reset();
      queue_pod(due);
    });
    if (response.status == 409) return Outcome::kNext;
    return Outcome::kRefused;
  }

  Loop& loop_;
  const BackoffLimits backoff_;
  std::uint64_t seed_, touches_ = 0;
  RetryingSender sending_;
  Pods pods_;
  std::deque<AnnotatedPodPtr> ready_;
  AnnotatedPodPtr under_way_;  // retried first if no response arrives
};

}  // namespace

std::unique_ptr<PodAnnotations> PodAnnotations::start_annotations(Loop& loop, ClientConfig access,
                                                                  SendTiming timing) {
  return std::make_unique<AnnotationWriter>(loop, std::move(access), timing);
}

}  // namespace gpulet::k8s
