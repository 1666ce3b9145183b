// Links and distances between a node's GPUs, as one matrix, and the pair scores that placement adds up. Pure.
//
// NVLinks are seen direct (the remote end is the other GPU) and through NVSwitch: two GPUs whose links end in
// switches of one fabric have the smaller of their two link counts between them. NVIDIA's plugin matches only
// the remote GPU's address, and so scores every NVSwitch machine by PCIe alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "inventory/snapshot.h"

namespace gpulet::topology {

struct Pair {
  inventory::PcieDistance pcie = inventory::PcieDistance::kUnknown;
  unsigned direct_nvlinks = 0;
  unsigned switched_nvlinks = 0;  // through NVSwitch
  unsigned nvlinks() const { return direct_nvlinks + switched_nvlinks; }
  friend bool operator==(const Pair&, const Pair&) = default;
};

// PCIe term 10 SYS, 20 NODE, 30 PHB, 40 PXB, 50 PIX, 60 one board (0 unknown) plus 100 for each NVLink.
// Source: go-gpuallocator's pair scores (facts/mig-and-placement, C), with links through NVSwitch counted
// too.
std::int64_t pair_score(const Pair& pair);

// The word of `nvidia-smi topo -m`: "X", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS".
std::string pair_label(const Pair& pair);

struct Topology {
  std::size_t size = 0;                        // GPUs, by Gpu::index
  std::vector<Pair> pairs;                     // size squared, row by row; symmetric
  std::vector<std::optional<int>> numa_nodes;  // by GPU
  std::vector<std::optional<inventory::Fabric>> fabrics;

  const Pair& pair_between(std::size_t a, std::size_t b) const { return pairs[a * size + b]; }
  friend bool operator==(const Topology&, const Topology&) = default;
};

// Shapes: any number of GPUs, 0 included. Where the two ends disagree on their number of direct links the
// smaller counts (NVIDIA's panics). An unreadable GPU keeps the links and distances that its last good
// reading gave. Cost: O(n² + links). Errors: none.
Topology build_topology(const inventory::Snapshot& snapshot);

}  // namespace gpulet::topology
