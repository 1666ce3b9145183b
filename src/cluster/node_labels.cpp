#include "cluster/node_labels.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cluster/objects.h"
#include "cluster/wanted_labels.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Outcome = Sending::Outcome;
using Labels = WantedLabels::Labels;

class Applied final : public NodeLabels {
 public:
  Applied(Loop& loop, Access access, std::function<void()> settled, SendTiming timing)
      : name_(access.node_name),
        path_("/api/v1/nodes/" + name_),
        settled_(std::move(settled)),
        sending_(loop, std::move(access), timing, "the node's labels", [this] { step(); }) {}

  void set(Labels labels) override {
    if (!wanted_.set(std::move(labels))) return;
    sending_.wake();
  }

  void look_again() override {
    wanted_.look_again();
    sending_.wake();
  }

  Delivery delivery() const override {
    Delivery delivery = sending_.delivery();
    delivery.waiting = wanted_.due();
    return delivery;
  }

 private:
  struct Node {
    json labels;
    std::string uid;
  };

  void step() {
    if (!wanted_.due()) return sending_.idle();
    if (!node_) return read();
    const Node node = std::move(*std::exchange(node_, std::nullopt));
    if (wanted_.up_to_date() && has_all(node.labels)) return taken(*wanted_);
    apply(node);
  }

  void read() {
    sending_.request({.method = "GET", .path = path_, .accept = kMetadataOnly}, "get on nodes",
                     [this](const ApiResponse& response) {
                       if (response.status != 200) return Outcome::kTrouble;
                       const auto object = json::parse(response.body, nullptr, false);
                       const auto& metadata = member(object, "metadata");
                       Node node{member(metadata, "labels"), text_of(member(metadata, "uid"))};
                       if (node.uid.empty()) return Outcome::kTrouble;
                       node_ = std::move(node);
                       return Outcome::kNext;
                     });
  }

  void apply(const Node& node) {
    const json body = {{"apiVersion", "v1"},
                       {"kind", "Node"},
                       {"metadata", {{"name", name_}, {"uid", node.uid}, {"labels", *wanted_}}}};
    sending_.request({.method = "PATCH",
                      .path = path_ + "?fieldManager=" + kLabelManager + "&force=true",
                      .content_type = "application/apply-patch+yaml",
                      .body = body_of(body),
                      .accept = kMetadataOnly},
                     "patch on nodes", [this, sent = *wanted_](const ApiResponse& response) {
                       // Gone, or another one of its name, since it was read.
                       if (response.status == 409) return Outcome::kAgain;
                       if (response.status != 200) return Outcome::kTrouble;
                       taken(sent);
                       return Outcome::kDone;
                     });
  }

  void taken(const Labels& sent) {
    if (!wanted_.taken(sent)) return;
    sending_.wake();
    if (settled_) settled_();
  }

  bool has_all(const json& there) const {
    return std::ranges::all_of(
        *wanted_, [&](const auto& label) { return there.is_object() && there.contains(label.first); });
  }

  const std::string name_, path_;
  std::function<void()> settled_;
  Sending sending_;
  WantedLabels wanted_;
  std::optional<Node> node_;  // as just read
};

}  // namespace

std::unique_ptr<NodeLabels> NodeLabels::start(Loop& loop, Access access, std::function<void()> settled,
                                              SendTiming timing) {
  return std::make_unique<Applied>(loop, std::move(access), std::move(settled), timing);
}

}  // namespace gpulet::cluster
