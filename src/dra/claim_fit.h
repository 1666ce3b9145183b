// Why a claim fits no node, as the scheduler's allocator decides it: selectors, taints, holders, counters and
// constraints of the devices in the ResourceSlices, for people. Pure.
//
// A selector that is not read here (dra/device_selector.h) counts as met, and is named.
// Source: resource.k8s.io/v1 and k8s.io/dynamic-resource-allocation (Kubernetes 1.36).
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/result.h"
#include "base/types.h"

namespace gpulet::dra {

struct NodeFit {
  std::string node;
  bool fits = false;
  std::string reason;  // why it is rejected: "gpus: 1 of 2 free: 3 held by claims team/b"; empty if it fits
  friend bool operator==(const NodeFit&, const NodeFit&) = default;
};

struct ClaimFit {
  std::string claim;  // "team/a"
  std::string uid;
  std::string requests;    // "gpus: 2 of gpu.nvidia.com"
  std::string allocation;  // "gpu-0, gpu-1 of node-1"; empty if it is not allocated
  std::vector<PodRef> pods;
  std::vector<NodeFit> nodes;         // those that fit first, then by name; none if it is allocated
  std::vector<std::string> unjudged;  // selectors that are not read here, and what cannot be read
};

// The inputs are objects of the API server as JSON. `classes`: by name, those that exist. `slices`: of all
// drivers; `claims`: of all namespaces; `taint_rules`: the DeviceTaintRules. What is damaged in them is
// passed over. Errors: kInvalidArgument for a claim that is none. Cost: O(devices × requests × selectors).
Result<ClaimFit> explain_claim_fit(std::string_view claim, const std::map<std::string, std::string>& classes,
                                   std::span<const std::string> slices, std::span<const std::string> claims,
                                   std::span<const std::string> taint_rules = {});
// The Pods that the claim is reserved for.
std::vector<PodRef> reserved_pods(const nlohmann::json& claim);
// The DeviceClasses that the claim's requests name; none where the text is no claim.
std::vector<std::string> claim_classes(std::string_view claim);

// Lists at most `limit` rejected nodes and counts the rest.
std::string claim_fit_text(const ClaimFit& fit, std::size_t limit = 20);

}  // namespace gpulet::dra
