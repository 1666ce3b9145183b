#include "cluster/eviction.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cluster/api_client.h"
#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Kind = EvictionNews::Kind;

constexpr int kNotFound = 404, kConflict = 409, kTooManyRequests = 429;

class Asking final : public Eviction {
 public:
  // Of one of whom any will do, the uid is empty.
  struct Wanted {
    std::string pod, uid;
  };
  Asking(Loop& loop, Access access, std::vector<Wanted> pods, News news, EvictionTiming timing)
      : loop_(loop),
        node_(access.node_name),
        client_(loop, std::move(access), timing.request_limit),
        news_(std::move(news)) {
    auto seed = static_cast<std::uint64_t>(loop.now().time_since_epoch().count());
    for (auto& pod : pods) {
      asked_.push_back(std::make_unique<Asked>(std::move(pod), Backoff(timing.backoff, seed++)));
      ready_.push_back(asked_.back().get());
    }
    next_ = loop_.after(Duration::zero(), [this] { next(); });
  }

 private:
  enum class State { kUnseen, kSeen, kAsking, kOver };
  struct Asked {
    Asked(Wanted pod_wanted, Backoff waits)
        : pod(std::move(pod_wanted.pod)), wanted(std::move(pod_wanted.uid)), backoff(waits) {}
    std::string pod, wanted;
    Backoff backoff;
    State state = State::kUnseen;
    std::string uid;  // of the one that was seen
    std::optional<EvictionNews> told;
    Subscription retry;
  };

  // One request at a time. All are seen before any is asked.
  void next() {
    if (busy_) return;
    if (ready_.empty()) return client_.close();
    Asked& asked = *ready_.front();
    ready_.pop_front();
    const auto name = text::split(asked.pod, '/');
    if (name.size() != 2 || !is_name(name[0]) || !is_name(name[1]))
      return tell(asked, Kind::kRefused, "that is no name of a Pod");
    busy_ = true;
    const std::string path = "/api/v1/namespaces/" + name[0] + "/pods/" + name[1];
    if (asked.state == State::kUnseen) {
      client_.request({.method = "GET", .path = path}, [this, &asked](const Result<ApiResponse>& response) {
        busy_ = false;
        on_seen(asked, response);
      });
      return;
    }
    const json body = {{"apiVersion", "policy/v1"},
                       {"kind", "Eviction"},
                       {"metadata", {{"namespace", name[0]}, {"name", name[1]}}},
                       {"deleteOptions", {{"preconditions", {{"uid", asked.uid}}}}}};
    client_.request({.method = "POST",
                     .path = path + "/eviction",
                     .content_type = "application/json",
                     .body = body_of(body)},
                    [this, &asked](const Result<ApiResponse>& response) {
                      busy_ = false;
                      on_answer(asked, response);
                    });
  }

  void on_seen(Asked& asked, const Result<ApiResponse>& response) {
    if (!response) return again(asked, response.error().text());
    if (response->status == kNotFound) return tell(asked, Kind::kGone);
    if (response->status != 200) return again(asked, said(*response) + needs(*response, "get on pods"));
    const auto pod = json::parse(response->body, nullptr, false);
    const auto& metadata = member(pod, "metadata");
    asked.uid = text_of(member(metadata, "uid"));
    if (asked.uid.empty()) return again(asked, "the API server answered with what is no Pod");
    // The name is another's by now.
    if (!asked.wanted.empty() && asked.uid != asked.wanted) return tell(asked, Kind::kGone);
    if (text_of(member(member(pod, "spec"), "nodeName")) != node_) return tell(asked, Kind::kGone);
    if (member(member(metadata, "annotations"), kMirrorPod).is_string()) {
      return tell(
          asked, Kind::kRefused,
          "it is a static Pod, which the kubelet runs from a file on the node whatever the API server says");
    }
    if (member(metadata, "deletionTimestamp").is_string()) return tell(asked, Kind::kLeaving);
    asked.state = State::kSeen;
    asked.backoff.reset();
    release();
    next();
  }

  void on_answer(Asked& asked, const Result<ApiResponse>& response) {
    if (!response) return again(asked, response.error().text());
    const int status = response->status;
    if (status / 100 == 2) return tell(asked, Kind::kLeaving);
    if (status == kNotFound) return tell(asked, Kind::kGone);
    if (status == kConflict) asked.state = State::kUnseen;  // the name may be another's: looked at anew
    const bool may_change = status >= 500 || status == 401 || status == 403 || status == 408 ||
                            status == kConflict || status == kTooManyRequests;
    if (!may_change) return tell(asked, Kind::kRefused, said(*response));
    again(asked, said(*response) + needs(*response, "create on pods/eviction"));
  }

  static std::string needs(const ApiResponse& response, const std::string& right) {
    return response.status == 403 ? " (the agent needs " + right + ")" : "";
  }

  void again(Asked& asked, std::string why) {
    asked.retry = loop_.after(asked.backoff.next(), [this, &asked] {
      ready_.push_back(&asked);
      next();
    });
    tell(asked, Kind::kWaiting, std::move(why));
  }

  void release() {
    if (std::ranges::any_of(asked_, [](const auto& one) { return one->state == State::kUnseen; })) return;
    for (const auto& one : asked_) {
      if (one->state != State::kSeen) continue;
      one->state = State::kAsking;
      ready_.push_back(one.get());
    }
  }

  void tell(Asked& asked, Kind kind, std::string why = {}) {
    if (kind != Kind::kWaiting) asked.state = State::kOver;
    // One that cannot leave makes the others' leaving useless.
    if (kind == Kind::kRefused) {
      ready_.clear();
      for (const auto& one : asked_) {
        one->state = State::kOver;
        one->retry.reset();
      }
    }
    release();
    next_ = loop_.after(Duration::zero(), [this] { next(); });
    EvictionNews news{asked.pod, kind, std::move(why)};
    if (asked.told == news) return;
    asked.told = news;
    untold_.push_back(std::move(news));
    tell_ = loop_.after(Duration::zero(), [this] { tell_next(); });
  }

  // From a turn of its own, and nothing after it: who is told may end this, and with it the client.
  void tell_next() {
    const EvictionNews news = std::move(untold_.front());
    untold_.pop_front();
    if (!untold_.empty()) tell_ = loop_.after(Duration::zero(), [this] { tell_next(); });
    const News tell = news_;
    tell(news);
  }

  Loop& loop_;
  const std::string node_;
  ApiClient client_;
  News news_;
  std::vector<std::unique_ptr<Asked>> asked_;
  std::deque<Asked*> ready_;
  bool busy_ = false;
  std::deque<EvictionNews> untold_;
  Subscription next_, tell_;
};

}  // namespace

std::unique_ptr<Eviction> Eviction::start(Loop& loop, Access access, std::vector<std::string> pods, News news,
                                          EvictionTiming timing) {
  std::vector<Asking::Wanted> wanted;
  for (auto& pod : pods) wanted.push_back({std::move(pod), ""});
  return std::make_unique<Asking>(loop, std::move(access), std::move(wanted), std::move(news), timing);
}

std::unique_ptr<Eviction> Eviction::start(Loop& loop, Access access, std::vector<PodRef> pods, News news,
                                          EvictionTiming timing) {
  std::vector<Asking::Wanted> wanted;
  for (auto& pod : pods) wanted.push_back({pod.name_space + "/" + pod.name, std::move(pod.uid)});
  return std::make_unique<Asking>(loop, std::move(access), std::move(wanted), std::move(news), timing);
}

}  // namespace gpulet::cluster
