// Facts of a whole node, for tests of the checks.
#pragma once

#include <string>
#include <vector>

#include "doctor/checks.h"

namespace gpulet::doctor {

inline constexpr const char* kVersion = "570.124.06";

inline GpuFacts test_gpu(unsigned index) {
  GpuFacts facts;
  facts.index = index;
  facts.uuid = "GPU-" + std::to_string(index);
  facts.width = facts.full_width = 16;
  facts.fabric = health::FabricState::kHealthy;
  return facts;
}

// As the agent's page has it, on a node with NVSwitches.
inline AgentGpu test_agent_gpu(unsigned index) {
  AgentGpu gpu;
  gpu.index = index;
  gpu.nvswitch_links = 18;
  gpu.in_fabric = true;
  gpu.unread.emplace();
  return gpu;
}

inline Engine test_containerd(bool fit, bool nvidia_runtime = false) {
  runtimes::EngineReport report{.engine = runtimes::Engine::kContainerd,
                                .program = "/usr/bin/containerd",
                                .config = "/etc/containerd/config.toml",
                                .has_config = true,
                                .endpoint = "/run/containerd/containerd.sock",
                                .socket = {},
                                .version = runtimes::EngineVersion{1, 7, 20},
                                .files = {"/etc/containerd/config.toml"},
                                .findings = {}};
  report.findings.push_back(
      {.subject = "CDI", .is_met = fit, .detail = fit ? "on" : "off", .advice = fit ? "" : "turn it on"});
  return {.report = std::move(report), .nvidia_runtime = nvidia_runtime};
}

// A healthy node: two GPUs, an agent, a kubelet, an API server, CDI.
inline Facts healthy_facts() {
  Facts facts;
  facts.bus = PciBus{.gpus = {{"0000:1b:00.0", "nvidia"}, {"0000:43:00.0", "nvidia"}},
                     .switches = 4,
                     .nouveau = false,
                     .redirecting_bridges = {},
                     .bridges_hidden = false,
                     .translated_gpus = {}};
  facts.installed = {.module = std::string(kVersion), .libraries = {kVersion}};
  facts.driver_root = "/";
  facts.nodes = DeviceNodes{};
  for (const char* path : {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1"})
    facts.nodes->needed.push_back({path, std::nullopt, true});
  facts.driver = DriverFacts{.version = kVersion, .gpus = {test_gpu(0), test_gpu(1)}};
  facts.kubelet.directory = "/var/lib/kubelet";
  facts.kubelet.socket = {};
  facts.kubelet.plugins = {{"nvidia-gpu.sock", std::nullopt, 42}};
  facts.kubelet.allocatable = std::map<std::string, std::size_t>{{"nvidia.com/gpu", 2}};
  facts.kubelet.held = std::map<std::string, std::size_t>{{"nvidia.com/gpu", 1}};
  facts.programs =
      ProcessFacts{.device_plugins = {{42, "gpulet agent"}}, .fabric_manager = true, .kubelets = {}};
  facts.agent = AgentFacts{.version = "0.1.0", .problems = {}, .devices = {}, .refusals = {}};
  for (const auto* index : {"0", "1"})
    facts.agent->devices.push_back(
        {std::string("GPU ") + index, std::string("GPU-") + index, "healthy", "", true, "nvidia.com/gpu"});
  for (const unsigned index : {0u, 1u}) facts.agent->gpus.push_back(test_agent_gpu(index));
  facts.settings = AgentSettings{.source = "the agent's settings", .cdi = true};
  facts.engines = Engines{.all = {test_containerd(true)}, .endpoint = {}};
  facts.cdi = CdiSpecs{.directories = {"/etc/cdi", "/var/run/cdi"},
                       .files = {"/var/run/cdi/x.json"},
                       .problems = {},
                       .devices = {"k8s.device-plugin.nvidia.com/gpu=GPU-0"},
                       .versions = {kVersion},
                       .missing = {}};
  facts.mps = std::vector<MpsDaemon>{{"nvidia.com/gpu", std::nullopt}};
  facts.cluster = ClusterFacts{.user = "system:serviceaccount:gpulet:gpulet",
                               .clock_ahead = std::chrono::seconds(1),
                               .missing_permissions = std::vector<std::string>{},
                               .pods = std::vector<PendingPod>{},
                               .mig_state = "success",
                               .missed_pods = std::vector<extender::MissedPod>{}};
  facts.clock_synchronised = true;
  return facts;
}

inline std::string ids_with(const std::vector<Finding>& findings, Verdict verdict) {
  std::string ids;
  for (const auto& finding : findings) {
    if (finding.result.verdict == verdict) ids += (ids.empty() ? "" : " ") + std::string(finding.id);
  }
  return ids;
}

inline Engine distribution_engine(const std::string& name, const std::string& socket, bool fit) {
  auto engine = test_containerd(fit);
  engine.report.distribution = name;
  engine.report.endpoint = socket;
  engine.report.config = "/var/lib/rancher/" + name + "/config.toml";
  engine.report.files = {engine.report.config};
  return engine;
}

inline CheckResult result_of(const Facts& facts, std::string_view id) {
  for (const auto& finding : run_checks(facts)) {
    if (finding.id == id) return finding.result;
  }
  return {};
}

}  // namespace gpulet::doctor
