#include "cli/commands/commands.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include <CLI/CLI.hpp>

#include "agent/driver/nvml_driver.h"
#include "arguments/arguments.h"
#include "base/cuda_version.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/main/command_line.h"
#include "health/report/health_report.h"
#include "topology/topology.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;
using inventory::Gpu;
using inventory::MigDevice;
using inventory::Snapshot;

constexpr Duration kAgentLimit = std::chrono::seconds(2);

std::string nvlink_summary(const Gpu& gpu, const TableStyle& style) {
  if (gpu.nvlinks.empty()) return kDash;
  const bool switched = gpu.nvlinks.front().kind == inventory::NvLinkRemote::kSwitch;
  return std::to_string(gpu.nvlinks.size()) + (switched && style.wide ? " switched" : "");
}

std::string mig_mode_text(const Gpu& gpu, const TableStyle& style) {
  if (!gpu.mig_capable) return kDash;
  const std::string state = gpu.mig_enabled ? "on" : "off";
  if (!gpu.mig_pending) return state;
  const std::string pending = *gpu.mig_pending ? "on" : "off";
  return style.wide ? state + " (needs-reset: " + pending + ")" : state + " (→" + pending + ")";
}

const std::vector<Column> kGpuColumns{{"GPU"},
                                      {"MODEL"},
                                      {"MEMORY"},
                                      {"NUMA"},
                                      {"PCI", ColumnUse::kWide},
                                      {"NVLINK"},
                                      {"MIG"},
                                      {"STATE"},
                                      {"UUID"},
                                      {"ARCHITECTURE", ColumnUse::kWide},
                                      {"CC", ColumnUse::kWide},
                                      {"BRAND", ColumnUse::kWide},
                                      {"DEVICE", ColumnUse::kWide},
                                      {"SERIAL", ColumnUse::kWide},
                                      {"FABRIC", ColumnUse::kWide}};

const agent::GpuMove* find_move(const agent::ClaimStatus& claims, const Gpu& gpu) {
  const auto move = std::ranges::find(claims.moves, gpu.uuid, &agent::GpuMove::gpu);
  return gpu.uuid.empty() || move == claims.moves.end() ? nullptr : &*move;
}

std::string read_state(const Gpu& gpu, const agent::ClaimStatus& claims) {
  if (gpu.unreadable) return std::string(code_name(gpu.unreadable->code()));
  if (!gpu.excluded.empty()) return "excluded";
  const auto* move = find_move(claims, gpu);
  if (move == nullptr) return "ok";
  return move->to_claims ? "ok (→claims)" : "ok (→device plugin)";
}

std::vector<std::string> gpu_row(const Gpu& gpu, const agent::ClaimStatus& claims, const TableStyle& style) {
  const bool known = !gpu.model.empty();
  return {std::to_string(gpu.index),
          model_cell(gpu.model, style),
          known ? format_bytes(gpu.memory.value) : kDash,
          gpu.numa_node ? std::to_string(*gpu.numa_node) : kDash,
          gpu.pci == inventory::PciAddress{} ? kDash : gpu.pci.sysfs_text(),
          nvlink_summary(gpu, style),
          mig_mode_text(gpu, style),
          read_state(gpu, claims),
          uuid_cell(gpu.uuid.str(), style),
          dash_if_empty(gpu.architecture),
          known ? std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor) : kDash,
          dash_if_empty(gpu.brand),
          known ? "/dev/nvidia" + std::to_string(gpu.minor) : kDash,
          dash_if_empty(gpu.serial),
          gpu.fabric ? gpu.fabric->cluster_uuid + "." + std::to_string(gpu.fabric->clique_id) : kDash};
}

std::vector<std::string> mig_row(const Gpu& gpu, const MigDevice& mig, const agent::ClaimStatus& claims,
                                 const TableStyle& style) {
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
          read_state(gpu, claims),
          uuid_cell(mig.uuid.str(), style)};
}

// " (for 5m)".
std::string waited_text(WallTime since, WallTime now) {
  const auto waited = std::chrono::floor<std::chrono::seconds>(now - since);
  return " (for " + format_duration(std::max(waited, std::chrono::seconds(0))) + ")";
}

