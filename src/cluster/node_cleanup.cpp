#include "cluster/node_cleanup.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Outcome = Sending::Outcome;

class Cleaning final : public NodeCleanup {
 public:
  Cleaning(Loop& loop, Access access, LeftOnNode left, std::function<void()> done, SendTiming timing)
      : name_(access.node_name),
        path_("/api/v1/nodes/" + name_),
        left_(std::move(left)),
        done_(std::move(done)),
        sending_(loop, std::move(access), timing, "what is to be taken from the node", [this] { step(); }) {
    sending_.wake();
  }

  Delivery delivery() const override {
    Delivery delivery = sending_.delivery();
    delivery.waiting = at_ != Step::kDone;
    return delivery;
  }

 private:
  enum class Step { kRead, kApplied, kNamed, kConditions, kObjects, kDone };

  void step() {
    switch (at_) {
      case Step::kRead:
        return read();
      case Step::kApplied:
        return applied();
      case Step::kNamed:
        return named();
      case Step::kConditions:
        return conditions();
      case Step::kObjects:
        return object();
      case Step::kDone:
        break;
    }
    sending_.idle();
    if (auto done = std::exchange(done_, nullptr)) done();
  }

  // Its uid goes with what is applied: a set for a Node that is not there would make one.
  void read() {
    sending_.request({.method = "GET", .path = path_, .accept = kMetadataOnly}, "get on nodes",
                     [this](const ApiResponse& response) {
                       if (response.status == 404) return then(Step::kObjects);
                       const auto object = json::parse(response.body, nullptr, false);
                       uid_ = text_of(member(member(object, "metadata"), "uid"));
                       return response.status == 200 && !uid_.empty() ? then(Step::kApplied)
                                                                      : Outcome::kTrouble;
                     });
  }

  void applied() {
    const json body = {
        {"apiVersion", "v1"}, {"kind", "Node"}, {"metadata", {{"name", name_}, {"uid", uid_}}}};
    patch(path_ + "?fieldManager=" + left_.field_manager + "&force=true", "application/apply-patch+yaml",
          body, "patch on nodes", Step::kNamed);
  }

  void named() {
    json body = json::object();
    for (const auto& label : left_.labels) body["metadata"]["labels"][label] = nullptr;
    for (const auto& key : left_.taints)
      body["spec"]["taints"].push_back({{"$patch", "delete"}, {"key", key}});
    patch(path_, kStrategic, body, "patch on nodes", Step::kConditions);
  }

  void conditions() {
    json body = json::object();
    for (const auto& type : left_.conditions)
      body["status"]["conditions"].push_back({{"$patch", "delete"}, {"type", type}});
    patch(path_ + "/status", kStrategic, body, "patch on nodes/status", Step::kObjects);
  }

  void object() {
    if (left_.objects.empty()) {
      at_ = Step::kDone;
      return step();
    }
    sending_.request({.method = "DELETE", .path = left_.objects.back(), .accept = kMetadataOnly},
                     "delete on " + left_.objects.back(), [this](const ApiResponse& response) {
                       const bool gone = response.status / 100 == 2 || response.status == 404;
                       if (!gone) return Outcome::kTrouble;
                       left_.objects.pop_back();
                       return Outcome::kNext;
                     });
  }

  void patch(const std::string& path, const char* type, const json& body, const char* right, Step next) {
    sending_.request({.method = "PATCH",
                      .path = path,
                      .content_type = type,
                      .body = body_of(body),
                      .accept = kMetadataOnly},
                     right, [this, next](const ApiResponse& response) {
                       if (response.status == 404) return then(Step::kObjects);
                       if (response.status == 409) return then(Step::kRead, Outcome::kAgain);
                       return response.status == 200 ? then(next) : Outcome::kTrouble;
                     });
  }

  Outcome then(Step next, Outcome outcome = Outcome::kNext) {
    at_ = next;
    return outcome;
  }

  static constexpr const char* kStrategic = "application/strategic-merge-patch+json";
  const std::string name_, path_;
  LeftOnNode left_;
  std::function<void()> done_;
  std::string uid_;
  Step at_ = Step::kRead;
  Sending sending_;
};

}  // namespace

std::unique_ptr<NodeCleanup> NodeCleanup::start(Loop& loop, Access access, LeftOnNode left,
                                                std::function<void()> done, SendTiming timing) {
  return std::make_unique<Cleaning>(loop, std::move(access), std::move(left), std::move(done), timing);
}

}  // namespace gpulet::cluster
