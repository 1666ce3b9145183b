// Each check on the facts of a healthy node with one fault: it reports the fault, and no other check does.
#include "doctor/checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/text.h"
#include "doctor/test_facts.h"
#include "nvml/usage.h"

namespace gpulet::doctor {
namespace {

TEST(Checks, HealthyNodePassesAll) {
  const auto findings = run_checks(healthy_facts());
  ASSERT_EQ(findings.size(), all_checks().size());
  for (const auto& finding : findings)
    EXPECT_EQ(finding.result.verdict, Verdict::kPass) << finding.id << ": " << finding.result.found;
  EXPECT_EQ(most_severe(findings), nullptr);
  EXPECT_EQ(findings_summary(findings), "No fault found that keeps a Pod from a GPU of this node.");
}

struct Fault {
  const char* name;
  std::function<void(Facts&)> make;
  const char* check;
  Verdict verdict;
  const char* text;  // in the finding
};

void no_module(Facts& facts) {
  facts.installed.module = fail(Code::kNotFound, "no");
  facts.driver = fail(Code::kUnavailable, "no driver");
}

const std::vector<Fault> kFaults{
    {"no GPU",
     [](Facts& f) {
       f.bus->gpus.clear();
       f.driver->gpus.clear();
     },
     "pci", Verdict::kFail, "no NVIDIA GPU"},
    {"set aside",
     [](Facts& f) {
       for (auto& gpu : f.bus->gpus) gpu.driver = "vfio-pci";
     },
     "pci", Verdict::kFail, "vfio-pci"},
    {"Nouveau",
     [](Facts& f) {
       for (auto& gpu : f.bus->gpus) gpu.driver = "nouveau";
       no_module(f);
     },
     "nouveau", Verdict::kFail, "Nouveau is bound to 0000:1b:00.0"},
    {"Nouveau beside it", [](Facts& f) { f.bus->nouveau = true; }, "nouveau", Verdict::kWarn,
     "next to the NVIDIA driver"},
    {"no module", no_module, "driver", Verdict::kFail, "not loaded"},
    {"no driver at all",
     [](Facts& f) {
       no_module(f);
       f.installed.libraries.clear();
     },
     "driver", Verdict::kFail, "no NVIDIA driver"},
    {"no library", [](Facts& f) { f.installed.libraries.clear(); }, "driver-library", Verdict::kFail,
     "libnvidia-ml.so.1"},
    {"another library", [](Facts& f) { f.installed.libraries = {"575.57.08"}; }, "driver-version",
     Verdict::kFail, "575.57.08, the loaded kernel module is 570.124.06"},
    {"two libraries", [](Facts& f) { f.installed.libraries.emplace_back("575.57.08"); }, "driver-version",
     Verdict::kWarn, "several"},
    {"no node", [](Facts& f) { f.nodes->needed[1].error = Error(Code::kNotFound, "no"); }, "device-nodes",
     Verdict::kFail, "missing: /dev/nvidia-uvm, without which no container can use CUDA"},
    {"a node of before",
     [](Facts& f) { f.nodes->needed[1].error = Error(Code::kFailedPrecondition, "has the major number 5"); },
     "device-nodes", Verdict::kFail, "/dev/nvidia-uvm: has the major number 5"},
    {"no cgroup right", [](Facts& f) { f.nodes->needed[0].error = Error(Code::kPermissionDenied, "no"); },
     "device-rights", Verdict::kFail, "/dev/nvidiactl"},
    {"a closed node", [](Facts& f) { f.nodes->needed[0].world_accessible = false; }, "device-rights",
     Verdict::kWarn, "not every user"},
    {"no link", [](Facts& f) { f.nodes->without_char_link_nodes = {"/dev/nvidia0"}; }, "device-rights",
     Verdict::kWarn, "daemon-reload"},
    {"a driver that hangs", [](Facts& f) { f.driver = fail(Code::kDeadlineExceeded, "did not answer"); },
     "driver-answers", Verdict::kFail, "did not answer"},
    {"a driver of another version",
     [](Facts& f) { f.driver = fail(Code::kUnavailable, "nvmlInit_v2: Driver/library version mismatch"); },
     "driver-answers", Verdict::kFail, "version mismatch"},
    {"a GPU less", [](Facts& f) { f.driver->gpus.pop_back(); }, "driver-answers", Verdict::kFail,
     "1 of the 2 GPUs"},
    {"no kubelet", [](Facts& f) { f.kubelet.socket = fail(Code::kNotFound, "no"); }, "kubelet",
     Verdict::kFail, "no kubelet is running"},
    {"a kubelet that has ended", [](Facts& f) { f.kubelet.socket = fail(Code::kUnavailable, "refused"); },
     "kubelet", Verdict::kFail, "does not accept registrations"},
    {"another kubelet",
     [](Facts& f) {
       f.kubelet.socket = fail(Code::kNotFound, "no");
       f.kubelet.other_directories = {"/var/lib/k0s/kubelet"};
     },
     "kubelet", Verdict::kFail, "one is in /var/lib/k0s/kubelet"},
    {"no plugin",
     [](Facts& f) {
       f.kubelet.plugins.clear();
       f.programs->device_plugins.clear();
     },
     "plugin", Verdict::kFail, "no device plugin"},
    {"a plugin that ended",
     [](Facts& f) { f.kubelet.plugins[0].error = Error(Code::kUnavailable, "refused"); }, "plugin",
     Verdict::kFail, "has stopped"},
    {"an agent in trouble", [](Facts& f) { f.agent->problems = {"nvidia.com/gpu: not registered"}; }, "agent",
     Verdict::kFail, "not registered"},
    {"no CDI", [](Facts& f) { f.engines = Engines{.all = {test_containerd(false)}, .endpoint = {}}; },
     "runtime", Verdict::kFail, "containerd 1.7.20 is not ready for CDI: off"},
    {"NVIDIA's runtime by default",
     [](Facts& f) { f.engines = Engines{.all = {test_containerd(true, true)}, .endpoint = {}}; },
     "nvidia-runtime", Verdict::kWarn, "gives every GPU to a container that requests none"},
    {"no spec", [](Facts& f) { f.cdi->devices.clear(); }, "cdi", Verdict::kFail, "no CDI spec"},
    {"a refused spec", [](Facts& f) { f.cdi->problems = {"x.json:1: no"}; }, "cdi", Verdict::kFail,
     "x.json:1: no"},
    {"a stale spec", [](Facts& f) { f.cdi->versions = {"535.1.2"}; }, "cdi", Verdict::kFail,
     "for driver 535.1.2, the installed driver is 570.124.06"},
    {"a spec of files that went", [](Facts& f) { f.cdi->missing = {"/usr/lib/libcuda.so.1"}; }, "cdi",
     Verdict::kFail, "missing files: /usr/lib/libcuda.so.1"},
    {"nothing of the resource", [](Facts& f) { (*f.kubelet.allocatable)["nvidia.com/gpu"] = 0; }, "resource",
     Verdict::kFail, "the agent offers none"},
    {"all held", [](Facts& f) { (*f.kubelet.held)["nvidia.com/gpu"] = 2; }, "resource", Verdict::kWarn,
     "all are allocated: 2 nvidia.com/gpu"},
    {"a withdrawn GPU",
     [](Facts& f) {
       f.agent->devices[1].offered = false;
       f.agent->devices[1].state = "lost";
       f.agent->devices[1].reason = "XID 79";
     },
     "gpus", Verdict::kFail, "GPU 1 is lost: XID 79"},
    {"a flagged GPU", [](Facts& f) { f.agent->devices[1].state = "degraded"; }, "gpus", Verdict::kWarn,
     "GPU 1 is degraded"},
    {"a Pod without a node",
     [](Facts& f) { f.cluster->pods = {{"team/train", "0/3 nodes are available: 3 too few GPUs", false}}; },
     "pods", Verdict::kFail, "team/train: 0/3"},
    {"a Pod that was refused",
     [](Facts& f) { f.cluster->pods = {{"a/b", "0/3", false}, {"a/c", "Allocate failed", true}}; }, "pods",
     Verdict::kFail, "a/c (and 1 more): Allocate failed"},
    {"kube-scheduler does not ask",
     [](Facts& f) {
       f.cluster->missed_pods = {{WallTime(), "default-scheduler", "nvidia.com/gpu", "team/train"}};
     },
     "extender", Verdict::kWarn,
     "default-scheduler bound team/train without asking gpulet scheduler about nvidia.com/gpu"},
    {"MIG waits", [](Facts& f) { f.driver->gpus[1].mig.pending = true; }, "mig", Verdict::kFail,
     "GPU 1: MIG is off, and on after"},
    {"MIG without instances", [](Facts& f) { f.driver->gpus[0].mig.enabled = true; }, "mig", Verdict::kFail,
     "MIG is on without instances"},
    {"MIG half done", [](Facts& f) { f.driver->gpus[0].mig = {true, std::nullopt, 2, 1}; }, "mig",
     Verdict::kFail, "1 GPU instance without"},
    {"MIG failed", [](Facts& f) { f.cluster->mig_state = "failed"; }, "mig", Verdict::kFail,
     "mig.config.state"},
    {"MPS down", [](Facts& f) { (*f.mps)[0].error = Error(Code::kUnavailable, "refused"); }, "mps",
     Verdict::kFail, "MPS control daemon of nvidia.com/gpu"},
    {"too hot",
     [](Facts& f) {
       f.driver->gpus[1].clock_events = nvml::kClocksHwThermal;
       f.driver->gpus[1].temperature = 92;
     },
     "clocks", Verdict::kWarn, "GPU 1 is too hot at 92 °C"},
    {"power brake",
     [](Facts& f) { f.driver->gpus[0].clock_events = nvml::kClocksHwPowerBrake | nvml::kClocksHwSlowdown; },
     "clocks", Verdict::kWarn, "power supply"},
    {"power", [](Facts& f) { f.agent->power = {{.gpu = DeviceUuid("GPU-0"), .problems = {"denied"}}}; },
     "power-limits", Verdict::kWarn, "GPU 0: denied"},
    {"a process of the host",
     [](Facts& f) {
       f.agent->gpus = {test_agent_gpu(0)};
       f.agent->gpus[0].outside_pods = {"process 812 (python3) holds 20000 MiB"};
     },
     "outside-pods", Verdict::kWarn, "GPU 0: process 812 (python3) holds 20000 MiB, in no Pod"},
    {"ACS", [](Facts& f) { f.bus->redirecting_bridges = {"0000:1a:00.0"}; }, "iommu", Verdict::kWarn, "ACS"},
    {"IOMMU", [](Facts& f) { f.bus->translated_gpus = {"0000:1b:00.0"}; }, "iommu", Verdict::kWarn, "IOMMU"},
    {"few lanes", [](Facts& f) { f.driver->gpus[0].width = 4; }, "pcie-width", Verdict::kWarn,
     "GPU 0 has 4 of 16 lanes"},
    {"a fabric that waits", [](Facts& f) { f.driver->gpus[0].fabric = health::FabricState::kJoining; },
     "fabric", Verdict::kFail, "GPU 0 has not joined"},
    {"a fabric that refused", [](Facts& f) { f.driver->gpus[0].fabric = health::FabricState::kFailed; },
     "fabric", Verdict::kFail, "GPU 0 was rejected"},
    {"a slow fabric", [](Facts& f) { f.driver->gpus[0].fabric = health::FabricState::kDegraded; }, "fabric",
     Verdict::kWarn, "has reduced"},
    {"no fabric manager",
     [](Facts& f) {
       for (auto& gpu : f.driver->gpus) gpu.fabric = health::FabricState::kNone;
       f.programs->fabric_manager = false;
     },
     "fabric", Verdict::kFail, "no fabric manager"},
    {"a claim that waits",
     [](Facts& f) {
       f.agent->read_at = WallTime{} + std::chrono::minutes(1);
       f.agent->claims.waiting = {{"team", "a", "u1", WallTime{}, "the MPS control daemon is starting"}};
     },
     "claims", Verdict::kFail, "claim team/a is not prepared: the MPS control daemon is starting (for 1m)"},
    {"nothing holds the limits",
     [](Facts& f) { f.agent->memory_limit = agent::MemoryLimitStatus{.grade = "none", .reasons = {"why"}}; },
     "memory-limits", Verdict::kWarn, "have the grade none: why"},
    {"two plugins", [](Facts& f) { f.programs->device_plugins.emplace_back(7, "nvidia-device-plugin"); },
     "two-plugins", Verdict::kFail, "nvidia-device-plugin (process 7)"},
    {"two at the sockets",
     [](Facts& f) { f.kubelet.plugins.push_back({"nvidiaGPU-1.sock", std::nullopt, 7}); }, "two-plugins",
     Verdict::kFail, "process 7"},
    {"no right",
     [](Facts& f) { f.cluster->missing_permissions = std::vector<std::string>{"patch on nodes"}; }, "rights",
     Verdict::kFail, "lacks permission to: patch on nodes"},
    {"refused", [](Facts& f) { f.agent->refusals = {"the API server answered 403: no"}; }, "rights",
     Verdict::kFail, "answered 403"},
    {"no right at the driver",
     [](Facts& f) { f.agent->missing_driver_rights = {"no CAP_SYS_ADMIN: no XIDs of MIG instances"}; },
     "driver-rights", Verdict::kWarn, "no XIDs of MIG instances"},
    {"a clock off", [](Facts& f) { f.cluster->clock_ahead = std::chrono::seconds(-20); }, "clock",
     Verdict::kWarn, "20 seconds behind"},
    {"a clock far off", [](Facts& f) { f.cluster->clock_ahead = std::chrono::seconds(600); }, "clock",
     Verdict::kFail, "600 seconds ahead of"},
    {"nobody's clock",
     [](Facts& f) {
       f.cluster = fail(Code::kNotFound, "no kubeconfig");
       f.clock_synchronised = false;
     },
     "clock", Verdict::kWarn, "not synchronized"},
};

TEST(Checks, EachFaultIsReportedByItsOwnCheckOnly) {
  for (const auto& fault : kFaults) {
    auto facts = healthy_facts();
    fault.make(facts);
    const auto findings = run_checks(facts);
    EXPECT_EQ(ids_with(findings, fault.verdict), fault.check) << fault.name;
    EXPECT_EQ(ids_with(findings, fault.verdict == Verdict::kFail ? Verdict::kWarn : Verdict::kFail), "")
        << fault.name;
    const auto* first = most_severe(findings);
    ASSERT_NE(first, nullptr) << fault.name;
    EXPECT_NE(first->result.found.find(fault.text), std::string::npos)
        << fault.name << ": " << first->result.found;
    EXPECT_NE(first->result.fix, "") << fault.name;
    EXPECT_NE(findings_summary(findings).find(first->result.found), std::string::npos) << fault.name;
  }
}

TEST(Checks, EveryCheckHasAFault) {
  for (const auto& check : all_checks()) {
    EXPECT_TRUE(std::ranges::any_of(kFaults, [&](const Fault& fault) { return fault.check == check.id; }))
        << check.id;
  }
}

TEST(Checks, DependentChecksAreSkipped) {
  auto facts = healthy_facts();
  facts.installed.module = fail(Code::kNotFound, "no");
  facts.driver = fail(Code::kUnavailable, "no driver");
  const auto findings = run_checks(facts);
  EXPECT_EQ(ids_with(findings, Verdict::kFail), "driver");
  const auto answers = std::ranges::find(findings, "driver-answers", &Finding::id);
  ASSERT_NE(answers, findings.end());
  EXPECT_EQ(answers->result.found, "fix `driver` first");
}

TEST(Checks, ASimulatedNodeNeedsNoKubelet) {
  auto facts = healthy_facts();
  facts.simulated = true;
  EXPECT_EQ(result_of(facts, "kubelet").verdict, Verdict::kPass) << "it may have one";
  facts.agent = fail(Code::kUnavailable, "no");
  facts.kubelet.socket = facts.kubelet.plugins_status = fail(Code::kNotFound, "no");
  EXPECT_EQ(result_of(facts, "kubelet").verdict, Verdict::kFail) << "one that has stopped";
  facts.kubelet.allocatable = fail(Code::kNotFound, "no");
  facts.kubelet.plugins.clear();
  const auto findings = run_checks(facts);
  EXPECT_EQ(ids_with(findings, Verdict::kFail), "");
  for (const char* id : {"kubelet", "plugin", "agent", "resource"}) {
    EXPECT_EQ(result_of(facts, id).found, "not applicable: a simulated node (gpulet-sim) without a kubelet")
        << id;
  }
  facts.simulated = false;
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kFail), "kubelet");
}

