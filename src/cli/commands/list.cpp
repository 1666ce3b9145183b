#include "cli/commands/commands.h"

#include <algorithm>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include <CLI/CLI.hpp>

#include "agent/driver/nvml_driver.h"
#include "base/text.h"
#include "base/yaml_writer.h"
#include "cli/main/command_line.h"
#include "topology/topology.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;
using inventory::Gpu;
using inventory::MigDevice;
using inventory::Snapshot;

std::string cuda_version(unsigned version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string nvlink_summary(const Gpu& gpu) {
  if (gpu.nvlinks.empty()) return kDash;
  const bool switched = gpu.nvlinks.front().kind == inventory::NvLinkRemote::kSwitch;
  return std::to_string(gpu.nvlinks.size()) + (switched ? " switched" : "");
}

std::string mig_mode_text(const Gpu& gpu) {
  if (!gpu.mig_capable) return kDash;
  std::string state = gpu.mig_enabled ? "on" : "off";
  if (gpu.mig_pending) state += *gpu.mig_pending ? " (needs-reset: on)" : " (needs-reset: off)";
  return state;
}

std::vector<std::string> list_header(bool wide) {
  std::vector<std::string> row{"GPU", "MODEL", "MEMORY", "NUMA", "PCI", "NVLINK", "MIG", "STATE", "UUID"};
  if (wide) row.insert(row.end(), {"ARCHITECTURE", "CC", "BRAND", "DEVICE", "SERIAL", "FABRIC"});
  return row;
}

std::vector<std::string> gpu_row(const Gpu& gpu, bool wide) {
  const bool known = !gpu.model.empty();
  std::vector<std::string> row{
      std::to_string(gpu.index),
      dash_if_empty(gpu.model),
      known ? format_bytes(gpu.memory.value) : kDash,
      gpu.numa_node ? std::to_string(*gpu.numa_node) : kDash,
      gpu.pci == inventory::PciAddress{} ? kDash : gpu.pci.sysfs_text(),
      nvlink_summary(gpu),
      mig_mode_text(gpu),
      gpu.unreadable ? std::string(code_name(gpu.unreadable->code())) : "ok",
      dash_if_empty(gpu.uuid.str()),
  };
  if (!wide) return row;
  row.push_back(dash_if_empty(gpu.architecture));
  row.push_back(known ? std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor) : kDash);
  row.push_back(dash_if_empty(gpu.brand));
  row.push_back(known ? "/dev/nvidia" + std::to_string(gpu.minor) : kDash);
  row.push_back(dash_if_empty(gpu.serial));
  row.push_back(gpu.fabric ? gpu.fabric->cluster_uuid + "." + std::to_string(gpu.fabric->clique_id) : kDash);
  return row;
}

std::vector<std::string> mig_row(const Gpu& gpu, const MigDevice& mig) {
  const std::string slices = mig.placement_size == 0
                                 ? kDash
                                 : "slices " + std::to_string(mig.placement_start) + "-" +
                                       std::to_string(mig.placement_start + mig.placement_size - 1);
  return {"  " + std::to_string(gpu.index) + ":" + std::to_string(mig.index),
          "MIG " + mig.profile,
          format_bytes(mig.memory.value),
          kDash,
          "GI " + std::to_string(mig.gpu_instance) + " CI " + std::to_string(mig.compute_instance),
          kDash,
          slices,
          gpu.unreadable ? std::string(code_name(gpu.unreadable->code())) : "ok",
          mig.uuid.str()};
}

std::string inventory_table(const Snapshot& snapshot, bool wide) {
  const std::size_t count = snapshot.gpus.size();
  std::string text = "NVIDIA driver " + snapshot.driver.version + ", CUDA " +
                     cuda_version(snapshot.driver.cuda_version) + ", " + std::to_string(count) +
                     (count == 1 ? " GPU\n" : " GPUs\n");
  if (count == 0) return text;
  TableRows rows{list_header(wide)};
  for (const auto& gpu : snapshot.gpus) {
    rows.push_back(gpu_row(gpu, wide));
    for (const auto& mig : gpu.mig_devices) rows.push_back(mig_row(gpu, mig));
  }
  text += "\n" + render_table(rows);
  for (const auto& gpu : snapshot.gpus) {
    if (!gpu.unreadable) continue;
    text += "GPU " + std::to_string(gpu.index) + " cannot be read: " + gpu.unreadable->message() + "\n";
  }
  return text;
}

