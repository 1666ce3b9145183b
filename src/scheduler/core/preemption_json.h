// The JSON of kube-scheduler's preemption call to an extender. Pure. Source:
// k8s.io/kube-scheduler/extender/v1, ExtenderPreemptionArgs, ExtenderPreemptionResult; Go's JSON decoder
// matches field names in any case.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "scheduler/core/preemption.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::scheduler {

inline constexpr std::size_t kMaxVictims = 100'000;  // of all nodes

struct PreemptionArgs {
  PodRequest pod;
  std::vector<NodeVictims> proposed;
};

// With nodeCacheCapable victims are UIDs (NodeNameToMetaVictims), else whole Pods (NodeNameToVictims), of
// which only the UID is read. A victim without a UID is skipped. Errors: kInvalidArgument for anything else,
// for more than kMaxVictims and for what is nested deeper than kMaxNesting (base/json.h).
Result<PreemptionArgs> parse_preemption_args(std::string_view body);

// The ExtenderPreemptionResult.
std::string preemption_result_json(std::span<const NodeVictims> chosen);

}  // namespace gpulet::scheduler