TEST(Checks, ASimulatedNodeNeedsNoEngine) {
  auto facts = healthy_facts();
  facts.engines->all.clear();
  EXPECT_EQ(result_of(facts, "runtime").verdict, Verdict::kUnknown);
  facts.simulated = true;
  EXPECT_EQ(result_of(facts, "runtime").found,
            "not applicable: a simulated node (gpulet-sim) without a container engine");
}

TEST(Checks, AFailedCheckHidesNothingThatIsKnown) {
  auto facts = healthy_facts();
  facts.nodes->needed[1].error = Error(Code::kNotFound, "no");
  facts.kubelet.socket = fail(Code::kNotFound, "no");
  facts.installed.libraries.clear();
  facts.driver->gpus[1].width = 4;
  const auto findings = run_checks(facts);
  EXPECT_EQ(ids_with(findings, Verdict::kFail), "driver-library device-nodes kubelet");
  EXPECT_EQ(ids_with(findings, Verdict::kSkip), "driver-version") << "only what follows from a failure";
  EXPECT_EQ(ids_with(findings, Verdict::kWarn), "pcie-width");
  EXPECT_EQ(ids_with(findings, Verdict::kUnknown), "");
}

TEST(Checks, DeviceNodesThatAreMissingAreNotOpenToEveryone) {
  auto facts = healthy_facts();
  for (auto& node : facts.nodes->needed) node.error = Error(Code::kNotFound, "no");
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kFail), "device-nodes");
  EXPECT_EQ(result_of(facts, "device-rights").found, "fix `device-nodes` first");
}

