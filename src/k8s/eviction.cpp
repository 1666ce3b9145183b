#include "k8s/eviction.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>

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
  SequentialEviction(Loop& loop, ClientConfig access, std::vector<Target> pods, UpdateCallback news,
                     EvictionTiming timing)
      : loop_(loop),
        node_(access.node_name),
        client_(loop, std::move(access), timing.request_limit),
        news_(std::move(news)) {
    auto seed = static_cast<std::uint64_t>(loop.now().time_since_epoch().count());
    for (auto& pod : pods) {
      asked_.push_back(std::make_unique<PodState>(std::move(pod), Backoff(timing.backoff, seed++)));
      ready_.push_back(asked_.back().get());
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
    PodState& asked = *ready_.front();
    ready_.pop_front();
    const auto name = text::split(asked.pod, '/');
    if (name.size() != 2 || !is_dns_name(name[0]) || !is_dns_name(name[1]))
      return queue_update(asked, Kind::kRefused, "not the name of a Pod");
    busy_ = true;
    const std::string path = "/api/v1/namespaces/" + name[0] + "/pods/" + name[1];
    if (asked.state == State::kUnread) {
      client_.send_request({.method = "GET", .path = path},
                           [this, &asked](const Result<http::ClientResponse>& response) {
                             busy_ = false;
                             on_pod_read(asked, response);
                           });
      return;
    }
    const json body = {{"apiVersion", "policy/v1"},
                       {"kind", "Eviction"},
                       {"metadata", {{"namespace", name[0]}, {"name", name[1]}}},
                       {"deleteOptions", {{"preconditions", {{"uid", asked.uid}}}}}};
    client_.send_request({.method = "POST",
                          .path = path + "/eviction",
                          .content_type = "application/json",
                          .body = serialize_json(body)},
                         [this, &asked](const Result<http::ClientResponse>& response) {
                           busy_ = false;
                           on_eviction_response(asked, response);
                         });
  }

  void on_pod_read(PodState& asked, const Result<http::ClientResponse>& response) {
    if (!response) return retry_later(asked, response.error().full_message());
    if (response->status == kNotFound) return queue_update(asked, Kind::kGone);
    if (response->status != 200)
      return retry_later(asked, describe_response(*response) + missing_permission(*response, "get on pods"));
    const auto pod = json::parse(response->body, nullptr, false);
    const auto& metadata = json_member(pod, "metadata");
    asked.uid = json_text(json_member(metadata, "uid"));
    if (asked.uid.empty()) return retry_later(asked, "the API server returned something that is not a Pod");
    // Another Pod has the name by now.
    if (!asked.target.empty() && asked.uid != asked.target) return queue_update(asked, Kind::kGone);
    if (json_text(json_member(json_member(pod, "spec"), "nodeName")) != node_)
      return queue_update(asked, Kind::kGone);
    if (json_member(json_member(metadata, "annotations"), kMirrorPod).is_string()) {
      return queue_update(asked, Kind::kRefused,
                          "it is a static Pod, which the kubelet runs from a file on the node");
    }
    if (json_member(metadata, "deletionTimestamp").is_string())
      return queue_update(asked, Kind::kTerminating);
    asked.state = State::kRead;
    asked.backoff.reset();
    release();
    send_next_request();
  }

  void on_eviction_response(PodState& asked, const Result<http::ClientResponse>& response) {
    if (!response) return retry_later(asked, response.error().full_message());
    const int status = response->status;
    if (status / 100 == 2) return queue_update(asked, Kind::kTerminating);
    if (status == kNotFound) return queue_update(asked, Kind::kGone);
    if (status == kConflict) asked.state = State::kUnread;  // another Pod may have the name: read again
    const bool may_change = status >= 500 || status == 401 || status == 403 || status == 408 ||
                            status == kConflict || status == kTooManyRequests;
    if (!may_change) return queue_update(asked, Kind::kRefused, describe_response(*response));
    retry_later(asked,
                describe_response(*response) + missing_permission(*response, "create on pods/eviction"));
  }

  static std::string missing_permission(const http::ClientResponse& response, const std::string& right) {
    return response.status == 403 ? " (the agent needs " + right + ")" : "";
  }

  void retry_later(PodState& asked, std::string why) {
    asked.retry = loop_.after(asked.backoff.next_delay(), [this, &asked] {
      ready_.push_back(&asked);
      send_next_request();
    });
    queue_update(asked, Kind::kWaiting, std::move(why));
  }

  void release() {
    if (std::ranges::any_of(asked_, [](const auto& one) { return one->state == State::kUnread; })) return;
    for (const auto& one : asked_) {
      if (one->state != State::kRead) continue;
      one->state = State::kRequested;
      ready_.push_back(one.get());
    }
  }

  void queue_update(PodState& asked, Kind kind, std::string why = {}) {
    if (kind != Kind::kWaiting) asked.state = State::kFinished;
    // If one Pod cannot be evicted, evicting the others is useless.
    if (kind == Kind::kRefused) {
      ready_.clear();
      for (const auto& one : asked_) {
        one->state = State::kFinished;
        one->retry.reset();
      }
    }
    release();
    next_ = loop_.after(Duration::zero(), [this] { send_next_request(); });
    EvictionUpdate news{asked.pod, kind, std::move(why)};
    if (asked.reported == news) return;
    asked.reported = news;
    untold_.push_back(std::move(news));
    tell_ = loop_.after(Duration::zero(), [this] { deliver_next_update(); });
  }

  // In its own turn of the loop, and as the last action: the callback may destroy this object and the client.
  void deliver_next_update() {
    const EvictionUpdate news = std::move(untold_.front());
    untold_.pop_front();
    if (!untold_.empty()) tell_ = loop_.after(Duration::zero(), [this] { deliver_next_update(); });
    const UpdateCallback tell = news_;
    tell(news);
  }

  Loop& loop_;
  const std::string node_;
  ApiClient client_;
  UpdateCallback news_;
  std::vector<std::unique_ptr<PodState>> asked_;
  std::deque<PodState*> ready_;
  bool busy_ = false;
  std::deque<EvictionUpdate> untold_;
  Subscription next_, tell_;
};

}  // namespace

std::unique_ptr<Eviction> Eviction::start_eviction(Loop& loop, ClientConfig access,
                                                   std::vector<std::string> pods, UpdateCallback news,
                                                   EvictionTiming timing) {
  std::vector<SequentialEviction::Target> wanted;
  for (auto& pod : pods) wanted.push_back({std::move(pod), ""});
  return std::make_unique<SequentialEviction>(loop, std::move(access), std::move(wanted), std::move(news),
                                              timing);
}

std::unique_ptr<Eviction> Eviction::start_eviction(Loop& loop, ClientConfig access, std::vector<PodRef> pods,
                                                   UpdateCallback news, EvictionTiming timing) {
  std::vector<SequentialEviction::Target> wanted;
  for (auto& pod : pods) wanted.push_back({pod.name_space + "/" + pod.name, std::move(pod.uid)});
  return std::make_unique<SequentialEviction>(loop, std::move(access), std::move(wanted), std::move(news),
                                              timing);
}

}  // namespace gpulet::k8s
