// The table of the checks, and how they are gone through.
#include <algorithm>
#include <array>

#include "doctor/judges.h"

namespace gpulet::doctor {
namespace {

constexpr auto kLost = Complaint::kNotFound, kRefused = Complaint::kNotAllocated, kBad = Complaint::kBroken;

constexpr Check kChecks[] = {
    {"pci",
     kLost,
     "sysfs: GPUs of NVIDIA on the PCI bus",
     "no GPU, or all are set aside for virtual machines",
     "seat, firmware or passthrough; `driverctl unset-override`",
     {},
     judge_bus},
    {"nouveau",
     kLost,
     "the module nouveau, and what holds each GPU",
     "Nouveau has the GPUs",
     "blacklist it, renew the initramfs, reboot",
     {"pci"},
     judge_nouveau},
    {"driver",
     kLost,
     "the loaded kernel module",
     "no driver, or its module is not loaded",
     "install the driver; `modprobe nvidia`",
     {"pci", "nouveau"},
     judge_driver},
    {"driver-library",
     kLost,
     "libnvidia-ml below the driver root",
     "it is not there",
     "install the driver's libraries, or `--driver-root`",
     {"driver"},
     judge_library},
    {"driver-version",
     kLost,
     "versions of libraries and module",
     "they differ",
     "reboot, or load the module anew",
     {"driver", "driver-library"},
     judge_version},
    {"device-nodes",
     kLost,
     "/dev/nvidiactl, nvidia-uvm and each GPU's",
     "a node is missing, or is another driver's",
     "`nvidia-modprobe -c 0 -u`",
     {"driver"},
     judge_nodes},
    {"device-rights",
     kLost,
     "who may open them: modes, device cgroup, links in /dev/char",
     "root may not, other users may not, or containers lose them at a daemon-reload",
     "give the container the devices; `NVreg_DeviceFileMode=0666`; the links",
     {"driver", "device-nodes"},
     judge_rights_of_nodes},
    {"driver-answers",
     kLost,
     "NVML, within 5 s",
     "it does not answer, or has fewer GPUs than are bound to it",
     "`dmesg`; a reboot",
     {"driver", "driver-library", "driver-version", "device-nodes", "device-rights"},
     judge_answers},
    {"kubelet",
     kRefused,
     "the kubelet's socket of registrations",
     "nobody listens there, or elsewhere",
     "`systemctl status kubelet`; `gpulet.kubeletDir`",
     {},
     judge_kubelet},
    {"plugin",
     kRefused,
     "NVIDIA's sockets beside it",
     "no device plugin, or one that has ended",
     "see why the agent does not run on this node",
     {"kubelet"},
     judge_plugin},
    {"agent",
     kRefused,
     "the agent's page, by its socket or `--url`",
     "it is not ready, with its own words",
     "the agent's log",
     {"driver-answers", "kubelet", "plugin"},
     judge_agent},
    {"runtime",
     kRefused,
     "settings of the kubelet's engine: CRI-O, containerd, that of k3s, RKE2, k0s or MicroK8s",
     "CDI is off, too old, or looks elsewhere; the file and line",
     "`gpulet runtime configure`, with the distribution's own files",
     {},
     judge_runtime},
    {"cdi",
     kRefused,
     "specs in /etc/cdi and /var/run/cdi",
     "none, refused, of another driver, or naming what is gone",
     "`gpulet cdi generate`; the agent writes its own",
     {"driver", "driver-library", "driver-version"},
     judge_cdi},
    {"resource",
     kRefused,
     "what the kubelet may allocate, and what is held",
     "nothing, with why; or all is held",
     "`gpulet health`; more nodes or sharing",
     {"kubelet", "plugin"},
     judge_resource},
    {"gpus",
     kBad,
     "each device by the agent; without one, by NVML",
     "one is withdrawn or flagged, with why",
     "`gpulet health GPU`; reset, reboot or replace",
     {"driver", "driver-library", "driver-version", "device-nodes", "device-rights"},
     judge_gpus},
    {"pods",
     kRefused,
     "Pods that ask for NVIDIA's resources and do not run",
     "the scheduler's or the kubelet's reason, and the extender's for each node",
     "`gpulet explain`",
     {"kubelet", "plugin"},
     judge_pods},
    {"mig",
     kBad,
     "MIG mode and instances; the label mig.config.state",
     "half configured: a mode that waits, no instance, no compute instance",
     "a reset; `gpulet mig apply`",
     {"driver-answers"},
     judge_mig},
    {"mps",
     kRefused,
     "MPS control daemons below the MPS root",
     "one does not answer",
     "the agent's log",
     {},
     judge_mps},
    {"clocks",
     kBad,
     "why clocks are what they are",
     "too hot, or held down by hardware",
     "fans, filters, power supply",
     {"driver-answers"},
     judge_throttling},
    {"iommu",
     kBad,
     "ACS of the bridges above GPUs, IOMMU groups",
     "peer-to-peer goes over the CPU",
     "`iommu=pt`; ACS off",
     {"pci"},
     judge_iommu},
    {"pcie-width",
     kBad,
     "PCIe lanes",
     "fewer than GPU and slot have",
     "reseat the card",
     {"driver-answers"},
     judge_width},
    {"fabric",
     kBad,
     "the NVLink fabric and its manager",
     "a GPU has not joined, or no manager runs",
     "`systemctl status nvidia-fabricmanager`",
     {"driver-answers"},
     judge_fabric},
    {"two-plugins",
     kRefused,
     "who listens at the sockets; the host's processes",
     "two device plugins at once",
     "remove one",
     {},
     judge_two_plugins},
    {"rights",
     kRefused,
     "what the API server refused the agent; SelfSubjectAccessReview",
     "rights are missing",
     "apply the ClusterRole",
     {},
     judge_rights},
    {"clock",
     kRefused,
     "this node's clock and the API server's",
     "they differ by 10 s (warn) or 5 min (fail)",
     "`chronyc makestep`",
     {},
     judge_clock},
};

}  // namespace

std::string_view name(Verdict verdict) {
  constexpr std::array<std::string_view, 4> kNames{"pass", "warn", "fail", "cannot tell"};
  return kNames[static_cast<std::size_t>(verdict)];
}

std::string_view name(Complaint complaint) {
  constexpr std::array<std::string_view, 3> kNames{"GPU not found", "Pod cannot be allocated", "GPU broken"};
  return kNames[static_cast<std::size_t>(complaint)];
}

std::span<const Check> checks() { return kChecks; }

std::vector<Finding> diagnose(const Facts& facts) {
  std::vector<Finding> findings;
  // By check, the one that must be put right before anything can be said.
  std::map<std::string_view, std::string_view> behind;
  for (const auto& check : checks()) {
    std::string_view first;
    for (const auto need : check.needs) {
      if (const auto found = behind.find(need); first.empty() && found != behind.end()) first = found->second;
    }
    Finding finding{check.id, check.complaint, {}};
    if (first.empty()) {
      finding.judgement = check.judge(facts);
      if (finding.judgement.verdict == Verdict::kFail) behind[check.id] = check.id;
    } else {
      finding.judgement = {Verdict::kCannotTell, "once `" + std::string(first) + "` is put right"};
      behind[check.id] = first;
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

const Finding* foremost(std::span<const Finding> findings) {
  for (const auto verdict : {Verdict::kFail, Verdict::kWarn}) {
    const auto found = std::ranges::find_if(
        findings, [&](const Finding& finding) { return finding.judgement.verdict == verdict; });
    if (found != findings.end()) return &*found;
  }
  return nullptr;
}

}  // namespace gpulet::doctor
