#include "sim/machine/links.h"

#include <algorithm>

namespace gpulet::sim {
namespace {

constexpr std::uint32_t kHopperSwitch = 0x22a310de;

std::size_t links_of(const Gpu& gpu) {
  return static_cast<std::size_t>(std::count_if(std::begin(gpu.links), std::end(gpu.links),
                                                [](const NvLink& l) { return l.present != 0; }));
}

NvLink trained_link(const NvLinkKind& kind) {
  NvLink link{};
  link.present = link.active = 1;
  link.version = kind.version;
  link.speed_mbps = kind.speed_mbps;
  return link;
}

// Every GPU that is linked needs a model that says which NVLink it has.
bool has_kinds(Problem& problem, const Node& node, const std::string& path, const Machine& machine,
               const NvLinkKinds& kinds) {
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    if (kinds[i].version != 0) continue;
    problem.report(node, path,
                   "GPU " + std::to_string(i) + " has no NVLink: its model needs the key 'nvlink'");
    return false;
  }
  return true;
}

// `count` links between two GPUs, each the next free one at both ends.
void join(Machine& machine, std::uint32_t a, std::uint32_t b, std::int64_t count, const NvLinkKinds& kinds) {
  for (std::int64_t n = 0; n < count; ++n) {
    Gpu& one = machine.gpus[a];
    Gpu& other = machine.gpus[b];
    const std::size_t at_one = links_of(one);
    const std::size_t at_other = links_of(other);
    NvLink link = trained_link(kinds[a]);
    link.remote = kRemoteGpu;
    link.remote_pci = other.pci;
    link.remote_device_id = other.pci_device_id;
    link.remote_link = static_cast<std::uint32_t>(at_other);
    one.links[at_one] = link;
    link = trained_link(kinds[b]);
    link.remote = kRemoteGpu;
    link.remote_pci = one.pci;
    link.remote_device_id = one.pci_device_id;
    link.remote_link = static_cast<std::uint32_t>(at_one);
    other.links[at_other] = link;
  }
}

void read_matrix(Problem& problem, const Node& node, const std::string& path, Machine& machine,
                 const NvLinkKinds& kinds) {
  const std::size_t gpus = machine.gpu_count;
  if (node.kind != Node::Kind::kSequence || node.items.size() != gpus) {
    problem.report(node, path, "needs a list of " + std::to_string(gpus) + " rows, one for each GPU");
    return;
  }
  if (!has_kinds(problem, node, path, machine, kinds)) return;
  std::vector<std::vector<std::int64_t>> rows;
  for (std::size_t i = 0; i < gpus; ++i) {
    const std::string row = path + "[" + std::to_string(i) + "]";
    rows.push_back(read_integers(problem, node.items[i], row, {0, static_cast<std::int64_t>(kMaxLinks)}));
    if (problem.any()) return;
    if (rows[i].size() != gpus)
      problem.report(node.items[i], row, "needs " + std::to_string(gpus) + " counts of links");
    if (problem.any()) return;
    std::int64_t total = 0;
    for (const std::int64_t count : rows[i]) total += count;
    if (rows[i][i] != 0)
      problem.report(node.items[i], row,
                     "a GPU has no link to itself: entry " + std::to_string(i) + " must be 0");
    if (total > static_cast<std::int64_t>(kMaxLinks))
      problem.report(node.items[i], row, "a GPU has at most 36 links");
    for (std::size_t j = 0; j < i; ++j) {
      if (rows[i][j] == rows[j][i]) continue;
      problem.report(
          node.items[i], row + "[" + std::to_string(j) + "]",
          "is " + std::to_string(rows[i][j]) + ", but the other way it is " + std::to_string(rows[j][i]));
    }
  }
  if (problem.any()) return;
  for (std::uint32_t i = 0; i < gpus; ++i) {
    for (std::uint32_t j = i + 1; j < gpus; ++j) join(machine, i, j, rows[i][j], kinds);
  }
}

struct SwitchFabric {
  std::int64_t links = 0;  // of each GPU
  std::int64_t boards = 1;
  std::uint32_t device_id = kHopperSwitch;
  std::vector<PciAddress> switches;  // empty: not on this node's PCI
};

// GPUs and switches are shared out evenly to the boards, in order; a GPU's links to its board's switches
// likewise.
void lay_switch_links(Machine& machine, const SwitchFabric& fabric, const NvLinkKinds& kinds) {
  const auto boards = static_cast<std::size_t>(fabric.boards);
  const auto links = static_cast<std::size_t>(fabric.links);
  const std::size_t gpus_on_board = (machine.gpu_count + boards - 1) / boards;
  const std::size_t switches_on_board = fabric.switches.size() / boards;
  std::vector<std::uint32_t> ports(std::max<std::size_t>(1, fabric.switches.size()), 0);
  for (std::size_t i = 0; i < machine.gpu_count; ++i) {
    for (std::size_t n = 0; n < links; ++n) {
      NvLink link = trained_link(kinds[i]);
      link.remote = kRemoteSwitch;
      std::size_t chosen = 0;
      if (switches_on_board != 0) {
        chosen = i / gpus_on_board * switches_on_board + n * switches_on_board / links;
        link.remote_pci = fabric.switches[chosen];
        link.remote_device_id = fabric.device_id;
      }
      link.remote_link = ports[chosen]++;
      machine.gpus[i].links[n] = link;
    }
  }
}

void read_nvswitch(Problem& problem, const Node& node, const std::string& path, Machine& machine,
                   const NvLinkKinds& kinds) {
  constexpr Range kLinks{1, static_cast<std::int64_t>(kMaxLinks)};
  SwitchFabric fabric;
  if (node.kind == Node::Kind::kMapping) {
    Section section(problem, node, path);
    section.need("links");
    section.integer("links", fabric.links, kLinks);
    section.integer("boards", fabric.boards, {1, 8});
    section.pci_id("device_id", fabric.device_id);
    if (const Node* list = section.take("switches")) {
      const std::string where = section.path("switches");
      if (list->kind != Node::Kind::kSequence) problem.report(*list, where, "needs a list of PCI addresses");
      for (std::size_t i = 0; i < list->items.size(); ++i) {
        const auto address = read_pci_address(problem, list->items[i], where + "[" + std::to_string(i) + "]");
        if (address) fabric.switches.push_back(*address);
      }
      if (fabric.switches.size() % static_cast<std::size_t>(fabric.boards) != 0) {
        problem.report(*list, where,
                       "needs as many switches on each of the " + std::to_string(fabric.boards) + " boards");
      }
    }
    section.finish();
  } else if (const auto count = read_integer(problem, node, path, kLinks)) {
    fabric.links = *count;
  }
  if (problem.any() || !has_kinds(problem, node, path, machine, kinds)) return;
  lay_switch_links(machine, fabric, kinds);
}

void read_groups(Problem& problem, Section& topology, const std::string& key, TopologyLevel level,
                 Machine& machine) {
  const Node* node = topology.take(key);
  if (node == nullptr) return;
  const std::string path = topology.path(key);
  if (node->kind != Node::Kind::kSequence) {
    problem.report(*node, path, "needs a list of groups of GPUs, like [[0, 1], [2, 3]]");
    return;
  }
  for (std::size_t i = 0; i < node->items.size(); ++i) {
    const auto group = read_integers(problem, node->items[i], path + "[" + std::to_string(i) + "]",
                                     {0, static_cast<std::int64_t>(machine.gpu_count) - 1});
    for (const std::int64_t a : group) {
      for (const std::int64_t b : group) {
        std::uint8_t& known = machine.gpus[a].topology[b];
        if (a != b) known = std::min<std::uint8_t>(known, level);
      }
    }
  }
}

}  // namespace

