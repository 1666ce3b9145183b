// What the owner of a Pod is told: that an annotation is not understood, and that its Pod fits nowhere, and
// why. A Pod that waits is asked about again and again: the same is told every kTellAgain, something else
// every kTellOther. Pure but for the clock that is handed in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/loop.h"
#include "cluster/events.h"
#include "scheduler/extender_json.h"
#include "scheduler/request.h"

namespace gpulet::extender {

inline constexpr Duration kTellAgain = std::chrono::minutes(10);
inline constexpr Duration kTellOther = std::chrono::minutes(1);
inline constexpr std::size_t kMaxTold = 4096;  // Pods and reasons that are remembered

inline constexpr const char* kMalformedReason = "GpuRequestMalformed";
inline constexpr const char* kNowhereReason = "GpuUnschedulable";

class PodEvents {
 public:
  explicit PodEvents(std::function<void(cluster::Event)> send) : send_(std::move(send)) {}

  void malformed(const scheduler::PodRequest& pod, Time now);
  // No node of those that were asked about passes.
  void nowhere(const scheduler::PodRequest& pod, const scheduler::ExtenderArgs& args,
               std::span<const scheduler::ExtenderArgs::Failed> failed, Time now);

  std::uint64_t sent() const { return sent_; }

 private:
  void tell(const scheduler::PodRequest& pod, const char* reason, std::string message, Time now);

  struct Told {
    std::string message;
    Time at;
  };
  std::function<void(cluster::Event)> send_;
  std::map<std::pair<std::string, std::string>, Told> told_;  // by the Pod's UID and the reason
  std::uint64_t sent_ = 0;
};

// "none of 5 nodes: 3 of 8 H100 …": the reasons, the most frequent first, each with its number and one node.
std::string nowhere_message(const scheduler::ExtenderArgs& args,
                            std::span<const scheduler::ExtenderArgs::Failed> failed);

}  // namespace gpulet::extender
