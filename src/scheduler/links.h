// How the GPUs of a node are linked, with what the node's own placement would choose among them: the same
// code, so that the node that a scheduler picks for its links gives the container those links.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "base/strong.h"
#include "placement/chooser.h"
#include "scheduler/node_state.h"
#include "topology/topology.h"

namespace gpulet::scheduler {

struct NodeLinks {
  topology::Topology topology;
  std::vector<DeviceId> ids;  // by GPU number
  std::shared_ptr<const placement::Chooser> chooser;

  // Make one for each kind of machine and share it among its nodes. GPUs beyond kMaxGpus are left out.
  // Cost: ≤ 30 µs for any 8 GPUs, ≤ 50 ms for 16 without twins (placement/chooser.h).
  static std::shared_ptr<const NodeLinks> make(topology::Topology topology);
};

struct LinkedSet {
  GpuSet gpus = 0;
  double pair_score = 0;  // mean of topology::score over the set's pairs; 0 for one GPU
  double of_free = 0;     // the same of all that were free
};
// What the node's placement gives a container that asks for `count` of `free`. Precondition: 1 ≤ count ≤
// |free|.
LinkedSet choose_linked(const NodeLinks& links, GpuSet free, unsigned count);
// Mean of topology::score over all pairs of `gpus`; 0 for fewer than two.
double mean_pair_score(const NodeLinks& links, GpuSet gpus);

// The same, remembered: the choice is the dear part of scoring a node. One thread.
class LinkChooser {
 public:
  LinkedSet choose(const std::shared_ptr<const NodeLinks>& links, GpuSet free, unsigned count);

 private:
  // What is remembered at most; beyond, it begins anew.
  static constexpr std::size_t kMaxRemembered = 100'000;
  struct Key {
    std::shared_ptr<const NodeLinks> links;  // held, so that its address stays its own
    GpuSet free = 0;
    unsigned count = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  std::unordered_map<Key, LinkedSet, KeyHash> known_;
};

}  // namespace gpulet::scheduler
