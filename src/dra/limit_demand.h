// Whether this node holds the memory of a claim's devices as hard as the Pods that use it demand (annotation
// gpulet.io/min-limit-grade), before the claim is prepared.
//
// A GPU that is the claim's alone satisfies every demand of the only Pod that the claim is reserved for:
// nobody else is on it. A share of a GPU, an admin's access, and a claim of several Pods have the grade that
// fraction/limit_grade.h gives their containers. The kubelet prepares a claim once: a Pod that comes to a
// claim which others use already is not asked.
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
#include "fraction/limit_grade.h"
#include "k8s/object_reader.h"

namespace gpulet::dra {

class ClaimSource;

// Whether the demand of a Pod of this claim counts. Pure.
bool shares_devices(const ResourceClaim& claim);

// Reads the Pods that the claim is reserved for, without those that are gone or not on `node`. `done` is
// called once, not after the source is destroyed. Errors: those of reading a Pod, and kInvalidArgument for
// what is not a Pod.
void read_reserved_pods(ClaimSource& source, const ResourceClaim& claim, const std::string& node,
                        std::function<void(Result<std::vector<k8s::PodMetadata>>)> done);

// `means`: what holds limits, by GPU; none for a device that is not there, as MIG devices. Errors:
// kFailedPrecondition with one line of the Pod, the grade that it demands, what the node gives and why;
// kInvalidArgument for an annotation that is not a grade. Pure.
Status check_limit_demands(const ClaimRecord& record, std::span<const k8s::PodMetadata> pods,
                           const std::map<DeviceUuid, fraction::LimitMeans>& means);

}  // namespace gpulet::dra
