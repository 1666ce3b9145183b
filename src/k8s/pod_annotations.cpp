#include "k8s/pod_annotations.h"

#include <algorithm>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
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
    if (!is_dns_name(pod.name_space) || !is_dns_name(pod.name) || pod.uid.empty()) {
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
