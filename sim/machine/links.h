// How a machine's GPUs are joined: NVLink directly or through NVSwitches, and what PCIe stands between them.
#pragma once

#include <array>

#include "sim/machine/section.h"

namespace gpulet::sim {

struct NvLinkKind {
  std::uint8_t version = 0;  // as nvml.h numbers them: 6 for 4.0; 0: the GPU has no NVLink
  std::uint32_t speed_mbps = 0;
};
using NvLinkKinds = std::array<NvLinkKind, kMaxGpus>;

// `links: {matrix: [[0, 1], [1, 0]]}`, a count for each pair, symmetric; or `links: {nvswitch: 18}`; or
// `links: {nvswitch: {links: 18, switches: [address...], device_id: 0x22A310DE, boards: 1}}`.
void read_links(Problem& problem, Section& machine_section, Machine& machine, const NvLinkKinds& kinds);

// `topology: {single: [[0, 1]], multiple: ..., host_bridge: ...}`: groups of GPUs and what is nearest among
// them. What no group says: one NUMA node or the whole system.
void read_topology(Problem& problem, Section& machine_section, Machine& machine);

}  // namespace gpulet::sim
