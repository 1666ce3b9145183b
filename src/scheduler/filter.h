// Whether a node can give a Pod what it asks of GPUs, and why not, down to the device. Pure.
//
// It judges what kube-scheduler cannot see: it counts nothing that kube-scheduler, Kueue or Volcano count,
// and refuses a node only for its devices. What the node's own placement would give is what is judged, so
// that a node which passes for its links gives them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scheduler/cluster_view.h"

namespace gpulet::scheduler {

enum class Refusal { kNone, kTooFew, kDriver, kModel, kMemory, kCompute, kSelector, kLinks };
inline constexpr Refusal kRefusals[] = {Refusal::kTooFew, Refusal::kDriver,  Refusal::kModel,
                                        Refusal::kMemory, Refusal::kCompute, Refusal::kSelector,
                                        Refusal::kLinks};
std::string_view name(Refusal refusal);  // "too_few", for metrics

struct Verdict {
  Refusal refusal = Refusal::kNone;
  // Whether other Pods leaving could change it: what extender v1 calls resolvable.
  bool resolvable = true;
  // One line: "2/8 held, 1 quarantined (XID 79), 5 free but no linked 4"; empty where it fits.
  std::string reason;
  bool fits() const { return refusal == Refusal::kNone; }
};

// What a Pod needs of each resource at once, made once for many nodes.
class Filter {
 public:
  explicit Filter(const PodRequest& request);

  // Whether it wants a device of any extended resource at all.
  bool wants() const { return !needs_.empty(); }
  // A node that publishes none of the resources passes: the kubelet's count decides.
  // Cost: ~100 ns without wishes; with them what placement takes, once for nodes that are alike.
  Verdict judge(const NodeView& node) const;

  // Whether the unit of a resource is what the Pod wants; which wish it fails otherwise.
  Refusal suits(const GpuNode& node, const NodeResource& resource, const Unit& unit) const;

 private:
  struct Need {
    ResourceName resource;
    unsigned count = 0;  // at once
  };
  struct Failed {
    Refusal refusal;
    std::string tail;  // what is said after the counts
    std::size_t resource = 0;
  };
  std::optional<Failed> try_on(const NodeView& node, std::vector<Shares> free, bool occupied) const;
  std::optional<Failed> check(const NodeView& node, const ContainerRequest& container, const Given& given,
                              bool occupied) const;
  std::optional<Failed> check_links(const NodeView& node, const Given& given) const;
  std::string counts(const NodeView& node, std::size_t resource) const;
  std::string wanted(Refusal refusal) const;

  const PodRequest& request_;
  std::vector<Need> needs_;
};

}  // namespace gpulet::scheduler
