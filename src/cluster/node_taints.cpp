#include "cluster/node_taints.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "cluster/objects.h"

namespace gpulet::cluster {
namespace {

using nlohmann::json;
using Outcome = Sending::Outcome;

constexpr std::array<std::string_view, 3> kEffects = {"NoSchedule", "PreferNoSchedule", "NoExecute"};

bool is_same(const json& there, const Taint& taint) {
  return text_of(member(there, "key")) == taint.key && text_of(member(there, "value")) == taint.value &&
         text_of(member(there, "effect")) == taint.effect;
}

class Taints final : public NodeTaints {
 public:
  Taints(Loop& loop, Access access, std::set<std::string> keys, NodeTaintsTiming timing)
      : loop_(loop),
        path_("/api/v1/nodes/" + access.node_name),
        keys_(std::move(keys)),
        check_(timing.check),
        sending_(loop, std::move(access), timing.sending, "the node's taints", [this] { step(); }) {}

  Status set(std::vector<Taint> taints) override {
    std::ranges::sort(taints);
    for (std::size_t i = 0; i < taints.size(); ++i) {
      const auto& [key, value, effect] = taints[i];
      if (!keys_.contains(key)) return fail(Code::kInvalidArgument, "is no taint of ours", key);
      if (std::ranges::find(kEffects, effect) == kEffects.end()) {
        return fail(Code::kInvalidArgument, "no effect of a taint: \"" + effect + "\"", key);
      }
      const auto rest = std::span(taints).subspan(i + 1);
      if (std::ranges::any_of(rest, [&](const Taint& o) { return o.key == key && o.effect == effect; })) {
        return fail(Code::kInvalidArgument, "two taints of the effect " + effect, key);
      }
    }
    if (wanted_ == taints) return {};
    wanted_ = std::move(taints);
    settled_ = false;
    sending_.wake();
    return {};
  }

  Delivery delivery() const override {
    Delivery delivery = sending_.delivery();
    delivery.waiting = wanted_ && !settled_;
    return delivery;
  }

 private:
  struct Node {
    json taints;
    std::string version;
  };

  void step() {
    if (!wanted_ || settled_) return sending_.idle();
    next_check_.reset();
    if (!node_) return read();
    const Node node = std::move(*std::exchange(node_, std::nullopt));
    const json taints = with_ours(node.taints);
    if (taints == node.taints) return settle();
    sending_.request({.method = "PATCH",
                      .path = path_,
                      .content_type = "application/merge-patch+json",
                      .body = body_of({{"metadata", {{"resourceVersion", node.version}}},
                                       {"spec", {{"taints", taints}}}})},
                     "patch on nodes", [this, sent = *wanted_](const ApiResponse& response) {
                       if (response.status == 409) return Outcome::kAgain;
                       if (response.status != 200) return Outcome::kTrouble;
                       if (wanted_ == sent) settle();
                       return Outcome::kDone;
                     });
  }

  void read() {
    sending_.request({.method = "GET", .path = path_}, "get on nodes", [this](const ApiResponse& response) {
      if (response.status != 200) return Outcome::kTrouble;
      const auto object = json::parse(response.body, nullptr, false);
      Node node{member(member(object, "spec"), "taints"),
                text_of(member(member(object, "metadata"), "resourceVersion"))};
      // Without a version it would be written over what somebody else writes.
      if (node.version.empty()) return Outcome::kTrouble;
      if (!node.taints.is_array()) node.taints = json::array();
      node_ = std::move(node);
      return Outcome::kNext;
    });
  }

  // Those that are as wanted stay as they are, with the time that a NoExecute has.
  json with_ours(const json& there) const {
    json taints = json::array();
    std::vector<Taint> missing = *wanted_;
    for (const auto& taint : there) {
      if (keys_.contains(text_of(member(taint, "key")))) {
        const auto same =
            std::ranges::find_if(missing, [&](const Taint& one) { return is_same(taint, one); });
        if (same == missing.end()) continue;
        missing.erase(same);
      }
      taints.push_back(taint);
    }
    for (const auto& [key, value, effect] : missing) {
      json taint = {{"key", key}, {"effect", effect}};
      if (!value.empty()) taint["value"] = value;
      taints.push_back(std::move(taint));
    }
    return taints;
  }

  void settle() {
    settled_ = true;
    sending_.wake();
    if (wanted_->empty()) return;
    next_check_ = loop_.after(check_, [this] {
      next_check_.reset();
      settled_ = false;
      sending_.wake();
    });
  }

  Loop& loop_;
  const std::string path_;
  const std::set<std::string> keys_;
  const Duration check_;
  Sending sending_;
  std::optional<std::vector<Taint>> wanted_;
  std::optional<Node> node_;  // as just read
  bool settled_ = true;
  Subscription next_check_;
};

}  // namespace

std::unique_ptr<NodeTaints> NodeTaints::start(Loop& loop, Access access, std::set<std::string> keys,
                                              NodeTaintsTiming timing) {
  return std::make_unique<Taints>(loop, std::move(access), std::move(keys), timing);
}

}  // namespace gpulet::cluster
