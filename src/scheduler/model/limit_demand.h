// The least grade of its memory limits that a Pod demands (annotation gpulet.io/min-limit-grade), and whether
// a node's shared GPUs reach it. Pure.
//
// A device that is not shared satisfies every demand: nobody else is on it. For a container on a shared one,
// grade_of_container() decides (fraction/limit_grade.h), by what the node publishes of itself, the memory
// that the Pod requests, and what its spec lets the container reach.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "scheduler/model/gpu_node.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::scheduler {

// Stores the demand `value` of a Pod. `fields`: of the same Pod. Where the value is invalid, or a
// container breaks a rule that the demand forbids on every node, sets request.request_error, unless it is
// set.
void read_limit_demand(std::string_view value, const nlohmann::json& pod,
                       const fraction::PodFields& fields, PodRequest& request);

// Why one of a node's units does not hold the memory of a container as hard as its Pod demands: "limits GPU
// memory by audit; the Pod demands kernel: …"; nullopt if it does.
std::optional<std::string> find_unmet_demand(const PodRequest& request, std::string_view container,
                                             const GpuNode& node, const NodeResource& resource,
                                             const ResourceUnit& unit);

// The same for all devices that the Pod could get of the node. What the node does not publish is accepted.
std::optional<std::string> find_unmet_demand(const PodRequest& request, const GpuNode& node);

}  // namespace gpulet::scheduler
