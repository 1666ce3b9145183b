#include "cluster/pod_notes.h"

#include <algorithm>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Outcome = Sending::Outcome;
using Values = std::map<std::string, std::optional<std::string>>;

class Notes final : public PodNotes {
 public:
  Notes(Loop& loop, Access access, SendTiming timing)
      : loop_(loop),
        backoff_(timing.backoff),
        seed_(static_cast<std::uint64_t>(loop.now().time_since_epoch().count())),
        sending_(loop, std::move(access), timing, "a Pod's notes", [this] { step(); }) {}

  Status set(const PodRef& pod, const std::string& key, std::optional<std::string> value) override {
    if (!is_name(pod.name_space) || !is_name(pod.name) || pod.uid.empty()) {
      return fail(Code::kInvalidArgument, "that is no name of a Pod", pod.name_space + "/" + pod.name);
    }
    if (value) value = shortened(std::move(*value), kMaxNoteBytes);
    auto& noted = pods_[pod];
    if (!noted) noted = std::make_shared<Noted>(Noted{pod, Backoff(backoff_, seed_++)});
    noted->touched = ++touches_;
    noted->wanted[key] = std::move(value);
    if (noted->settled()) return {};
    queue(noted);
    while (pods_.size() > kMaxNotedPods) forget_oldest();
    return {};
  }

  void forget(const PodRef& pod) override {
    const auto found = pods_.find(pod);
    if (found != pods_.end()) erase(found);
  }

  Delivery delivery() const override {
    Delivery delivery = sending_.delivery();
    delivery.waiting = std::ranges::any_of(pods_, [](const auto& one) { return !one.second->settled(); });
    return delivery;
  }

  std::size_t pods() const override { return pods_.size(); }

 private:
  struct Noted {
    PodRef pod;
    Backoff backoff;
    Values wanted{}, taken{};
    std::uint64_t touched = 0;
    bool queued = false, gone = false;
    Subscription retry{};
    bool settled() const { return wanted == taken; }
  };
  using NotedPtr = std::shared_ptr<Noted>;
  using Pods = std::map<PodRef, NotedPtr>;

  void queue(const NotedPtr& noted) {
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

  void step() {
    if (under_way_ && !under_way_->queued) {
      under_way_->queued = true;
      ready_.push_front(under_way_);
    }
    under_way_.reset();
    while (!ready_.empty()) {
      const NotedPtr noted = std::move(ready_.front());
      ready_.pop_front();
      noted->queued = false;
      if (!noted->gone && !noted->settled()) return send(noted);
    }
    sending_.idle(!delivery().waiting);
  }

  void send(const NotedPtr& noted) {
    json annotations = json::object();
    for (const auto& [key, value] : noted->wanted) {
      const auto taken = noted->taken.find(key);
      if (taken != noted->taken.end() && taken->second == value) continue;
      annotations[key] = value ? json(*value) : json(nullptr);
    }
    const json body = {{"metadata", {{"uid", noted->pod.uid}, {"annotations", annotations}}}};
    sending_.request(
        {.method = "PATCH",
         .path = "/api/v1/namespaces/" + noted->pod.name_space + "/pods/" + noted->pod.name,
         .content_type = "application/merge-patch+json",
         .body = body_of(body),
         .accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"},
        "patch on pods", [this, noted, sent = noted->wanted](const ApiResponse& response) {
          return on_answer(noted, sent, response);
        });
    under_way_ = noted;
  }

  Outcome on_answer(const NotedPtr& noted, const Values& sent, const ApiResponse& response) {
    under_way_.reset();
    if (response.status == 200) {
      noted->taken = sent;
      noted->backoff.reset();
      if (!noted->settled()) queue(noted);
      return Outcome::kDone;
    }
    // Gone, or another Pod by that name has another uid, which no patch can change.
    if (response.status == 404 || response.status == 422) {
      if (response.status == 422) {
        log::info("a Pod takes no notes", {{"pod", noted->pod.name}, {"why", said(response)}});
      }
      if (!noted->gone) forget(noted->pod);
      return Outcome::kNext;
    }
    noted->retry = loop_.after(noted->backoff.next(), [this, weak = std::weak_ptr(noted)] {
      const auto due = weak.lock();
      if (!due) return;
      due->retry.reset();
      queue(due);
    });
    if (response.status == 409) return Outcome::kNext;
    return Outcome::kRefused;
  }

  Loop& loop_;
  const BackoffLimits backoff_;
  std::uint64_t seed_, touches_ = 0;
  Sending sending_;
  Pods pods_;
  std::deque<NotedPtr> ready_;
  NotedPtr under_way_;  // comes first again when no answer came
};

}  // namespace

std::unique_ptr<PodNotes> PodNotes::start(Loop& loop, Access access, SendTiming timing) {
  return std::make_unique<Notes>(loop, std::move(access), timing);
}

}  // namespace gpulet::cluster
