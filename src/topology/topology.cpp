#include "topology/topology.h"

#include <algorithm>

namespace gpulet::topology {
namespace {

using inventory::Gpu;
using inventory::NvLinkRemote;
using inventory::PcieDistance;

unsigned links_to_gpu(const Gpu& from, const Gpu& to) {
  return static_cast<unsigned>(std::ranges::count_if(from.nvlinks, [&](const auto& link) {
    // A driver too old to report the remote device type still reports its address.
    return link.kind != NvLinkRemote::kSwitch && link.remote == to.pci &&
           link.remote != inventory::PciAddress{};
  }));
}

unsigned links_to_switches(const Gpu& gpu) {
  return static_cast<unsigned>(std::ranges::count_if(
      gpu.nvlinks, [](const auto& link) { return link.kind == NvLinkRemote::kSwitch; }));
}

// Links that both ends report. An unreadable GPU keeps its last reported links, while the other end may
// report them as down: a short outage must not change the topology.
unsigned both_ends(const Gpu& a, unsigned at_a, const Gpu& b, unsigned at_b) {
  if (a.unreadable && !b.unreadable) return at_a;
  if (b.unreadable && !a.unreadable) return at_b;
  return std::min(at_a, at_b);
}

// The switches of one node are one fabric, unless the fabric manager distinguishes them.
bool same_fabric(const Gpu& a, const Gpu& b) { return !a.fabric || !b.fabric || *a.fabric == *b.fabric; }

std::int64_t pcie_score(PcieDistance distance) {
  switch (distance) {
    case PcieDistance::kUnknown:
      return 0;
    case PcieDistance::kSystem:
      return 10;
    case PcieDistance::kNode:
      return 20;
    case PcieDistance::kHostBridge:
      return 30;
    case PcieDistance::kMultiple:
      return 40;
    case PcieDistance::kSingle:
      return 50;
    case PcieDistance::kInternal:
      return 60;
  }
  return 0;
}

}  // namespace

std::int64_t pair_score(const Pair& pair) {
  return pcie_score(pair.pcie) + 100 * std::int64_t{pair.nvlinks()};
}

std::string pair_label(const Pair& pair) {
  if (pair.nvlinks() != 0) return "NV" + std::to_string(pair.nvlinks());
  switch (pair.pcie) {
    case PcieDistance::kUnknown:
      return "N/A";
    case PcieDistance::kSystem:
      return "SYS";
    case PcieDistance::kNode:
      return "NODE";
    case PcieDistance::kHostBridge:
      return "PHB";
    case PcieDistance::kMultiple:
      return "PXB";
    case PcieDistance::kSingle:
      return "PIX";
    case PcieDistance::kInternal:
      return "X";
  }
  return "N/A";
}

Topology build_topology(const inventory::Snapshot& snapshot) {
  Topology topology;
  const std::size_t size = snapshot.gpus.size();
  topology.size = size;
  topology.pairs.resize(size * size);
  const bool distances = snapshot.pcie.size() == size * size;
  for (std::size_t a = 0; a < size; ++a) {
    const Gpu& one = snapshot.gpus[a];
    topology.numa_nodes.push_back(one.numa_node);
    topology.fabrics.push_back(one.fabric);
    topology.pairs[a * size + a].pcie = PcieDistance::kInternal;
    for (std::size_t b = a + 1; b < size; ++b) {
      const Gpu& other = snapshot.gpus[b];
      Pair pair;
      if (distances) {
        pair.pcie = snapshot.pcie_between(a, b);
        if (pair.pcie == PcieDistance::kUnknown) pair.pcie = snapshot.pcie_between(b, a);
      }
      pair.direct_nvlinks = both_ends(one, links_to_gpu(one, other), other, links_to_gpu(other, one));
      if (same_fabric(one, other)) {
        pair.switched_nvlinks = std::min(links_to_switches(one), links_to_switches(other));
      }
      topology.pairs[a * size + b] = topology.pairs[b * size + a] = pair;
    }
  }
  return topology;
}

}  // namespace gpulet::topology
