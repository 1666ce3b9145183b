#include "doctor/checks.h"

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "arguments/arguments.h"
#include "base/text.h"
#include "k8s/objects.h"

namespace gpulet::doctor {
namespace {

using enum Symptom;

constexpr Check kChecks[] = {
    {"pci",
     kNotFound,
     "sysfs: NVIDIA GPUs on the PCI bus",
     "no GPU, or all are assigned to virtual machines",
     "seat, firmware or passthrough; `driverctl unset-override`",
     {},
     check_pci_bus},
    {"nouveau",
     kNotFound,
     "the module nouveau, and the driver bound to each GPU",
     "Nouveau is bound to the GPUs",
     "blacklist it, rebuild the initramfs, reboot",
     {"pci"},
     check_nouveau},
    {"driver",
     kNotFound,
     "the loaded kernel module",
     "no driver, or its module is not loaded",
     "install the driver; `modprobe nvidia`",
     {"pci", "nouveau"},
     check_driver_module},
    {"driver-library",
     kNotFound,
     "libnvidia-ml below the driver root",
     "missing",
     "install the driver's libraries, or `--driver-root`",
     {"driver"},
     check_driver_library},
    {"driver-version",
     kNotFound,
     "versions of libraries and module",
     "they differ",
     "reboot, or reload the module",
     {"driver", "driver-library"},
     check_driver_version},
    {"device-nodes",
     kNotFound,
     "/dev/nvidiactl, nvidia-uvm and each GPU's",
     "a node is missing, or belongs to another driver",
     "`nvidia-modprobe -c 0 -u`",
     {"driver"},
     check_device_nodes},
    {"device-rights",
     kNotFound,
     "who can open them: modes, device cgroup, links in /dev/char",
     "not root, not other users, or containers lose them at a daemon-reload",
     "give the container the devices; `NVreg_DeviceFileMode=0666`; the links",
     {"driver", "device-nodes"},
     check_device_permissions},
    {"driver-answers",
     kNotFound,
     "NVML, within 5 s",
     "no response, or fewer GPUs than are bound to the driver",
     "`dmesg`; a reboot",
     {"driver", "driver-library", "driver-version", "device-nodes", "device-rights"},
     check_driver_response},
    {"kubelet",
     kNotAllocated,
     "the kubelet's registration socket",
     "no listener, or another directory",
     "`systemctl status kubelet`; `gpulet.kubeletDir`",
     {},
     check_kubelet},
    {"plugin",
     kNotAllocated,
     "NVIDIA's sockets next to it",
     "no device plugin, or one that has stopped",
     "find why the agent does not run here",
     {"kubelet"},
     check_device_plugin},
    {"agent",
     kNotAllocated,
     "the agent's page, by its socket or `--url`",
     "not ready, with its reasons",
     "the agent's log",
     {"driver-answers", "kubelet", "plugin"},
     check_agent},
    {"driver-rights",
     kBroken,
     "the agent's capabilities and nodes of MIG",
     "what is missing, with the right",
     "give the agent's container CAP_SYS_ADMIN or the node",
     {"agent"},
     check_driver_rights},
    {"runtime",
     kNotAllocated,
     "settings of the kubelet's engine: CRI-O, containerd, that of k3s, RKE2, k0s or MicroK8s",
     "CDI is off, too old, or reads other directories; the file and line",
     "`gpulet runtime configure`, with the distribution's own files",
     {},
     check_container_runtime},
    {"nvidia-runtime",
     kBroken,
     "NVIDIA's container runtime, where the kubelet's engine has it",
     "a container without a request gets every GPU if its image sets NVIDIA_VISIBLE_DEVICES=all; with that "
     "closed, Pods by `envvar` get none",
     "`deviceListStrategy`, then `gpulet runtime configure --deny-visible-devices-env`",
     {},
     check_nvidia_runtime},
    {"cdi",
     kNotAllocated,
     "specs in /etc/cdi and /var/run/cdi",
     "none, rejected, for another driver, or with missing files",
     "`gpulet cdi generate`; the agent writes its own",
     {"driver", "driver-library", "driver-version"},
     check_cdi_specs},
    {"resource",
     kNotAllocated,
     "devices that the kubelet can allocate, and held ones",
     "none, with the reason; or all are held",
     "`gpulet health`; more nodes or sharing",
     {"kubelet", "plugin", "device-nodes"},
     check_allocatable},
    {"gpus",
     kBroken,
     "each device by the agent; without one, by NVML",
     "one is withdrawn or flagged, with the reason",
     "`gpulet health GPU`; reset, reboot or replace",
     {"driver", "driver-library", "driver-version", "device-nodes", "device-rights"},
     check_gpu_health},
    {"pods",
     kNotAllocated,
     "Pods that request NVIDIA's resources and do not run",
     "the scheduler's, kubelet's and extender's reason",
     "`gpulet explain`",
     {"kubelet", "plugin"},
     check_pending_pods},
    {"claims",
     kNotAllocated,
     "claims; GPUs that change sides",
     "one waits, and why",
     "end its holder",
     {"agent"},
     check_claims},
    {"extender",
     kNotAllocated,
     "when `gpulet scheduler` was last asked",
     "a Pod with GPUs was bound without it",
     "`gpulet scheduler config`",
     {},
     check_extender},
    {"mig",
     kBroken,
     "MIG mode and instances; the label mig.config.state",
     "incomplete: a pending mode, no instance, no compute instance",
     "a reset; `gpulet mig apply`",
     {"driver-answers"},
     check_mig},
    {"mps",
     kNotAllocated,
     "MPS control daemons below the MPS root",
     "one does not respond",
     "the agent's log",
     {},
     check_mps_daemons},
    {"clocks",
     kBroken,
     "reasons for reduced clocks",
     "too hot, or throttled by hardware",
     "fans, filters, power supply",
     {"driver-answers"},
     check_throttling},
    {"power-limits",
     kBroken,
     "power limits and clocks that `gpulet.power` sets",
     "one is not set, with the driver's reason; another program's",
     "the rule; CAP_SYS_ADMIN",
     {"agent"},
     check_power_limits},
    {"outside-pods",
     kBroken,
     "processes that hold GPU memory, by their cgroups",
     "one is of no Pod: Pods get less memory",
     "end it, or keep its GPU from Kubernetes",
     {},
     check_processes_outside_pods},
    {"iommu",
     kBroken,
     "ACS of the bridges above GPUs, IOMMU groups",
     "peer-to-peer traffic goes through the CPU",
     "`iommu=pt`; ACS off",
     {"pci"},
     check_iommu},
    {"pcie-width",
     kBroken,
     "PCIe lanes",
     "fewer than GPU and slot have",
     "reseat the card",
     {"driver-answers"},
     check_pcie_width},
    {"fabric",
     kBroken,
     "the NVLink fabric and its manager",
     "a GPU has not joined, or no manager runs",
     "`systemctl status nvidia-fabricmanager`",
     {"driver-answers"},
     check_nvlink_fabric},
    {"memory-limits",
     kNotAllocated,
     "the grade of memory limits on shared GPUs; driver, cgroups",
     "nothing holds them, or a container's less",
     "`gpulet.fraction`, the Pod's spec",
     {},
     check_memory_limits},
    {"two-plugins",
     kNotAllocated,
     "listeners of the sockets; the host's processes",
     "two device plugins at once",
     "remove one",
     {},
     check_plugin_conflict},
    {"rights",
     kNotAllocated,
     "requests that the API server denied the agent; SelfSubjectAccessReview",
     "missing permissions",
     "apply the ClusterRole",
     {},
     check_permissions},
    {"clock",
     kNotAllocated,
     "this node's clock and the API server's",
     "they differ by 10 s (warn) or 5 min (fail)",
     "`chronyc makestep`",
     {},
     check_clock},
};

}  // namespace

std::string_view display_name(Verdict verdict) {
  constexpr std::array<std::string_view, 5> kNames{"pass", "warn", "fail", "skip", "unknown"};
  return kNames[static_cast<std::size_t>(verdict)];
}

std::string_view display_name(Symptom symptom) {
  constexpr std::array<std::string_view, 3> kNames{"GPU not found", "Pod cannot be allocated", "GPU broken"};
  return kNames[static_cast<std::size_t>(symptom)];
}

std::span<const Check> all_checks() { return kChecks; }

namespace {

// A driver root of gpulet-sim, and no trace of a kubelet.
bool lacks_kubelet_by_design(const Facts& facts) {
  const auto& kubelet = facts.kubelet;
  return facts.simulated && !kubelet.socket && !kubelet.allocatable && kubelet.other_directories.empty();
}

// What follows from a failed check.
CheckResult follow_failure(const Facts& facts, std::string_view failed) {
  if (failed == "kubelet" && lacks_kubelet_by_design(facts))
    return skip_result("not applicable: a simulated node (gpulet-sim) without a kubelet");
  return skip_result("fix `" + std::string(failed) + "` first");
}

}  // namespace

std::vector<Finding> run_checks(const Facts& facts) {
  std::vector<Finding> findings;
  // The failed check that each check depends on, directly or through others.
  std::map<std::string_view, std::string_view> blocked_by;
  for (const auto& check : all_checks()) {
    std::string_view first;
    for (const auto dependency : check.depends_on) {
      if (const auto found = blocked_by.find(dependency); first.empty() && found != blocked_by.end())
        first = found->second;
    }
    Finding finding{check.id, check.symptom, check.run_check(facts)};
    const auto verdict = finding.result.verdict;
    if (!first.empty()) {
      blocked_by[check.id] = first;
      if (verdict == Verdict::kFail || verdict == Verdict::kUnknown)
        finding.result = follow_failure(facts, first);
    } else if (verdict == Verdict::kFail) {
      blocked_by[check.id] = check.id;
      if (check.id == "kubelet" && lacks_kubelet_by_design(facts))
        finding.result = follow_failure(facts, check.id);
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

const Finding* most_severe(std::span<const Finding> findings) {
  for (const auto verdict : {Verdict::kFail, Verdict::kWarn}) {
    const auto found = std::ranges::find_if(
        findings, [&](const Finding& finding) { return finding.result.verdict == verdict; });
    if (found != findings.end()) return &*found;
  }
  return nullptr;
}

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kVerdictWidth = 9, kIdWidth = 16;

std::string pad_right(std::string_view text, std::size_t width) {
  return std::string(text) + std::string(text.size() < width ? width - text.size() : 1, ' ');
}

// SGR colours (ECMA-48): red, yellow and green, which every terminal with colours has.
const char* verdict_color(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFail:
      return "\x1b[31m";
    case Verdict::kWarn:
    case Verdict::kUnknown:
      return "\x1b[33m";
    case Verdict::kPass:
      return "\x1b[32m";
    case Verdict::kSkip:
      return "\x1b[2m";
  }
  return "";
}

// Padded to its column.
std::string verdict_text(Verdict verdict, bool color) {
  const auto padded = pad_right(display_name(verdict), kVerdictWidth);
  return color ? verdict_color(verdict) + padded + "\x1b[0m" : padded;
}

}  // namespace

Verdict overall_verdict(std::span<const Finding> findings) {
  const auto* first = most_severe(findings);
  return first == nullptr ? Verdict::kPass : first->result.verdict;
}

std::string findings_summary(std::span<const Finding> findings, std::string_view subject) {
  const auto* first = most_severe(findings);
  const auto unknown = std::ranges::count_if(
      findings, [](const Finding& finding) { return finding.result.verdict == Verdict::kUnknown; });
  if (first == nullptr) {
    std::string text = "No fault found that keeps a Pod from a GPU of " + std::string(subject);
    if (unknown > 0)
      text +=
          "; " + std::to_string(unknown) + " of " + std::to_string(findings.size()) + " checks could not run";
    return text + ".";
  }
  const auto& result = first->result;
  const bool fail = result.verdict == Verdict::kFail;
  std::string text =
      std::string(display_name(first->symptom)) + (fail ? "" : " (possible)") + ": " + result.found;
  if (!result.fix.empty()) text += "; fix: " + result.fix;
  text += ".";
  std::string also;  // another failure that this one does not explain
  for (const auto& finding : findings) {
    if (&finding != first && finding.result.verdict == Verdict::kFail)
      also += (also.empty() ? " Also failing: " : ", ") + ("`" + std::string(finding.id) + "`");
  }
  return k8s::sanitize_line(text + (also.empty() ? "" : also + "."));
}

std::string text_report(std::span<const Finding> findings, const TextStyle& style) {
  const std::string margin(kVerdictWidth + kIdWidth, ' ');
  std::string text;
  for (const auto& finding : findings) {
    const auto& result = finding.result;
    text += verdict_text(result.verdict, style.color) + pad_right(finding.id, kIdWidth) +
            k8s::sanitize_line(result.found) + "\n";
    if (!result.fix.empty()) text += margin + "→ " + k8s::sanitize_line(result.fix) + "\n";
    if (result.verdict == Verdict::kPass && !style.all_details) continue;
    for (const auto& detail : result.details) text += margin + "  " + k8s::sanitize_line(detail) + "\n";
  }
  return arguments::wrap_lines(text, style.columns, margin.size()) + "\n" +
         arguments::wrap_lines(findings_summary(findings, style.subject), style.columns) + "\n";
}

std::string json_report(std::span<const Finding> findings, std::string_view subject) {
  Json json{{"version", 1},
            {"verdict", display_name(overall_verdict(findings))},
            {"summary", findings_summary(findings, subject)},
            {"checks", Json::array()}};
  for (const auto& finding : findings) {
    Json details = Json::array();
    for (const auto& detail : finding.result.details) details.push_back(k8s::sanitize_line(detail));
    json["checks"].push_back({{"id", finding.id},
                              {"complaint", display_name(finding.symptom)},
                              {"verdict", display_name(finding.result.verdict)},
                              {"found", k8s::sanitize_line(finding.result.found)},
                              {"fix", k8s::sanitize_line(finding.result.fix)},
                              {"details", std::move(details)}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace gpulet::doctor