// The agent's container may have no kernel files, device nodes or kubelet directory that this process can
// use.
Facts facts_of_agent_pod() {
  auto facts = healthy_facts();
  facts.in_agent_pod = true;
  facts.agent->driver_version = kVersion;
  facts.bus->gpus.clear();
  facts.installed = {.module = fail(Code::kNotFound, "no"), .libraries = {}};
  facts.nodes->needed[0].error = Error(Code::kPermissionDenied, "no");
  facts.nodes->needed[1].error = Error(Code::kNotFound, "no");
  facts.driver = fail(Code::kPermissionDenied, "cannot open /dev/nvidiactl");
  facts.kubelet.socket = fail(Code::kNotFound, "no");
  facts.kubelet.plugins.clear();
  return facts;
}

TEST(Checks, InItsPodTheAgentIsBelieved) {
  const auto findings = run_checks(facts_of_agent_pod());
  EXPECT_EQ(ids_with(findings, Verdict::kFail) + ids_with(findings, Verdict::kWarn), "");
  EXPECT_EQ(ids_with(findings, Verdict::kUnknown), "");
  const auto facts = facts_of_agent_pod();
  EXPECT_EQ(result_of(facts, "driver-answers").found,
            std::string("the agent has driver ") + kVersion +
                " and offers its GPUs (from here: cannot open /dev/nvidiactl)");
  EXPECT_EQ(result_of(facts, "device-nodes").found,
            std::string("the agent has driver ") + kVersion +
                " and offers its GPUs (not in this container: /dev/nvidia-uvm)");
  EXPECT_EQ(result_of(facts, "plugin").found, "the agent serves nvidia.com/gpu");
}

