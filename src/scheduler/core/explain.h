// Why a Pod is on its node, why other nodes are rejected, and what would make it fit: the extender's filter
// and scores, for people. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler/core/cluster_state.h"
#include "scheduler/core/decision.h"

namespace gpulet::scheduler {

struct NodeExplanation {
  std::string node;
  std::string summary;  // "8 GPUs, 1 quarantined, 3 held"
  bool fits = false;
  std::string reason;                  // why it is rejected; empty if it fits
  int score = 0;                       // 0 to kMaxScore among nodes that fit
  std::optional<double> policy_score;  // the policy's own score; higher is better
  std::string devices;                 // what it would get: "GPU 0-3, all linked by NV18"
};

struct Explanation {
  std::string pod;       // "namespace/name"
  std::string requests;  // "4 nvidia.com/gpu, linked by NV"
  std::string policy;    // with its source: "binpack (from the namespace)"
  std::string node;      // the node it is bound to; empty if none
  std::string devices;   // its devices there
  // Those of them that are withdrawn or flagged: "GPU 2 is lost: XID 79: GPU has fallen off the bus"
  std::vector<std::string> faults;
  std::vector<std::string> malformed;
  std::vector<NodeExplanation> nodes;  // best first; rejected nodes last, by name
  std::vector<std::string> hints;      // what would make it fit, if it fits nowhere
  std::vector<std::string> notes{};    // what its node, or nodes where it fits, do not hold of its requests
};

// "4 nvidia.com/gpu, of H100, linked by NV"
std::string describe_request(const PodRequest& request);

struct SelectedPolicy {
  std::string name, source;  // "binpack", "from the namespace"
};

// Covers every node with a GpuNode. Cost: O(nodes); hints check each node once more per constraint.
Explanation explain_placement(ClusterState& view, Scorer& scorer, const PodRequest& request,
                              const SelectedPolicy& policy);

// Lists at most `limit` rejected nodes and counts the rest.
std::string explanation_text(const Explanation& explanation, std::size_t limit = 20);
std::string explanation_json(const Explanation& explanation);

}  // namespace gpulet::scheduler
