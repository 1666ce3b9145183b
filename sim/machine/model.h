// GPU models (names, clocks, limits, MIG profiles) and the links between a machine's GPUs: NVLink, directly
// or through NVSwitches, and the PCIe topology. docs/SIMULATOR.md lists the keys.
#pragma once

#include <array>

#include "sim/machine/section.h"

namespace gpulet::sim {

struct NvLinkKind {
  std::uint8_t version = 0;  // nvml.h's number: 6 for 4.0; 0: no NVLink
  std::uint32_t speed_mbps = 0;
};
using NvLinkKinds = std::array<NvLinkKind, kMaxGpus>;

// Parses `links: {matrix: [[0, 1], [1, 0]]}`, a symmetric count per pair; or `links: {nvswitch: 18}`; or
// `links: {nvswitch: {links: 18, switches: [address...], device_id: 0x22A310DE, boards: 1}}`.
void read_links(FirstError& problem, Section& machine_section, Machine& machine, const NvLinkKinds& kinds);

// Parses `topology: {single: [[0, 1]], multiple: ..., host_bridge: ...}`: groups of GPUs by their closest
// connection. Other pairs share a NUMA node or the system.
void read_topology(FirstError& problem, Section& machine_section, Machine& machine);

// Returns a GPU that reports nothing yet.
Gpu blank_gpu();

// Parses the model's keys of `section` into `gpu`. Absent keys leave it unchanged, so that a GPU can override
// single keys. `link` receives the kind of NVLink. The caller reports unknown keys.
void read_model(FirstError& problem, Section& section, Gpu& gpu, NvLinkKind& link);

// Derives what depends on the other fields: events, idle state.
void complete_gpu(Gpu& gpu);

}  // namespace gpulet::sim