std::string inventory_table(const Snapshot& snapshot, const agent::ClaimStatus& claims, WallTime now,
                            const TableStyle& style) {
  const std::size_t count = snapshot.gpus.size();
  std::string text;
  if (style.headers) {
    text = "NVIDIA driver " + snapshot.driver.version + ", CUDA " +
           cuda_version_text(snapshot.driver.cuda_version) + ", " + std::to_string(count) +
           (count == 1 ? " GPU\n" : " GPUs\n");
  }
  if (count == 0) return text;
  TableRows rows;
  for (const auto& gpu : snapshot.gpus) {
    rows.push_back(gpu_row(gpu, claims, style));
    for (const auto& mig : gpu.mig_devices) rows.push_back(mig_row(gpu, mig, claims, style));
  }
  text += (style.headers ? "\n" : "") + draw_table(kGpuColumns, rows, style);
  if (!style.headers) return text;
  for (const auto& gpu : snapshot.gpus) {
    const std::string name = "GPU " + std::to_string(gpu.index);
    if (gpu.unreadable) text += name + " cannot be read: " + gpu.unreadable->message() + "\n";
    if (!gpu.excluded.empty()) text += name + " " + gpu.excluded + "\n";
    if (const auto* move = find_move(claims, gpu))
      text += name + " " + move->reason + waited_text(move->since, now) + "\n";
  }
  for (const auto& claim : claims.waiting) {
    text += "claim " + claim.name_space + "/" + claim.name + " is not prepared: " + claim.reason +
            waited_text(claim.since, now) + "\n";
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
  if (!gpu.excluded.empty()) json["excluded"] = gpu.excluded;
  return json;
}

Json claims_json(const agent::ClaimStatus& claims) {
  Json json{{"moves", Json::array()}, {"waiting", Json::array()}};
  for (const auto& move : claims.moves) {
    json["moves"].push_back({{"gpu", move.gpu.str()},
                             {"to", move.to_claims ? "claims" : "devicePlugin"},
                             {"since", format_wall_time(move.since)},
                             {"reason", move.reason}});
  }
  for (const auto& claim : claims.waiting) {
    json["waiting"].push_back({{"namespace", claim.name_space},
                               {"name", claim.name},
                               {"uid", claim.uid},
                               {"since", format_wall_time(claim.since)},
                               {"reason", claim.reason}});
  }
  return json;
}

std::string limit_text(const agent::MemoryLimitStatus& limit) {
  const auto described = [](const std::string& grade, const std::vector<std::string>& reasons) {
    return grade + (reasons.empty() ? "" : " (" + text::join(reasons, "; ") + ")") + "\n";
  };
  std::string text;
  if (!limit.grade.empty()) text = "memory limits of shared GPUs: " + described(limit.grade, limit.reasons);
  for (const auto& one : limit.containers) {
    if (one.grade == limit.grade) continue;
    text += "memory limit of container " + one.container + " of Pod " + one.pod.name_space + "/" +
            one.pod.name + ": " + described(one.grade, one.reasons);
  }
  return text;
}

Json limit_json(const agent::MemoryLimitStatus& limit) {
  Json json;
  if (!limit.grade.empty()) json["grade"] = limit.grade;
  json["reasons"] = limit.reasons;
  json["containers"] = Json::array();
  for (const auto& one : limit.containers) {
    Json container{{"namespace", one.pod.name_space},
                   {"pod", one.pod.name},
                   {"container", one.container},
                   {"gpu", one.gpu.str()}};
    if (one.limit != Bytes{}) container["limitBytes"] = one.limit.value;
    container["grade"] = one.grade;
    container["reasons"] = one.reasons;
    json["containers"].push_back(std::move(container));
  }
  return json;
}

Json snapshot_json(const Snapshot& snapshot, const agent::ClaimStatus& claims) {
  Json json{
      {"driver",
       {{"version", snapshot.driver.version}, {"cuda", cuda_version_text(snapshot.driver.cuda_version)}}},
      {"gpus", Json::array()}};
  for (const auto& gpu : snapshot.gpus) json["gpus"].push_back(gpu_json(gpu));
  if (!claims.moves.empty() || !claims.waiting.empty()) json["claims"] = claims_json(claims);
  return json;
}

}  // namespace

std::string list_report(const Snapshot& snapshot, const OutputOptions& output,
                        const agent::ClaimStatus& claims, WallTime now,
                        const std::optional<agent::MemoryLimitStatus>& memory_limit) {
  return render_output(
      output,
      [&] {
        auto json = snapshot_json(snapshot, claims);
        if (memory_limit) json["memoryLimit"] = limit_json(*memory_limit);
        return document_text(json);
      },
      [&](const TableStyle& style) {
        const bool has_limit = memory_limit && style.headers;
        return inventory_table(snapshot, claims, now, style) + (has_limit ? limit_text(*memory_limit) : "");
      });
}

void mark_reported_excluded(const std::string& health_file, inventory::Snapshot& snapshot) {
  const auto report = health::read_report(health_file);
  if (!report) return;
  for (auto& gpu : snapshot.gpus) {
    if (const auto* device = report->find({gpu.uuid}))
      gpu.excluded = arguments::printable_text(device->excluded);
  }
}

void mark_waiting_preflights(const nlohmann::json& node, inventory::Snapshot& snapshot) {
  for (const auto& gpu : json_member(node, "gpus")) {
    if (json_text(json_member(json_member(gpu, "preflight"), "result")) != "waiting") continue;
    const DeviceUuid uuid(json_text(json_member(gpu, "uuid")));
    for (auto& known : snapshot.gpus) {
      if (known.uuid == uuid && known.excluded.empty()) known.excluded = "waits for its preflight";
    }
  }
}

