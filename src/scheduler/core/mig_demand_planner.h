// Which nodes should cut MIG devices for the Pods that wait: kube-scheduler rejects a Pod whose resource no
// node has, before an extender is asked, so somebody else must notice it. Pure.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "scheduler/model/mig_demand.h"

namespace gpulet::scheduler {

// A Pod that kube-scheduler found no node for, and the one resource that it requests.
struct WaitingPod {
  std::string pod;  // "namespace/name"
  std::string uid;
  ResourceName resource;
  unsigned count = 0;
  std::string created{};  // metadata.creationTimestamp, RFC 3339 in UTC: sorts by time
  friend bool operator==(const WaitingPod&, const WaitingPod&) = default;
};

// Reads a Pod object of the API server. nullopt if it is malformed, bound, leaving, nominated, requests no
// extended resource or several, or if no node is short of that: kube-scheduler's message says "Insufficient
// <resource>" of a node where the Pod may run and only resources lack. Source: NodeResourcesFit, fitsRequest.
std::optional<WaitingPod> parse_waiting_pod(std::string_view object);

// What a node has and could have.
struct MigSupply {
  std::map<ResourceName, unsigned> free;
  MigOffer offer;
  MigDemand recorded;  // in its status
};

struct MigDemandPlan {
  // By node; a node without a request is absent.
  std::map<std::string, std::vector<MigDemand::Request>> requests;
  std::map<std::string, std::string> node_of;  // by Pod
  std::map<std::string, std::string> unmet;    // why no node cuts for a Pod that one could cut for
};

// `pods`: those that wait longest first. A Pod stays with the node that its demand is recorded for while that
// can serve it, so that replicas agree and nothing is cut twice. No node is asked for a Pod while there is
// room for it, on any node; otherwise the one with the fewest Pods, then the first by name, that can have all
// its devices free. `refused`: pairs of Pod and node that are not tried.
MigDemandPlan plan_mig_demand(std::span<const WaitingPod> pods, const std::map<std::string, MigSupply>& nodes,
                              const std::set<std::pair<std::string, std::string>>& refused);

}  // namespace gpulet::scheduler