TEST(Checks, AnExcludedGpuIsNoFault) {
  auto facts = facts_of_agent_pod();
  auto& devices = facts.agent->devices;
  devices[0].offered = false;
  devices[0].excluded = "is excluded by the rule at x.yaml:3:5";
  const auto gpus = result_of(facts, "gpus");
  EXPECT_EQ(gpus.verdict, Verdict::kPass);
  EXPECT_EQ(gpus.found, "the agent reports " + text::count_text(devices.size() - 1, "device") +
                            " as healthy; rules exclude 1");
  auto all = healthy_facts();
  for (auto& device : all.agent->devices) {
    device.offered = false;
    device.excluded = "is excluded by the rule at x.yaml:3:5";
  }
  (*all.kubelet.allocatable)["nvidia.com/gpu"] = 0;
  const auto found = result_of(all, "resource").found;
  EXPECT_NE(found.find("GPU 0 is excluded by the rule at x.yaml:3:5"), std::string::npos) << found;
}

TEST(Checks, AnAgentThatOffersNothingProvesNothing) {
  auto elsewhere = facts_of_agent_pod();
  elsewhere.in_agent_pod = false;
  auto without_driver = facts_of_agent_pod();
  without_driver.agent->driver_version.clear();
  auto withdrawn = facts_of_agent_pod();
  for (auto& device : withdrawn.agent->devices) device.offered = false;
  for (const auto& facts : {elsewhere, without_driver, withdrawn}) {
    const auto failed = ids_with(run_checks(facts), Verdict::kFail);
    EXPECT_NE(failed.find("pci"), std::string::npos) << failed;
    EXPECT_NE(failed.find("kubelet"), std::string::npos) << failed;
  }
  auto unregistered = facts_of_agent_pod();
  unregistered.agent->problems = {"nvidia.com/gpu: not registered"};
  EXPECT_EQ(result_of(unregistered, "kubelet").verdict, Verdict::kFail);
}

