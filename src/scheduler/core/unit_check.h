// Whether one unit of a node satisfies a Pod, and else why not. Pure.
#pragma once

#include <string>
#include <string_view>

#include "scheduler/model/gpu_node.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::scheduler {

// Why a node is rejected.
enum class RejectReason {
  kNone,
  kTooFew,
  kDriver,
  kModel,
  kMemory,
  kCompute,
  kSelector,
  kLinks,
  kNominated,
  kRequest,
  kChoice,
  kLimitGrade,
};
inline constexpr RejectReason kRejectReasons[] = {
    RejectReason::kTooFew,  RejectReason::kDriver,   RejectReason::kModel,     RejectReason::kMemory,
    RejectReason::kCompute, RejectReason::kSelector, RejectReason::kLinks,     RejectReason::kNominated,
    RejectReason::kRequest, RejectReason::kChoice,   RejectReason::kLimitGrade};
std::string_view reject_reason_name(RejectReason reason);  // "too_few": a metric label

// The number of MiB: "40Gi", "1000Mi".
std::string format_mib(std::uint64_t mib);

// Whether a unit satisfies the Pod's constraints and has `memory`, or the first that it fails.
RejectReason check_unit(const PodRequest& request, const GpuNode& node, const NodeResource& resource,
                        const ResourceUnit& unit, const fraction::MemoryAmount& memory);
// What a unit lacks that fails check_unit() for this reason: "compute capability 9.0", "index 0".
std::string describe_constraint(RejectReason reason, const PodRequest& request, const GpuNode& node,
                                const ResourceUnit& unit, const fraction::MemoryAmount& memory);

}  // namespace gpulet::scheduler