Json mig_device_json(const MigDevice& mig) {
  return {{"index", mig.index},
          {"uuid", mig.uuid.str()},
          {"profile", mig.profile},
          {"gpuInstance", mig.gpu_instance},
          {"computeInstance", mig.compute_instance},
          {"gpuSlices", mig.gpu_slices},
          {"computeSlices", mig.compute_slices},
          {"memoryBytes", mig.memory.value},
          {"placement", {{"start", mig.placement_start}, {"size", mig.placement_size}}},
          {"multiprocessors", mig.multiprocessors},
          {"copyEngines", mig.copy_engines},
          {"decoders", mig.decoders},
          {"encoders", mig.encoders},
          {"jpegs", mig.jpegs},
          {"ofas", mig.ofas}};
}

const char* remote_name(inventory::NvLinkRemote kind) {
  if (kind == inventory::NvLinkRemote::kGpu) return "gpu";
  return kind == inventory::NvLinkRemote::kSwitch ? "switch" : "other";
}

Json gpu_json(const Gpu& gpu) {
  Json json{
      {"index", gpu.index},
      {"uuid", gpu.uuid.str()},
      {"model", gpu.model},
      {"brand", gpu.brand},
      {"architecture", gpu.architecture},
      {"computeCapability", std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor)},
      {"memoryBytes", gpu.memory.value},
      {"minor", gpu.minor},
      {"pci", gpu.pci.sysfs_text()},
      {"pciDeviceId", gpu.pci_device_id},
      {"pciSubsystemId", gpu.pci_subsystem_id},
      {"serial", gpu.serial},
      {"numaNode", nullptr},
      {"mig", {{"capable", gpu.mig_capable}, {"enabled", gpu.mig_enabled}, {"pending", nullptr}}},
      {"nvlinks", Json::array()},
      {"fabric", nullptr},
      {"unreadable", nullptr}};
  if (gpu.numa_node) json["numaNode"] = *gpu.numa_node;
  if (gpu.mig_pending) json["mig"]["pending"] = *gpu.mig_pending;
  json["mig"]["devices"] = Json::array();
  for (const auto& mig : gpu.mig_devices) json["mig"]["devices"].push_back(mig_device_json(mig));
  for (const auto& link : gpu.nvlinks) {
    json["nvlinks"].push_back(
        {{"index", link.index}, {"remote", remote_name(link.kind)}, {"pci", link.remote.sysfs_text()}});
  }
  if (gpu.fabric)
    json["fabric"] = {{"clusterUuid", gpu.fabric->cluster_uuid}, {"cliqueId", gpu.fabric->clique_id}};
  if (gpu.unreadable) {
    json["unreadable"] = {{"code", code_name(gpu.unreadable->code())},
                          {"message", gpu.unreadable->message()}};
  }
  return json;
}

Json snapshot_json(const Snapshot& snapshot) {
  Json json{{"driver",
             {{"version", snapshot.driver.version}, {"cuda", cuda_version(snapshot.driver.cuda_version)}}},
            {"gpus", Json::array()}};
  for (const auto& gpu : snapshot.gpus) json["gpus"].push_back(gpu_json(gpu));
  return json;
}

std::string dump_json(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false,
                   Json::error_handler_t::replace);  // a driver's text may be invalid UTF-8
}

YamlNode yaml_node(const Json& json) {
  if (json.is_object()) {
    YamlNode node;
    for (const auto& [key, value] : json.items()) node.add(key, yaml_node(value));
    return node;
  }
  if (json.is_array()) {
    auto node = YamlNode::list();
    for (const auto& value : json) node.items.push_back(yaml_node(value));
    return node;
  }
  const auto text = dump_json(json);
  const bool ascii = std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  return json.is_string() && ascii ? YamlNode::text(json.get<std::string>()) : YamlNode::bare(text);
}

}  // namespace

Result<std::string> list_report(const Snapshot& snapshot, const std::string& output) {
  if (output == "table" || output == "wide") return inventory_table(snapshot, output == "wide");
  if (output == "json") return dump_json(snapshot_json(snapshot), 2) + "\n";
  if (output == "yaml") return write_yaml(yaml_node(snapshot_json(snapshot)));
  return fail(Code::kInvalidArgument,
              "unknown output format '" + output + "'; expected table, wide, json or yaml");
}

int run_list(const ListOptions& options) {
  if (const auto known = list_report({}, options.output); !known) {
    return print_report("gpulet list", known, kWrongCommand);
  }
  const auto snapshot = agent::read_snapshot_once({.driver_root = options.driver_root});
  if (!snapshot) return print_error("gpulet list", snapshot.error().full_message());
  return print_report("gpulet list", list_report(*snapshot, options.output));
}

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

std::string link_label(const Topology& topology, std::size_t a, std::size_t b) {
  if (a == b) return "X";
  std::string label = topology::pair_label(topology.pair_between(a, b));
  return label == "X" ? "PIX" : label;  // two GPUs of one board, as in nvidia-smi
}