TEST(Checks, NamesTheDeviceRootOfMissingNodes) {
  auto facts = healthy_facts();
  facts.nodes->root = "/run/nvidia/driver";
  facts.nodes->needed[2].error = Error(Code::kNotFound, "no");
  EXPECT_EQ(result_of(facts, "device-nodes").found, "missing: /dev/nvidia0 below /run/nvidia/driver");
  facts.driver_root = "/run/nvidia/driver";
  EXPECT_EQ(result_of(facts, "driver-library").found,
            std::string("libnvidia-ml ") + kVersion + " below /run/nvidia/driver");
}

// In a container the kernel's files may be hidden although the driver responds.
TEST(Checks, RespondingDriverCountsAsLoaded) {
  auto facts = healthy_facts();
  facts.installed.module = fail(Code::kNotFound, "no");
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kFail), "");
  EXPECT_EQ(result_of(facts, "driver").verdict, Verdict::kPass);
}

TEST(Checks, DependenciesRunFirst) {
  std::vector<std::string_view> seen;
  for (const auto& check : all_checks()) {
    for (const auto need : check.depends_on) {
      if (need.empty()) continue;
      EXPECT_NE(std::ranges::find(seen, need), seen.end()) << check.id << " needs " << need;
    }
    EXPECT_EQ(std::ranges::find(seen, check.id), seen.end()) << check.id;
    seen.push_back(check.id);
  }
}

