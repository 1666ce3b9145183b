// Whether this node holds the memory of a claim's devices as hard as the Pods that use it demand (annotation
// gpulet.io/min-limit-grade), before the claim is prepared.
//
// A GPU that is the claim's alone satisfies every demand where the claim was made for one Pod (by a template
// or an extended resource): nobody else is on it. A share of a GPU, an admin's access, and a claim that
// several Pods can use have the grade that fraction/limit_grade.h gives their containers: any Pod can name a
// claim that was made by hand. The kubelet has a claim prepared once: a Pod that comes to a claim which
// others use already is asked when its containers start, where they have a hook for limits
// (agent/fraction/memory_ledger.h). The Pods of a PodGroup that the claim is reserved for (KEP-5729) are not
// asked here: it does not name them.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "dra/claim.h"
#include "dra/claim_record.h"
#include "dra/device_pool.h"
#include "fraction/limit_grade.h"
#include "k8s/object_reader.h"

namespace gpulet::dra {

class ClaimSource;

// Whether others than the Pod of this UID may use the claim's devices. Pure.
bool is_of_several_pods(const ResourceClaim& claim, const std::string& pod_uid);

// Whether the demand of a Pod of this claim counts. Pure.
bool shares_devices(const ResourceClaim& claim);

// Reads the Pods that the claim is reserved for, one at a time up to the first error: without those that are
// gone, have ended, or are on another node than `node`. One that is not bound yet counts, and one that
// terminates. `done` is called once, not after the source is destroyed. Errors: those of reading a Pod, and
// kInvalidArgument for what is not a Pod.
void read_reserved_pods(ClaimSource& source, const ResourceClaim& claim, const std::string& node,
                        std::function<void(Result<std::vector<k8s::PodMetadata>>)> done);

struct DemandNode {
  const std::map<DeviceUuid, fraction::LimitMeans>& means;  // by GPU; none for MIG devices
  const DevicePool& pool;                                   // for the memory of GPUs
};
// Errors:
// kFailedPrecondition with one line of the Pod, the grade that it demands, what the node gives and why;
// kInvalidArgument for an annotation that is not a grade. Pure.
Status check_limit_demands(const ResourceClaim& claim, const ClaimRecord& record,
                           std::span<const k8s::PodMetadata> pods, const DemandNode& node);

}  // namespace gpulet::dra