std::string gpu_name(const Snapshot& snapshot, std::size_t place) {
  return "GPU" + std::to_string(snapshot.gpus[place].index);
}

// A matrix of `cell(a, b)` with the GPUs' names, and a last column.
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
  return render_table(rows);
}

std::string topology_table(const Snapshot& snapshot, const Topology& topology) {
  if (topology.size == 0) return "no GPUs\n";
  std::string text = matrix(
      snapshot, [&](std::size_t a, std::size_t b) { return link_label(topology, a, b); }, "NUMA Affinity",
      [&](std::size_t a) {
        return topology.numa_nodes[a] ? std::to_string(*topology.numa_nodes[a]) : "N/A";
      });
  text += "\n" + std::string(kLegend) + "\n" + kScores + "\n\n";
  text += matrix(
      snapshot,
      [&](std::size_t a, std::size_t b) {
        return a == b ? std::string("X") : std::to_string(topology::pair_score(topology.pair_between(a, b)));
      },
      "", [](std::size_t) { return std::string(); });
  for (const auto& gpu : snapshot.gpus) {
    if (!gpu.unreadable) continue;
    text += "GPU" + std::to_string(gpu.index) + " cannot be read: " + gpu.unreadable->message() + "\n";
  }
  return text;
}

Json topology_json(const Snapshot& snapshot, const Topology& topology) {
  Json json{{"gpus", Json::array()},
            {"labels", Json::array()},
            {"scores", Json::array()},
            {"nvlinks", Json::array()}};
  for (std::size_t a = 0; a < topology.size; ++a) {
    const auto& gpu = snapshot.gpus[a];
    Json entry{{"index", gpu.index},
               {"uuid", gpu.uuid.str()},
               {"pci", gpu.pci.sysfs_text()},
               {"numaNode", nullptr},
               {"clique", nullptr}};
    if (gpu.numa_node) entry["numaNode"] = *gpu.numa_node;
    if (gpu.fabric) entry["clique"] = gpu.fabric->cluster_uuid + "." + std::to_string(gpu.fabric->clique_id);
    json["gpus"].push_back(std::move(entry));
    Json labels = Json::array(), scores = Json::array(), links = Json::array();
    for (std::size_t b = 0; b < topology.size; ++b) {
      labels.push_back(link_label(topology, a, b));
      scores.push_back(a == b ? 0 : topology::pair_score(topology.pair_between(a, b)));
      links.push_back(topology.pair_between(a, b).nvlinks());
    }
    json["labels"].push_back(std::move(labels));
    json["scores"].push_back(std::move(scores));
    json["nvlinks"].push_back(std::move(links));
  }
  return json;
}

}  // namespace

Result<std::string> topo_report(const Snapshot& snapshot, const std::string& output) {
  const auto topology = topology::build_topology(snapshot);
  if (output == "table") return topology_table(snapshot, topology);
  if (output == "json")
    return topology_json(snapshot, topology).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return fail(Code::kInvalidArgument, "unknown output format '" + output + "'; expected table or json");
}

int run_topo(const TopoOptions& options) {
  if (const auto known = topo_report({}, options.output); !known) {
    return print_report("gpulet topo", known, kWrongCommand);
  }
  const auto snapshot = agent::read_snapshot_once({.driver_root = options.driver_root});
  if (!snapshot) return print_error("gpulet topo", snapshot.error().full_message());
  return print_report("gpulet topo", topo_report(*snapshot, options.output));
}

void add_list(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "list",
                                    .summary = "List this node's GPUs and MIG devices",
                                    .details = "Reads the driver. No agent is needed.",
                                    .examples = "  gpulet list\n"
                                                "  gpulet list -o json"});
  const auto options = std::make_shared<ListOptions>();
  add_output_option(command, options->output, {"table", "wide", "json", "yaml"});
  add_driver_root_option(command, options->driver_root);
  command.callback([options, &run] { run = [options] { return run_list(*options); }; });
}

void add_topo(CLI::App& app, Run& run) {
  auto& command = add_command(
      app,
      {.name = "topo",
       .summary = "Show how this node's GPUs are linked",
       .details = "Prints the matrix of `nvidia-smi topo -m`, and the link scores that placement adds up.",
       .examples = "  gpulet topo\n"
                   "  gpulet topo -o json"});
  const auto options = std::make_shared<TopoOptions>();
  add_output_option(command, options->output, {"table", "json"});
  add_driver_root_option(command, options->driver_root);
  command.callback([options, &run] { run = [options] { return run_topo(*options); }; });
}

}  // namespace gpulet::cli