TEST(Checks, MissingFactsAreUnknown) {
  for (const auto& finding : run_checks(Facts{})) {
    const auto verdict = finding.result.verdict;
    const bool unknown = verdict == Verdict::kUnknown || verdict == Verdict::kSkip;
    // Unread sockets count as missing.
    EXPECT_TRUE(unknown || finding.id == "driver-library" || finding.id == "kubelet" ||
                finding.id == "driver-answers")
        << finding.id << ": " << finding.result.found;
  }
}

TEST(Checks, UsesTheDriverWithoutAnAgent) {
  struct Case {
    std::function<void(GpuFacts&)> make;
    Verdict verdict;
    const char* text;
  };
  const std::vector<Case> cases{
      {[](GpuFacts&) {}, Verdict::kPass, "no fault of 2 GPUs"},
      {[](GpuFacts& gpu) { gpu.unreadable = Error(Code::kDeviceLost, "GPU is lost"); }, Verdict::kFail,
       "GPU 1: GPU is lost"},
      {[](GpuFacts& gpu) { gpu.recovery_action = 1; }, Verdict::kFail, "GPU 1: the driver requests: "},
      {[](GpuFacts& gpu) { gpu.rows_failed = true; }, Verdict::kFail, "could not be remapped"},
      {[](GpuFacts& gpu) { gpu.sram_threshold = true; }, Verdict::kFail, "SRAM"},
      {[](GpuFacts& gpu) { gpu.rows_pending = true; }, Verdict::kWarn, "wait for a reset"},
      {[](GpuFacts& gpu) { gpu.pages_pending = true; }, Verdict::kWarn, "pages wait"},
      {[](GpuFacts& gpu) { gpu.inforom_valid = false; }, Verdict::kWarn, "InfoROM"},
  };
  for (const auto& one : cases) {
    auto facts = healthy_facts();
    facts.agent = fail(Code::kNotFound, "no agent runs here");
    one.make(facts.driver->gpus[1]);
    const auto findings = run_checks(facts);
    const auto gpus = std::ranges::find(findings, "gpus", &Finding::id);
    EXPECT_EQ(gpus->result.verdict, one.verdict) << one.text;
    EXPECT_NE(gpus->result.found.find(one.text), std::string::npos) << gpus->result.found;
  }
}

