// The links between a node's GPUs: their compact encoding in a GpuNode, and what the node's placement would
// choose among them. Pure.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "placement/chooser.h"
#include "scheduler/model/node_state.h"
#include "topology/topology.h"

namespace gpulet::scheduler {

// A compact encoding of the links between a node's GPUs: the classes of pair once, and a letter per pair.
// Pure.

inline constexpr std::size_t kMaxLinkClasses = 52;

struct LinkMatrix {
  std::vector<std::string>
      classes;        // "SYS", "PIX+NV4" (direct), "SYS+NVS18" (through switches); in order of appearance
  std::string pairs;  // A-Z, a-z: (0,1), (0,2) … (1,2) …; no diagonal
  friend bool operator==(const LinkMatrix&, const LinkMatrix&) = default;
};

// Encodes `pairs`, `size` squared, row by row, symmetric. Classes beyond kMaxLinkClasses become the last
// one.
LinkMatrix encode_link_matrix(const std::vector<topology::Pair>& pairs, std::size_t size);

// Errors: kInvalidArgument for an unknown class, a letter without a class, and a wrong length.
Result<std::vector<topology::Pair>> decode_link_matrix(const LinkMatrix& matrix, std::size_t size);

// The GPU links of a node, and what the node's placement would choose among them: the same code, so a node
// picked for its links gives the container those links.

struct NodeLinks {
  topology::Topology topology;
  std::vector<DeviceId> ids;  // by GPU number
  std::shared_ptr<const placement::Chooser> chooser;

  // Create one per machine topology and share it among its nodes. GPUs beyond kMaxGpus are dropped. Cost: ≤
  // 30 µs for any 8 GPUs, ≤ 50 ms for 16 without twins (placement/chooser.h).
  static std::shared_ptr<const NodeLinks> make_links(topology::Topology topology);
};

struct LinkedSet {
  GpuSet gpus = 0;
  double pair_score = 0;       // mean of topology::score over the set's pairs; 0 for one GPU
  double free_pair_score = 0;  // the same for all free GPUs
};
// What the node's placement gives a container that requests `count` of `free`. Precondition: 1 ≤ count ≤
// |free|.
LinkedSet choose_linked_gpus(const NodeLinks& links, GpuSet free, unsigned count);
// Mean of topology::score over all pairs of `gpus`; 0 for fewer than two.
double mean_pair_score(const NodeLinks& links, GpuSet gpus);

// A cache in front of it: choosing is the expensive part of scoring a node. One thread.
class LinkChooser {
 public:
  LinkedSet choose_gpus(const std::shared_ptr<const NodeLinks>& links, GpuSet free, unsigned count);

 private:
  // Cache limit; beyond it the cache is cleared.
  static constexpr std::size_t kMaxCached = 100'000;
  struct Key {
    std::shared_ptr<const NodeLinks> links;  // held, so that its address is not reused
    GpuSet free = 0;
    unsigned count = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  std::unordered_map<Key, LinkedSet, KeyHash> cache_;
};

}  // namespace gpulet::scheduler