void read_links(Problem& problem, Section& machine_section, Machine& machine, const NvLinkKinds& kinds) {
  const Node* node = machine_section.take("links");
  if (node == nullptr || problem.any()) return;
  Section section(problem, *node, machine_section.path("links"));
  const Node* matrix = section.take("matrix");
  const Node* nvswitch = section.take("nvswitch");
  section.finish();
  if (problem.any()) return;
  if ((matrix != nullptr) == (nvswitch != nullptr)) {
    problem.report(*node, machine_section.path("links"), "needs either 'matrix' or 'nvswitch'");
    return;
  }
  if (matrix != nullptr) read_matrix(problem, *matrix, section.path("matrix"), machine, kinds);
  if (nvswitch != nullptr) read_nvswitch(problem, *nvswitch, section.path("nvswitch"), machine, kinds);
}

void read_topology(Problem& problem, Section& machine_section, Machine& machine) {
  for (std::uint32_t a = 0; a < machine.gpu_count; ++a) {
    for (std::uint32_t b = 0; b < machine.gpu_count; ++b) {
      const bool one_node =
          machine.gpus[a].numa_node == machine.gpus[b].numa_node && machine.gpus[a].numa_node >= 0;
      machine.gpus[a].topology[b] = a == b ? kTopologyInternal : one_node ? kTopologyNode : kTopologySystem;
    }
  }
  const Node* node = machine_section.take("topology");
  if (node == nullptr) return;
  Section section(problem, *node, machine_section.path("topology"));
  read_groups(problem, section, "internal", kTopologyInternal, machine);
  read_groups(problem, section, "single", kTopologySingle, machine);
  read_groups(problem, section, "multiple", kTopologyMultiple, machine);
  read_groups(problem, section, "host_bridge", kTopologyHostBridge, machine);
  section.finish();
}

}  // namespace gpulet::sim