TEST(Checks, DeniedReadsAreUnknown) {
  auto facts = healthy_facts();
  const auto denied = fail(Code::kPermissionDenied, "permission denied");
  facts.kubelet.socket = denied;
  facts.kubelet.plugins.clear();
  facts.kubelet.plugins_status = denied;
  facts.kubelet.allocatable = denied;
  facts.programs->device_plugins.clear();
  facts.mps = denied;
  facts.bus->bridges_hidden = true;
  const auto findings = run_checks(facts);
  EXPECT_EQ(ids_with(findings, Verdict::kFail) + ids_with(findings, Verdict::kWarn), "");
  EXPECT_EQ(ids_with(findings, Verdict::kUnknown), "kubelet plugin resource mps iommu");
}

TEST(Checks, RequiresCdiOnlyWhereItIsUsed) {
  auto facts = healthy_facts();
  facts.settings->cdi = false;
  facts.cdi->devices.clear();
  facts.engines = Engines{.all = {test_containerd(false, true)}, .endpoint = {}};
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kFail), "");
  facts.settings->cdi = true;
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kFail), "runtime cdi");
  facts.settings = fail(Code::kNotFound, "no agent");
  facts.engines = Engines{.all = {test_containerd(true)}, .endpoint = {}};
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kFail), "");
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kUnknown), "cdi");
}

TEST(Report, LastLineIsTheSummary) {
  auto facts = healthy_facts();
  facts.kubelet.plugins[0].error = Error(Code::kUnavailable, "refused");
  facts.cluster->clock_ahead = std::chrono::seconds(20);
  const auto findings = run_checks(facts);
  const auto text = text_report(findings);
  const auto last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_EQ(last, findings_summary(findings) + "\n");
  EXPECT_FALSE(last.find("Also failing:") != std::string::npos) << last;
  facts.mps = std::vector<MpsDaemon>{{"nvidia.com/gpu", Error(Code::kUnavailable, "gone")}};
  EXPECT_TRUE(findings_summary(run_checks(facts)).ends_with(" Also failing: `mps`."))
      << findings_summary(run_checks(facts));
  EXPECT_TRUE(last.starts_with("Pod cannot be allocated: no response at nvidia-gpu.sock")) << last;
  EXPECT_EQ(overall_verdict(findings), Verdict::kFail);
  EXPECT_NE(json_report(findings).find("\"id\": \"plugin\",\n      \"complaint\": \"Pod cannot be "
                                       "allocated\",\n      \"verdict\": \"fail\""),
            std::string::npos)
      << json_report(findings);
}

}  // namespace
}  // namespace gpulet::doctor
