#include "cluster/node_leaving.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "cluster/api_client.h"
#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;

class Leaving final : public NodeLeaving {
 public:
  Leaving(Loop& loop, Access access, std::vector<std::string> resources, std::function<void()> close,
          std::function<void()> done, LeavingTiming timing)
      : loop_(loop),
        path_("/api/v1/nodes/" + access.node_name),
        resources_(std::move(resources)),
        close_(std::move(close)),
        done_(std::move(done)),
        timing_(timing),
        client_(loop, std::move(access), timing.limit),
        limit_(loop.after(timing.limit, [this] { finish(); })) {
    say();
  }

 private:
  void say() {
    if (!done_) return;  // the limit was first
    json allocatable = json::object();
    for (const auto& resource : resources_) allocatable[resource] = "0";
    client_.request({.method = "PATCH",
                     .path = path_ + "/status",
                     .content_type = "application/strategic-merge-patch+json",
                     .body = body_of({{"status", {{"allocatable", std::move(allocatable)}}}}),
                     .accept = kMetadataOnly},
                    [this](const Result<ApiResponse>& response) {
                      if (!took(response)) return finish();
                      quiet_ = loop_.after(timing_.quiet, [this] { look(); });
                    });
  }

  void look() {
    client_.request({.method = "GET", .path = path_}, [this](const Result<ApiResponse>& response) {
      if (!took(response)) return finish();
      const auto node = json::parse(response->body, nullptr, false);
      const auto& allocatable = member(member(node, "status"), "allocatable");
      const bool none = std::ranges::all_of(resources_, [&](const auto& resource) {
        const auto count = text_of(member(allocatable, resource.c_str()));
        return count.empty() || count == "0";
      });
      if (!none) return say();
      if (!close_) return finish();
      // On the next turn, as closing takes whatever else is on the loop with it.
      loop_.post([this, alive = std::weak_ptr(alive_)] {
        if (alive.expired()) return;
        if (auto close = std::exchange(close_, nullptr)) close();
        say();
      });
    });
  }

  static bool took(const Result<ApiResponse>& response) {
    if (response && response->status == 200) return true;
    log::info(
        "the Node is not told that its devices go: Pods that are bound to it in the next seconds may fail",
        {{"why", response ? said(*response) : response.error().text()}});
    return false;
  }

  void finish() {
    limit_.reset();
    quiet_.reset();
    client_.close();
    if (auto close = std::exchange(close_, nullptr)) loop_.post(std::move(close));
    if (auto done = std::exchange(done_, nullptr)) loop_.post(std::move(done));
  }

  Loop& loop_;
  const std::string path_;
  const std::vector<std::string> resources_;
  std::function<void()> close_, done_;
  const LeavingTiming timing_;
  ApiClient client_;
  Subscription limit_, quiet_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace

std::unique_ptr<NodeLeaving> NodeLeaving::start(Loop& loop, Access access, std::vector<std::string> resources,
                                                std::function<void()> close, std::function<void()> done,
                                                LeavingTiming timing) {
  return std::make_unique<Leaving>(loop, std::move(access), std::move(resources), std::move(close),
                                   std::move(done), timing);
}

}  // namespace gpulet::cluster
