// Why Pods wait, node by node: what `gpulet explain` would say of each, by the extender or without one.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "cluster/objects.h"
#include "doctor/probes.h"
#include "extender/ask.h"

namespace gpulet::doctor {
namespace {

using cluster::member;
using cluster::text_of;
using nlohmann::json;

constexpr std::size_t kMaxHints = 3;

Result<Explained> explained(const Places& places, const PendingPod& pod, Duration limit) {
  const auto slash = pod.name.find('/');
  GPULET_TRY_ASSIGN(const auto answer, extender::ask({.name_space = pod.name.substr(0, slash),
                                                      .pod = pod.name.substr(slash + 1),
                                                      .json = true,
                                                      .service = places.service,
                                                      .limit = limit},
                                                     *places.access));
  GPULET_TRY_ASSIGN(auto result, parse_explanation(answer.text, places.node_name));
  result.by_extender = answer.by_extender;
  return result;
}

}  // namespace

Result<Explained> parse_explanation(const std::string& document, const std::string& node) {
  const auto object = json::parse(document, nullptr, false);
  if (!object.is_object() || !member(object, "nodes").is_array())
    return fail(Code::kInvalidArgument, "what answers there is no extender of gpulet");
  Explained explained;
  explained.asks = text_of(member(object, "asks"));
  for (const auto& one : member(object, "nodes")) {
    const auto& fits = member(one, "fits");
    auto name = text_of(member(one, "node"));
    if (fits.is_boolean() && fits.get<bool>()) {
      explained.fit.push_back(std::move(name));
    } else {
      explained.nodes.push_back({std::move(name), text_of(member(one, "reason"))});
    }
  }
  std::ranges::stable_partition(explained.nodes, [&](const auto& one) { return one.node == node; });
  if (explained.nodes.size() > kMaxReasons) {
    explained.left_out = explained.nodes.size() - kMaxReasons;
    explained.nodes.resize(kMaxReasons);
  }
  for (const auto& hint : member(object, "hints")) {
    if (explained.hints.size() < kMaxHints) explained.hints.push_back(text_of(hint));
  }
  return explained;
}

void explain(Prober& prober, const Places& places, std::vector<PendingPod>& pods) {
  const auto end = prober.loop().now() + kExplainLimit;
  std::size_t asked = 0;
  for (auto& pod : pods) {
    const auto left = end - prober.loop().now();
    if (asked == kMaxExplained || left <= Duration::zero()) return;
    if (pod.refused) continue;
    ++asked;
    pod.explained = explained(places, pod, std::min<Duration>(left, kProbeLimit));
    // Of a Pod that has gone meanwhile nothing follows for the next; what else fails would fail again.
    if (!*pod.explained && pod.explained->error().code() != Code::kNotFound) return;
  }
}

}  // namespace gpulet::doctor
