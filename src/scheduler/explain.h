// Why a Pod is where it is, why it is not elsewhere, and what would make it fit: the filter and the scores of
// extender v1, said for a person. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scheduler/cluster_view.h"
#include "scheduler/score.h"

namespace gpulet::scheduler {

struct NodeAnswer {
  std::string node;
  std::string summary;  // "8 GPUs, 1 quarantined, 3 held"
  bool fits = false;
  std::string reason;            // why not; empty where it fits
  int score = 0;                 // 0 to kMaxScore among those that fit
  std::optional<double> policy;  // the policy's own number; higher is better
  std::string devices;           // what it would get: "GPU 0-3, all linked by NV18"
};

struct Explanation {
  std::string pod;     // "namespace/name"
  std::string asks;    // "4 nvidia.com/gpu, linked by NV"
  std::string policy;  // and where that is from: "binpack (of the namespace)"
  std::string bound;   // the node; empty: none yet
  std::string has;     // what it has there
  std::vector<std::string> malformed;
  std::vector<NodeAnswer> nodes;   // best first, those that do not fit last, by name
  std::vector<std::string> hints;  // what would make it fit, where it fits nowhere
};

// "4 nvidia.com/gpu, of H100, linked by NV"
std::string describe(const PodRequest& request);

struct ChosenPolicy {
  std::string name, from;  // "binpack", "of the namespace"
};

// Of every node that publishes something. Cost: O(nodes); hints ask each node once more for each wish.
Explanation explain(ClusterView& view, Scorer& scorer, const PodRequest& request, const ChosenPolicy& policy);

// At most `limit` nodes that do not fit; the rest is counted.
std::string to_text(const Explanation& explanation, std::size_t limit = 20);
std::string to_json(const Explanation& explanation);

}  // namespace gpulet::scheduler
