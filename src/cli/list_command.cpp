#include "cli/list_command.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "agent/nvml_driver.h"
#include "cli/text_table.h"

namespace gpulet::cli {
namespace {

using Json = nlohmann::ordered_json;
using inventory::Gpu;
using inventory::MigDevice;
using inventory::Snapshot;

std::string cuda_version(unsigned version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string links(const Gpu& gpu) {
  if (gpu.nvlinks.empty()) return kNone;
  const bool switched = gpu.nvlinks.front().kind == inventory::NvLinkRemote::kSwitch;
  return std::to_string(gpu.nvlinks.size()) + (switched ? " switched" : "");
}

std::string mig_state(const Gpu& gpu) {
  if (!gpu.mig_capable) return kNone;
  std::string state = gpu.mig_enabled ? "on" : "off";
  if (gpu.mig_pending) state += *gpu.mig_pending ? " (on after a reset)" : " (off after a reset)";
  return state;
}

std::vector<std::string> header(bool wide) {
  std::vector<std::string> row{"GPU", "MODEL", "MEMORY", "NUMA", "PCI", "NVLINK", "MIG", "STATE", "UUID"};
  if (wide) row.insert(row.end(), {"ARCHITECTURE", "CC", "BRAND", "DEVICE", "SERIAL", "FABRIC"});
  return row;
}

std::vector<std::string> gpu_row(const Gpu& gpu, bool wide) {
  const bool known = !gpu.model.empty();
  std::vector<std::string> row{
      std::to_string(gpu.index),
      or_none(gpu.model),
      known ? human_bytes(gpu.memory.value) : kNone,
      gpu.numa_node ? std::to_string(*gpu.numa_node) : kNone,
      gpu.pci == inventory::PciAddress{} ? kNone : gpu.pci.sysfs(),
      links(gpu),
      mig_state(gpu),
      gpu.unreadable ? std::string(name(gpu.unreadable->code())) : "ok",
      or_none(gpu.uuid.str()),
  };
  if (!wide) return row;
  row.push_back(or_none(gpu.architecture));
  row.push_back(known ? std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor) : kNone);
  row.push_back(or_none(gpu.brand));
  row.push_back(known ? "/dev/nvidia" + std::to_string(gpu.minor) : kNone);
  row.push_back(or_none(gpu.serial));
  row.push_back(gpu.fabric ? gpu.fabric->cluster_uuid + "." + std::to_string(gpu.fabric->clique_id) : kNone);
  return row;
}

std::vector<std::string> mig_row(const Gpu& gpu, const MigDevice& mig) {
  const std::string slices =
      mig.placement_size == 0
          ? kNone
          : "slices " + std::to_string(mig.placement_start) + "-" +
                std::to_string(mig.placement_start + mig.placement_size - 1);
  return {"  " + std::to_string(gpu.index) + ":" + std::to_string(mig.index),
          "MIG " + mig.profile,
          human_bytes(mig.memory.value),
          kNone,
          "GI " + std::to_string(mig.gpu_instance) + " CI " + std::to_string(mig.compute_instance),
          kNone,
          slices,
          gpu.unreadable ? std::string(name(gpu.unreadable->code())) : "ok",
          mig.uuid.str()};
}

std::string table(const Snapshot& snapshot, bool wide) {
  const std::size_t count = snapshot.gpus.size();
  std::string text = "NVIDIA driver " + snapshot.driver.version + ", CUDA " +
                     cuda_version(snapshot.driver.cuda_version) + ", " + std::to_string(count) +
                     (count == 1 ? " GPU\n" : " GPUs\n");
  if (count == 0) return text;
  Rows rows{header(wide)};
  for (const auto& gpu : snapshot.gpus) {
    rows.push_back(gpu_row(gpu, wide));
    for (const auto& mig : gpu.mig_devices) rows.push_back(mig_row(gpu, mig));
  }
  text += "\n" + text_table(rows);
  for (const auto& gpu : snapshot.gpus) {
    if (!gpu.unreadable) continue;
    text += "GPU " + std::to_string(gpu.index) + " cannot be read: " + gpu.unreadable->message() + "\n";
  }
  return text;
}

Json mig_json(const MigDevice& mig) {
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
  Json json{{"index", gpu.index},
            {"uuid", gpu.uuid.str()},
            {"model", gpu.model},
            {"brand", gpu.brand},
            {"architecture", gpu.architecture},
            {"computeCapability", std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor)},
            {"memoryBytes", gpu.memory.value},
            {"minor", gpu.minor},
            {"pci", gpu.pci.sysfs()},
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
  for (const auto& mig : gpu.mig_devices) json["mig"]["devices"].push_back(mig_json(mig));
  for (const auto& link : gpu.nvlinks) {
    json["nvlinks"].push_back(
        {{"index", link.index}, {"remote", remote_name(link.kind)}, {"pci", link.remote.sysfs()}});
  }
  if (gpu.fabric) json["fabric"] = {{"clusterUuid", gpu.fabric->cluster_uuid}, {"cliqueId", gpu.fabric->clique_id}};
  if (gpu.unreadable) {
    json["unreadable"] = {{"code", name(gpu.unreadable->code())}, {"message", gpu.unreadable->message()}};
  }
  return json;
}

Json to_json(const Snapshot& snapshot) {
  Json json{{"driver", {{"version", snapshot.driver.version}, {"cuda", cuda_version(snapshot.driver.cuda_version)}}},
            {"gpus", Json::array()}};
  for (const auto& gpu : snapshot.gpus) json["gpus"].push_back(gpu_json(gpu));
  return json;
}

std::string dumped(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);  // a driver's text need not be UTF-8
}

// JSON as YAML in block style. Strings are written as JSON's, which YAML reads as such: "1.10" stays a text.
void write_yaml(const Json& json, std::size_t indent, std::string& text) {
  const std::string margin(indent, ' ');
  const auto put_value = [&](const Json& value) {
    if (value.is_structured() && !value.empty()) {
      text += "\n";
      write_yaml(value, indent + 2, text);
    } else {
      text += " " + dumped(value) + "\n";
    }
  };
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      text += margin + key + ":";
      put_value(value);
    }
    return;
  }
  for (const auto& value : json) {
    // The first key of an entry stands on the dash's own line.
    std::string entry;
    write_yaml(value, indent + 2, entry);
    entry.replace(0, indent + 2, margin + "- ");
    text += entry;
  }
}

}  // namespace

Result<std::string> list_report(const Snapshot& snapshot, const std::string& output) {
  if (output == "table" || output == "wide") return table(snapshot, output == "wide");
  if (output == "json") return dumped(to_json(snapshot), 2) + "\n";
  if (output == "yaml") {
    std::string text;
    write_yaml(to_json(snapshot), 0, text);
    return text;
  }
  return fail(Code::kInvalidArgument, "there is no output '" + output + "': table, wide, json or yaml");
}

int list(const ListOptions& options) {
  if (const auto known = list_report({}, options.output); !known) {
    std::cerr << "gpulet list: " << known.error().text() << '\n';
    return 2;
  }
  const auto snapshot = agent::read_snapshot({.driver_root = options.driver_root});
  if (!snapshot) {
    std::cerr << "gpulet list: " << snapshot.error().text() << '\n';
    return 1;
  }
  std::cout << *list_report(*snapshot, options.output) << std::flush;
  return 0;
}

}  // namespace gpulet::cli
