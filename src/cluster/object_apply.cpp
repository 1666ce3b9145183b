#include "cluster/object_apply.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Outcome = Sending::Outcome;

constexpr const char* kManager = "?fieldManager=gpulet&force=true";

class Apply final : public ObjectApply {
 public:
  Apply(Loop& loop, Access access, AppliedKind kind, ApplyTiming timing)
      : loop_(loop),
        node_(access.node_name),
        kind_(std::move(kind)),
        refresh_(timing.refresh),
        sending_(loop, std::move(access), timing.sending, "the node's " + kind_.kind, [this] { step(); }) {}

  void set(std::string spec) override {
    spec_ = std::move(spec);
    sending_.wake();
  }

  Delivery delivery() const override {
    Delivery delivery = sending_.delivery();
    delivery.waiting = spec_ != taken_;
    return delivery;
  }

 private:
  void step() {
    if (!spec_ || spec_ == taken_) return sending_.idle();
    if (uid_.empty()) return read_node();
    apply();
  }

  void read_node() {
    sending_.request({.method = "GET", .path = "/api/v1/nodes/" + node_, .accept = kMetadataOnly},
                     "get on nodes", [this](const ApiResponse& response) {
                       if (response.status != 200) return Outcome::kTrouble;
                       const auto node = json::parse(response.body, nullptr, false);
                       uid_ = text_of(member(member(node, "metadata"), "uid"));
                       return uid_.empty() ? Outcome::kTrouble : Outcome::kNext;
                     });
  }

  void apply() {
    // By hand: the spec is JSON already, and is not to be parsed for this.
    const json metadata = {
        {"name", node_},
        {"ownerReferences", {{{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node_}, {"uid", uid_}}}}};
    std::string body = "{\"apiVersion\":" + json(kind_.api_version).dump() +
                       ",\"kind\":" + json(kind_.kind).dump() + ",\"metadata\":" + body_of(metadata) +
                       ",\"spec\":" + *spec_ + "}";
    next_refresh_.reset();
    sending_.request({.method = "PATCH",
                      .path = kind_.collection + "/" + node_ + kManager,
                      .content_type = "application/apply-patch+yaml",
                      .body = std::move(body),
                      .accept = kMetadataOnly},
                     "create and patch on " + kind_.collection.substr(kind_.collection.rfind('/') + 1),
                     [this, sent = *spec_](const ApiResponse& response) {
                       if (response.status / 100 != 2) return Outcome::kTrouble;
                       taken_ = sent;
                       refresh_later();
                       return Outcome::kDone;
                     });
  }

  void refresh_later() {
    next_refresh_ = loop_.after(refresh_, [this] {
      next_refresh_.reset();
      taken_.reset();
      uid_.clear();
      sending_.wake();
    });
  }

  Loop& loop_;
  const std::string node_;
  const AppliedKind kind_;
  const Duration refresh_;
  Sending sending_;
  std::optional<std::string> spec_, taken_;
  std::string uid_;  // of the Node, as last read
  Subscription next_refresh_;
};

}  // namespace

std::unique_ptr<ObjectApply> ObjectApply::start(Loop& loop, Access access, AppliedKind kind,
                                                ApplyTiming timing) {
  return std::make_unique<Apply>(loop, std::move(access), std::move(kind), timing);
}

}  // namespace gpulet::cluster
