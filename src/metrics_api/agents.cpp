#include "metrics_api/agents.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace gpulet::metrics_api {

bool Agents::must_list(const std::set<std::string>& nodes) const {
  if (!tried_) return true;
  if (loop_.now() - *tried_ < kAgainAfter) return false;
  if (!listed_ || loop_.now() - *listed_ > kBelieved) return true;
  return std::ranges::any_of(nodes, [this](const std::string& node) { return !known_.contains(node); });
}

void Agents::find(const std::set<std::string>& nodes, std::function<void(Result<AgentAddresses>)> done) {
  if (nodes.empty()) return done(AgentAddresses{});
  if (!listing_ && !must_list(nodes)) {
    if (!listed_) return done(fail(Code::kUnavailable, "where the agents are is not known yet"));
    return done(known_);
  }
  waiting_.push_back(std::move(done));
  if (std::exchange(listing_, true)) return;
  tried_ = loop_.now();
  list_pods(asker_, which_, [this](Result<std::vector<ListedPod>> pods) { on_listed(std::move(pods)); });
}

void Agents::on_listed(Result<std::vector<ListedPod>> pods) {
  listing_ = false;
  if (pods) {
    listed_ = loop_.now();
    known_.clear();
    // While one takes the other's place there may be two on a node: the one that runs counts.
    for (const auto& pod : *pods) {
      if (pod.node.empty() || pod.ip.empty()) continue;
      if (pod.status == "Running" || !known_.contains(pod.node)) known_[pod.node] = pod.ip;
    }
  } else {
    log::warning("the agents' Pods cannot be listed", pods.error(), {{"selector", which_.label_selector}});
  }
  const Result<AgentAddresses> answer = listed_ ? Result<AgentAddresses>(known_) : fail(pods.error());
  for (const auto& done : std::exchange(waiting_, {})) done(answer);
}

}  // namespace gpulet::metrics_api
