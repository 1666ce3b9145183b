#include "extender/pod_events.h"

#include <algorithm>
#include <vector>

namespace gpulet::extender {
namespace {

constexpr std::size_t kMaxReasons = 5;  // in one message

}  // namespace

std::string nowhere_message(const scheduler::ExtenderArgs& args,
                            std::span<const scheduler::ExtenderArgs::Failed> failed) {
  std::map<std::string_view, std::pair<std::size_t, std::string_view>>
      reasons;  // how often, and the first node
  for (const auto& one : failed) {
    auto& [count, node] = reasons[one.reason];
    if (count++ == 0) node = args.nodes()[one.node];
  }
  std::vector<std::pair<std::string_view, std::pair<std::size_t, std::string_view>>> sorted(reasons.begin(),
                                                                                            reasons.end());
  std::ranges::stable_sort(sorted,
                           [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
  std::string text =
      "none of " + std::to_string(failed.size()) + (failed.size() == 1 ? " node: " : " nodes: ");
  for (std::size_t i = 0; i < std::min(sorted.size(), kMaxReasons); ++i) {
    const auto& [reason, where] = sorted[i];
    text.append(i == 0 ? "" : "; ").append(where.second);
    if (where.first > 1) text += " and " + std::to_string(where.first - 1) + " more";
    text.append(": ").append(reason);
  }
  if (sorted.size() > kMaxReasons) text += "; and more (gpulet explain)";
  return text;
}

void PodEvents::malformed(const scheduler::PodRequest& pod, Time now) {
  std::string message;
  for (const auto& one : pod.malformed) message += (message.empty() ? "" : "; ") + one.text();
  if (!message.empty()) tell(pod, kMalformedReason, std::move(message), now);
}

void PodEvents::nowhere(const scheduler::PodRequest& pod, const scheduler::ExtenderArgs& args,
                        std::span<const scheduler::ExtenderArgs::Failed> failed, Time now) {
  if (!failed.empty()) tell(pod, kNowhereReason, nowhere_message(args, failed), now);
}

void PodEvents::tell(const scheduler::PodRequest& pod, const char* reason, std::string message, Time now) {
  if (!send_ || pod.uid.empty()) return;
  const std::pair key(pod.uid, std::string(reason));
  const auto known = told_.find(key);
  if (known != told_.end() &&
      now < known->second.at + (known->second.message == message ? kTellAgain : kTellOther)) {
    return;
  }
  if (known == told_.end() && told_.size() >= kMaxTold) {
    std::erase_if(told_, [&](const auto& entry) { return now >= entry.second.at + kTellAgain; });
    if (told_.size() >= kMaxTold) return;  // so many wait that nobody reads each
  }
  told_[key] = {message, now};
  ++sent_;
  send_({.warning = true,
         .reason = reason,
         .message = std::move(message),
         .pod = {{pod.name_space, pod.name, pod.uid}}});
}

}  // namespace gpulet::extender