int run_list(const ListOptions& options) {
  auto snapshot = agent::read_snapshot_once({.driver_root = options.driver_root});
  if (snapshot) mark_reported_excluded(options.health_file, *snapshot);
  if (!snapshot) return print_error("gpulet list", snapshot.error().full_message());
  // Without an agent, nothing moves or waits, and nothing holds a limit.
  const auto node =
      agent::fetch_agent_json(options.socket, "/api/node", kAgentLimit).value_or(nlohmann::json());
  mark_waiting_preflights(node, *snapshot);
  return print_report("gpulet list",
                      list_report(*snapshot, options.output, agent::parse_claim_status(node),
                                  std::chrono::system_clock::now(), agent::parse_limit_status(node)));
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
    "Scores (NVLink 100 each; SYS 10, NODE 20, PHB 30, PXB 40, PIX 50, one board 60):";

std::string link_label(const Topology& topology, std::size_t a, std::size_t b) {
  if (a == b) return "X";
  std::string label = topology::pair_label(topology.pair_between(a, b));
  return label == "X" ? "PIX" : label;  // two GPUs of one board, as in nvidia-smi
}

std::string gpu_name(const Snapshot& snapshot, std::size_t place) {
  return "GPU" + std::to_string(snapshot.gpus[place].index);
}

constexpr std::size_t kMatrixColumns = 8;  // of GPUs, in a table that is not wide

// `cell(a, b)` with the GPUs' names, and a last column with a title, unless that is empty.
template <class Cell, class Last>
std::string matrix(const Snapshot& snapshot, const TableStyle& style, Cell cell,
                   const std::string& last_title, Last last) {
  const std::size_t count = snapshot.gpus.size(), step = style.wide ? count : kMatrixColumns;
  std::string text;
  for (std::size_t first = 0; first < count; first += step) {
    const std::size_t end = std::min(count, first + step);
    const bool has_last = !last_title.empty() && end == count;
    TableRows rows;
    if (style.headers) {
      auto& header = rows.emplace_back(1, "");
      for (std::size_t b = first; b < end; ++b) header.push_back(gpu_name(snapshot, b));
      if (has_last) header.push_back(last_title);
    }
    for (std::size_t a = 0; a < count; ++a) {
      auto& row = rows.emplace_back(1, gpu_name(snapshot, a));
      for (std::size_t b = first; b < end; ++b) row.push_back(cell(a, b));
      if (has_last) row.push_back(last(a));
    }
    text += (text.empty() ? "" : "\n") + render_table(rows);
  }
  return text;
}

std::string topology_table(const Snapshot& snapshot, const Topology& topology, const TableStyle& style) {
  if (topology.size == 0) return style.headers ? "no GPUs\n" : "";
  std::string text = matrix(
      snapshot, style, [&](std::size_t a, std::size_t b) { return link_label(topology, a, b); },
      "NUMA Affinity",
      [&](std::size_t a) {
        return topology.numa_nodes[a] ? std::to_string(*topology.numa_nodes[a]) : "N/A";
      });
  if (!style.headers) return text;
  text += "\n" + std::string(kLegend) + "\n" + kScores + "\n\n";
  text += matrix(
      snapshot, style,
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

std::string topo_report(const Snapshot& snapshot, const OutputOptions& output) {
  const auto topology = topology::build_topology(snapshot);
  return render_output(
      output, [&] { return document_text(topology_json(snapshot, topology)); },
      [&](const TableStyle& style) { return topology_table(snapshot, topology, style); });
}

int run_topo(const TopoOptions& options) {
  const auto snapshot = agent::read_snapshot_once({.driver_root = options.driver_root});
  if (!snapshot) return print_error("gpulet topo", snapshot.error().full_message());
  return print_report("gpulet topo", topo_report(*snapshot, options.output));
}

void add_list(CLI::App& app, Run& run) {
  auto& command = add_command(app, {.name = "list",
                                    .summary = "List this node's GPUs and MIG devices",
                                    .details = "Reads the driver. No agent is needed. Where one runs, also "
                                               "shows what GPUs that move between the device plugin and "
                                               "claims, and claims that are not prepared, wait for.",
                                    .examples = "  gpulet list\n"
                                                "  gpulet list -o json",
                                    .group = kInspectGroup});
  const auto options = std::make_shared<ListOptions>();
  add_output_options(command, options->output);
  add_driver_root_option(command, options->driver_root);
  add_socket_option(command, options->socket);
  command.callback([options, &run] { run = [options] { return run_list(*options); }; });
}

void add_topo(CLI::App& app, Run& run) {
  auto& command = add_command(
      app,
      {.name = "topo",
       .summary = "Show how this node's GPUs are linked",
       .details = "Prints the matrix of `nvidia-smi topo -m`, and the link scores that placement adds up.",
       .examples = "  gpulet topo\n"
                   "  gpulet topo -o json",
       .group = kInspectGroup});
  const auto options = std::make_shared<TopoOptions>();
  add_output_options(command, options->output);
  add_driver_root_option(command, options->driver_root);
  command.callback([options, &run] { run = [options] { return run_topo(*options); }; });
}

}  // namespace gpulet::cli
