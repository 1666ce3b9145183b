// The JSON that kube-scheduler sends to an extender and receives from it, and Pod objects of the API server.
// Pure. Source: k8s.io/kube-scheduler/extender/v1, ExtenderArgs, ExtenderFilterResult, HostPriorityList; Go's
// JSON decoder matches field names in any case. Kubernetes API v1, Pod.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::scheduler {

// Parses a Pod object of the API server. Errors: kInvalidArgument for invalid JSON, more than kMaxPodBytes or
// a missing name.
Result<PodRequest> parse_pod(std::string_view json);

inline constexpr std::size_t kMaxCandidateNodes = 100'000;
inline constexpr std::size_t kMaxPodBytes = 4u << 20;  // the API server stores 1.5 MiB

// One request of kube-scheduler. Nodes are views into its body, of which nothing is copied: whole Nodes of a
// large cluster are 59 MB.
class ExtenderArgs {
 public:
  // Parses the body, which must live longer than the result. With nodeCacheCapable it has names only, else
  // whole Nodes, which are returned unchanged. Cost: 5,000 names in about 1 ms. Errors: kInvalidArgument for
  // anything else, and for what is nested deeper than kMaxNesting (base/json.h).
  static Result<ExtenderArgs> parse_body(std::string_view body);
  static Result<ExtenderArgs> parse_body(std::string&&) = delete;
  ExtenderArgs(ExtenderArgs&&) = default;
  ExtenderArgs& operator=(ExtenderArgs&&) = default;

  const PodRequest& pod_request() const { return pod_; }
  std::span<const std::string_view> node_names() const { return nodes_; }
  bool has_node_objects() const { return node_objects_; }

  // The ExtenderFilterResult: the nodes at these indices of node_names() pass, the others failed.
  // `resolvable`: a Pod that leaves could change it.
  struct FailedNode {
    std::size_t node = 0;
    bool resolvable = true;
    std::string reason;
  };
  std::string filter_result_json(std::span<const std::size_t> passed,
                                 std::span<const FailedNode> failed) const;
  // The HostPriorityList: a score for each of node_names().
  std::string priorities_json(std::span<const int> scores) const;

 private:
  ExtenderArgs() = default;
  Status read_names(JsonReader& reader);
  Status read_nodes(JsonReader& reader, std::string_view body);
  std::string_view read_node_name(JsonReader& reader);
  std::string_view text_of(std::string_view value);

  PodRequest pod_;
  std::vector<std::string_view> nodes_;    // names
  std::vector<std::string_view> objects_;  // the Nodes of these names, as written; empty with names only
  std::deque<std::string> unescaped_;      // of names that were written with escapes
  bool node_objects_ = false;
};

}  // namespace gpulet::scheduler
