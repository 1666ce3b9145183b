#include "cli/topo_command.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "agent/nvml_driver.h"
#include "cli/text_table.h"
#include "topology/topology.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;
using inventory::Snapshot;
using topology::Topology;

constexpr const char* kLegend = R"(Legend:

  X    = itself
  SYS  = through PCIe and the interconnect between NUMA nodes
  NODE = through PCIe and the interconnect between host bridges of one NUMA node
  PHB  = through one PCIe host bridge
  PXB  = through several PCIe bridges, not the host bridge
  PIX  = through at most one PCIe bridge
  NV#  = through # NVLinks together
)";
constexpr const char* kScores =
    "Scores (100 for each NVLink; SYS 10, NODE 20, PHB 30, PXB 40, PIX 50, one board 60):";

std::string word(const Topology& topology, std::size_t a, std::size_t b) {
  if (a == b) return "X";
  std::string label = topology::label(topology.between(a, b));
  return label == "X" ? "PIX" : label;  // two GPUs of one board, as nvidia-smi has it
}

std::string gpu_name(const Snapshot& snapshot, std::size_t place) {
  return "GPU" + std::to_string(snapshot.gpus[place].index);
}

// A matrix of `cell(a, b)` with the GPUs' names about it, and what `last` adds to each row.
template <class Cell, class Last>
std::string matrix(const Snapshot& snapshot, Cell cell, const std::string& last_title, Last last) {
  std::vector<std::vector<std::string>> rows(1, {""});
  for (std::size_t a = 0; a < snapshot.gpus.size(); ++a) rows[0].push_back(gpu_name(snapshot, a));
  if (!last_title.empty()) rows[0].push_back(last_title);
  for (std::size_t a = 0; a < snapshot.gpus.size(); ++a) {
    std::vector<std::string> row{gpu_name(snapshot, a)};
    for (std::size_t b = 0; b < snapshot.gpus.size(); ++b) row.push_back(cell(a, b));
    if (!last_title.empty()) row.push_back(last(a));
    rows.push_back(std::move(row));
  }
  return text_table(rows);
}

std::string topology_table(const Snapshot& snapshot, const Topology& topology) {
  if (topology.size == 0) return "no GPUs\n";
  std::string text = matrix(
      snapshot, [&](std::size_t a, std::size_t b) { return word(topology, a, b); }, "NUMA Affinity",
      [&](std::size_t a) { return topology.numa_nodes[a] ? std::to_string(*topology.numa_nodes[a]) : "N/A"; });
  text += "\n" + std::string(kLegend) + "\n" + kScores + "\n\n";
  text += matrix(
      snapshot,
      [&](std::size_t a, std::size_t b) {
        return a == b ? std::string("X") : std::to_string(topology::score(topology.between(a, b)));
      },
      "", [](std::size_t) { return std::string(); });
  for (const auto& gpu : snapshot.gpus) {
    if (!gpu.unreadable) continue;
    text += "GPU" + std::to_string(gpu.index) + " cannot be read: " + gpu.unreadable->message() + "\n";
  }
  return text;
}

Json to_json(const Snapshot& snapshot, const Topology& topology) {
  Json json{{"gpus", Json::array()}, {"labels", Json::array()}, {"scores", Json::array()}, {"nvlinks", Json::array()}};
  for (std::size_t a = 0; a < topology.size; ++a) {
    const auto& gpu = snapshot.gpus[a];
    Json entry{{"index", gpu.index}, {"uuid", gpu.uuid.str()}, {"pci", gpu.pci.sysfs()}, {"numaNode", nullptr},
               {"clique", nullptr}};
    if (gpu.numa_node) entry["numaNode"] = *gpu.numa_node;
    if (gpu.fabric) entry["clique"] = gpu.fabric->cluster_uuid + "." + std::to_string(gpu.fabric->clique_id);
    json["gpus"].push_back(std::move(entry));
    Json labels = Json::array(), scores = Json::array(), links = Json::array();
    for (std::size_t b = 0; b < topology.size; ++b) {
      labels.push_back(word(topology, a, b));
      scores.push_back(a == b ? 0 : topology::score(topology.between(a, b)));
      links.push_back(topology.between(a, b).nvlinks());
    }
    json["labels"].push_back(std::move(labels));
    json["scores"].push_back(std::move(scores));
    json["nvlinks"].push_back(std::move(links));
  }
  return json;
}

}  // namespace

Result<std::string> topo_report(const Snapshot& snapshot, const std::string& output) {
  const auto topology = topology::build(snapshot);
  if (output == "table") return topology_table(snapshot, topology);
  if (output == "json") return to_json(snapshot, topology).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return fail(Code::kInvalidArgument, "there is no output '" + output + "': table or json");
}

int topo(const TopoOptions& options) {
  if (const auto known = topo_report({}, options.output); !known) {
    std::cerr << "gpulet topo: " << known.error().text() << '\n';
    return 2;
  }
  const auto snapshot = agent::read_snapshot({.driver_root = options.driver_root});
  if (!snapshot) {
    std::cerr << "gpulet topo: " << snapshot.error().text() << '\n';
    return 1;
  }
  std::cout << *topo_report(*snapshot, options.output) << std::flush;
  return 0;
}

}  // namespace gpulet::cli
