// The two decisions of an extender: which nodes pass (Filter), and how good each of them is (Scorer). Pure.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/core/cluster_state.h"
#include "scheduler/core/policy.h"
#include "scheduler/core/unit_check.h"

namespace gpulet::scheduler {

// Whether a node can give a Pod the GPUs that it requests, and if not, why, down to the device. Pure.
//
// It checks what kube-scheduler cannot see. It counts nothing that kube-scheduler, Kueue or Volcano count,
// and rejects a node only for its devices. It checks the devices that the node's placement would choose, so
// a node that passes for its links provides them.

struct FilterResult {
  RejectReason reject_reason = RejectReason::kNone;
  // Whether leaving Pods could change it ("resolvable" in extender v1).
  bool resolvable = true;
  // One line: "2/8 held, 1 quarantined (XID 79), 5 free but no linked 4"; empty if it fits.
  std::string reason;
  bool fits() const { return reject_reason == RejectReason::kNone; }
};

// The requirements of a Pod, prepared once for many nodes.
class Filter {
 public:
  explicit Filter(const PodRequest& request);

  // Whether it requests a device of any extended resource.
  bool requests_devices() const { return !needs_.empty(); }
  // Whether the node publishes any of the resources.
  bool is_published(const ClusterNode& node) const;
  // Rejects a Pod whose request contradicts itself or has a malformed choice of GPUs, on any node.
  FilterResult check_request() const;
  // Checks the request for a node that publishes nothing: it also rejects a Pod that demands a grade of its
  // memory limits.
  FilterResult check_unpublished() const;
  // Checks a node, and the request. A node that publishes none of the resources passes
  // check_unpublished(): the kubelet's count decides. Cost: ~100 ns without constraints, else the cost of
  // placement, once per kind of node.
  //
  // A Pod that would take what a nominated Pod of the same or a higher priority waits for is rejected: Pods
  // were evicted for that one, and kube-scheduler keeps its number of devices free, but not which.
  FilterResult check_node(const ClusterNode& node) const;

  // Whether check_node() accepts the node, without the words.
  bool accepts(const ClusterNode& node) const;

 private:
  struct Need {
    ResourceName resource;
    unsigned count = 0;  // at once
  };
  struct Rejection {
    RejectReason reason;
    std::string detail;  // appended to the counts
    std::size_t resource = 0;
  };
  // Whether it matters which devices the node would allocate, beside their number.
  bool is_choice_checked(const ClusterNode& node) const {
    return has_constraints_ || node.node.rules.load == placement::LoadPolicy::kStrict ||
           std::ranges::any_of(node.node.resources, [](const NodeResource& resource) {
             return resource.shares_on != placement::SharesOn::kAnyGpu;
           });
  }
  std::optional<std::string> check_versions(const GpuNode& node) const;
  std::optional<Rejection> check_devices(const ClusterNode& node) const;
  std::optional<Rejection> check_nominated(const ClusterNode& node) const;
  std::optional<Rejection> try_allocate(const ClusterNode& node, std::vector<Shares> free,
                                        bool occupied) const;
  std::optional<Rejection> check_container(const ClusterNode& node, const ContainerRequest& container,
                                           const ContainerAllocation& given, bool occupied) const;
  std::optional<Rejection> check_shares_on(const ClusterNode& node, std::size_t resource,
                                           const Shares& shares) const;
  // `memory_mib`: requested of the unit; 0: nothing.
  std::optional<Rejection> check_load(const ClusterNode& node, std::size_t resource, std::size_t unit,
                                      unsigned shares, std::uint64_t memory_mib) const;
  std::optional<Rejection> check_unreserved(const ClusterNode& node, std::size_t resource, std::size_t unit,
                                            std::uint64_t memory_mib) const;
  std::optional<Rejection> check_numa(const ClusterNode& node, const ContainerAllocation& given) const;
  std::optional<Rejection> check_links(const ClusterNode& node, const ContainerAllocation& given) const;
  std::string describe_counts(const ClusterNode& node, std::size_t resource) const;

  const PodRequest& request_;
  std::vector<Need> needs_;
  bool has_constraints_ = false;
};

// How good each node is for a Pod, in extender v1's range: the policies of policy.h applied to the GpuNodes.
// Pure.

// Source: extender v1, MaxExtenderPriority.
inline constexpr int kMaxScore = 10;

// kube-scheduler itself stops looking after this many feasible nodes.
// Source: kube-scheduler, minFeasibleNodesToFind.
inline constexpr std::size_t kNodesToScore = 100;

// A Pod as a policy's task on this node: whole GPUs, or a part of one. nullopt if the node publishes nothing
// that it requests. Its expected load is for the caller to set: ClusterState::expected_load_of().
std::optional<Task> task_for_node(const ClusterNode& node, const PodRequest& request);

// The indices of the `most` best scores, ascending; ties go to the first. All indices if there are no more.
std::vector<std::size_t> select_best(std::span<const int> scores, std::size_t most);

class Scorer {
 public:
  explicit Scorer(PolicyContext context = {}) : context_(std::move(context)) {}

  // A score of 0 to kMaxScore for each node: 0 without a GpuNode, else 1 for the worst to kMaxScore for the
  // best; equal nodes all have kMaxScore. An unknown `policy` counts as "default". Cost: ~200 ns per node.
  std::vector<int> score_nodes(ClusterState& view, const PodRequest& request, std::string_view policy,
                               std::span<const std::string_view> nodes);
  // The policy's own score, higher is better; nullopt if it has none.
  std::optional<Choice> choose_on_node(ClusterState& view, const PodRequest& request, std::string_view policy,
                                       const ClusterNode& node);

 private:
  const std::shared_ptr<Policy>& find_policy(std::string_view name);

  PolicyContext context_;
  std::map<std::string, std::shared_ptr<Policy>, std::less<>> policies_;
};

}  // namespace gpulet::scheduler
