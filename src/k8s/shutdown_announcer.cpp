#include "k8s/shutdown_announcer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/lifetime.h"
#include "base/log.h"
#include "k8s/api_client.h"
#include "k8s/objects.h"

namespace gpulet::k8s {
namespace {

using nlohmann::json;

class AllocatableAnnouncer final : public ShutdownAnnouncer {
 public:
  AllocatableAnnouncer(Loop& loop, ClientConfig access, std::vector<std::string> resources,
                       std::function<void()> close, std::function<void()> done, ShutdownTiming timing)
      : loop_(loop),
        path_("/api/v1/nodes/" + access.node_name),
        resources_(std::move(resources)),
        close_(std::move(close)),
        done_(std::move(done)),
        timing_(timing),
        client_(loop, std::move(access), timing.limit),
        limit_(loop.after(timing.limit, [this] { finish_announcement(); })) {
    patch_allocatable();
  }

 private:
  void patch_allocatable() {
    if (!done_) return;  // the time limit has passed
    json allocatable = json::object();
    for (const auto& resource : resources_) allocatable[resource] = "0";
    client_.send_request({.method = "PATCH",
                          .path = path_ + "/status",
                          .content_type = "application/strategic-merge-patch+json",
                          .body = serialize_json({{"status", {{"allocatable", std::move(allocatable)}}}}),
                          .accept = kMetadataOnly},
                         [this](const Result<http::ClientResponse>& response) {
                           if (!is_accepted(response)) return finish_announcement();
                           quiet_ = loop_.after(timing_.settle_time, [this] { verify_allocatable(); });
                         });
  }

  void verify_allocatable() {
    client_.send_request({.method = "GET", .path = path_},
                         [this](const Result<http::ClientResponse>& response) {
                           if (!is_accepted(response)) return finish_announcement();
                           const auto node = json::parse(response->body, nullptr, false);
                           const auto& allocatable = json_member(json_member(node, "status"), "allocatable");
                           const bool none = std::ranges::all_of(resources_, [&](const auto& resource) {
                             const auto count = json_text(json_member(allocatable, resource.c_str()));
                             return count.empty() || count == "0";
                           });
                           if (!none) return patch_allocatable();
                           if (!close_) return finish_announcement();
                           // In the next turn, because closing destroys other users of the loop.
                           loop_.post([this, alive = lifetime_.watch()] {
                             if (!alive) return;
                             if (auto close = std::exchange(close_, nullptr)) close();
                             patch_allocatable();
                           });
                         });
  }

  static bool is_accepted(const Result<http::ClientResponse>& response) {
    if (response && response->status == 200) return true;
    log::info(
        "cannot set the allocatable devices of the Node to zero; Pods bound to it in the next seconds may "
        "fail",
        {{"why", response ? describe_response(*response) : response.error().full_message()}});
    return false;
  }

  void finish_announcement() {
    limit_.reset();
    quiet_.reset();
    client_.close_connection();
    if (auto close = std::exchange(close_, nullptr)) loop_.post(std::move(close));
    if (auto done = std::exchange(done_, nullptr)) loop_.post(std::move(done));
  }

  Loop& loop_;
  const std::string path_;
  const std::vector<std::string> resources_;
  std::function<void()> close_, done_;
  const ShutdownTiming timing_;
  ApiClient client_;
  Subscription limit_, quiet_;
  Lifetime lifetime_;
};

}  // namespace

std::unique_ptr<ShutdownAnnouncer> ShutdownAnnouncer::announce_shutdown(Loop& loop, ClientConfig access,
                                                                        std::vector<std::string> resources,
                                                                        std::function<void()> close,
                                                                        std::function<void()> done,
                                                                        ShutdownTiming timing) {
  return std::make_unique<AllocatableAnnouncer>(loop, std::move(access), std::move(resources),
                                                std::move(close), std::move(done), timing);
}

}  // namespace gpulet::k8s
