#include "cluster/node_patch.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cluster/api_client.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Values = std::map<std::string, std::optional<std::string>>;

class Patch final : public NodePatch {
 public:
  Patch(Loop& loop, Access access, NodePatchTiming timing)
      : loop_(loop),
        path_("/api/v1/nodes/" + access.node_name),
        client_(loop, std::move(access), timing.request_limit),
        backoff_(timing.backoff, static_cast<std::uint64_t>(loop.now().time_since_epoch().count())) {}

  void set_label(const std::string& key, std::optional<std::string> value) override {
    wanted_[key] = std::move(value);
    if (!sending_ && !next_) next_ = loop_.after(Duration::zero(), [this] { send(); });
  }

 private:
  void send() {
    next_.reset();
    sending_ = Values();
    json labels = json::object();
    for (const auto& [key, value] : wanted_) {
      const auto taken = taken_.find(key);
      if (taken != taken_.end() && taken->second == value) continue;
      labels[key] = value ? json(*value) : json(nullptr);
      (*sending_)[key] = value;
    }
    if (labels.empty()) return sending_.reset();
    client_.request({.method = "PATCH",
                     .path = path_,
                     .content_type = "application/merge-patch+json",
                     .body = json{{"metadata", {{"labels", labels}}}}.dump(-1, ' ', false,
                                                                           json::error_handler_t::replace)},
                    [this](const Result<ApiResponse>& response) { on_answer(response); });
  }

  void on_answer(const Result<ApiResponse>& response) {
    const auto sent = std::move(*sending_);
    sending_.reset();
    if (response && response->status == 200) {
      told_ = false;
      backoff_.reset();
      for (const auto& [key, value] : sent) taken_[key] = value;
      next_ = loop_.after(Duration::zero(), [this] { send(); });
      return;
    }
    if (!told_) {
      if (response) {
        log::warning("the API server does not take this node's labels; the agent needs patch on nodes",
                     {{"status", response->status}});
      } else {
        log::warning("the API server does not take this node's labels", response.error());
      }
    }
    told_ = true;
    next_ = loop_.after(backoff_.next(), [this] { send(); });
  }

  Loop& loop_;
  const std::string path_;
  ApiClient client_;
  Backoff backoff_;
  Values wanted_, taken_;
  std::optional<Values> sending_;
  bool told_ = false;
  Subscription next_;
};

}  // namespace

std::unique_ptr<NodePatch> NodePatch::start(Loop& loop, Access access, NodePatchTiming timing) {
  return std::make_unique<Patch>(loop, std::move(access), timing);
}

}  // namespace gpulet::cluster
