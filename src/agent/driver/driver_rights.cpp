#include "agent/driver/driver_rights.h"

#include <fcntl.h>
#include <linux/capability.h>

#include <algorithm>
#include <string_view>

#include "agent/driver/gpu_reset.h"
#include "agent/resources/device_nodes.h"
#include "base/driver_root.h"
#include "base/file.h"
#include "base/process.h"
#include "inventory/host_files.h"
#include "nvml/return_codes.h"

namespace gpulet::agent {
namespace {

// Only a hypervisor gives a GPU the capability that the labels come from.
std::string find_cut_pci_config(const config::Config& config, const inventory::Snapshot& snapshot) {
  for (const auto& gpu : snapshot.gpus) {
    if (gpu.unreadable || gpu.vgpu_known) continue;
    for (const auto& root : driver_roots(config)) {
      const std::string path = path_below(root, "/sys/bus/pci/devices/" + gpu.pci.sysfs_text() + "/config");
      const auto size = read_prefix(path, inventory::kPciHeaderBytes).value_or("").size();
      if (size == inventory::kUnprivilegedPciBytes) return path;
      if (size != 0) break;
    }
  }
  return {};
}

std::optional<std::string> node_refusal(const RootDirectory& root, std::optional<unsigned> minor) {
  if (!minor) return std::nullopt;
  const auto node = inventory::capability_node(*minor);
  const auto opened = root.open_file(node, O_RDONLY | O_NONBLOCK);
  // ENXIO is kUnsupported or kIo, by the kernel's own driver: whatever is not refused is access.
  if (opened ||
      (opened.error().code() != Code::kNotFound && opened.error().code() != Code::kPermissionDenied))
    return std::nullopt;
  return opened.error().full_message();
}

bool has_mig(const inventory::Snapshot& snapshot) {
  return std::ranges::any_of(snapshot.gpus, [](const inventory::Gpu& gpu) { return gpu.mig_enabled; });
}

}  // namespace

std::string MissingRight::message() const { return evidence + ": " + consequence + "; it needs " + needed; }

std::vector<MissingRight> missing_rights(const RightsEvidence& evidence, const config::Config& config,
                                         const inventory::Snapshot& snapshot, bool changes_mig) {
  std::vector<MissingRight> missing;
  const char* const no_reset = "GPUs are not reset (gpulet.repair.reset)";
  if (!evidence.reset_program.empty())
    missing.push_back(
        {DriverRight::kResetProgram, "nvidia-smi in the driver root", evidence.reset_program, no_reset});
  if (evidence.sys_admin) return missing;
  const std::string none = "no CAP_SYS_ADMIN";
  const auto add = [&](DriverRight right, const std::string& needed, const std::string& found,
                       const std::string& consequence) {
    missing.push_back({right, needed, none + (found.empty() ? "" : "; " + found), consequence});
  };
  const std::string monitor = evidence.monitor_refusal.value_or(evidence.memory_refusal);
  if (has_mig(snapshot) && !monitor.empty())
    add(DriverRight::kMigMonitor, std::string(nvml::needed_right("nvmlDeviceGetMemoryInfo")), monitor,
        "no memory of GPUs in MIG mode, and no XIDs of MIG instances from the driver");
  if (changes_mig && evidence.config_refusal)
    add(DriverRight::kMigConfig, std::string(nvml::needed_right("nvmlDeviceCreateGpuInstance")),
        *evidence.config_refusal, "MIG layouts are not applied");
  if (changes_mig && !evidence.config_refusal)
    add(DriverRight::kMigMode, std::string(nvml::needed_right("nvmlDeviceSetMigMode")), {},
        "the MIG mode of a GPU is not changed");
  if (!evidence.cut_pci_config.empty() && !config.gpulet.labels.outputs.empty())
    add(DriverRight::kPciConfig, "CAP_SYS_ADMIN", "64 bytes of " + evidence.cut_pci_config,
        "the labels nvidia.com/vgpu.* are absent");
  if (config.gpulet.repair.reset.enabled) add(DriverRight::kReset, "CAP_SYS_ADMIN", {}, no_reset);
  return missing;
}

RightsEvidence collect_rights_evidence(const config::Config& config, const inventory::Snapshot& snapshot) {
  RightsEvidence evidence{.sys_admin = has_capability(CAP_SYS_ADMIN)};
  if (config.gpulet.repair.reset.enabled) {
    const auto program = find_driver_program(config.flags.container_driver_root, kResetProgram);
    if (!program) evidence.reset_program = program.error().full_message();
  }
  if (evidence.sys_admin) return evidence;
  evidence.cut_pci_config = find_cut_pci_config(config, snapshot);
  for (const auto& count : nvml::call_counts()) {
    if (count.function.starts_with("nvmlDeviceGetMemoryInfo") && count.code == "NO_PERMISSION")
      evidence.memory_refusal = count.function + " returned " + count.code;
  }
  const auto root = find_device_root(config);
  if (!root) return evidence;
  const auto proc = open_driver_proc(*root);
  const auto text =
      proc ? proc->read_text_file(kMigMinorsBelowProc) : Result<std::string>(fail(proc.error()));
  const auto minors = text ? inventory::parse_mig_minors(*text) : fail(text.error());
  if (!minors) return evidence;
  evidence.monitor_refusal = node_refusal(*root, minors->monitor_minor());
  evidence.config_refusal = node_refusal(*root, minors->config_minor());
  return evidence;
}

}  // namespace gpulet::agent
