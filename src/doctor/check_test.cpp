// Each check on facts of a healthy node with one thing changed: that it names it, and that no other check
// does.
#include "doctor/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "doctor/report.h"
#include "doctor/test_facts.h"
#include "nvml/usage.h"

namespace gpulet::doctor {
namespace {

TEST(Checks, AHealthyNodePassesThemAll) {
  const auto findings = diagnose(healthy());
  ASSERT_EQ(findings.size(), checks().size());
  for (const auto& finding : findings)
    EXPECT_EQ(finding.judgement.verdict, Verdict::kPass) << finding.id << ": " << finding.judgement.found;
  EXPECT_EQ(foremost(findings), nullptr);
  EXPECT_EQ(summary(findings), "Nothing was found that keeps a Pod from a GPU of this node.");
}

struct Fault {
  const char* name;
  std::function<void(Facts&)> make;
  const char* check;
  Verdict verdict;
  const char* says;  // in what it found
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
     "nouveau", Verdict::kFail, "Nouveau has 0000:1b:00.0"},
    {"Nouveau beside it", [](Facts& f) { f.bus->nouveau = true; }, "nouveau", Verdict::kWarn, "beside"},
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
    {"no node", [](Facts& f) { f.nodes->needed[1].trouble = Error(Code::kNotFound, "no"); }, "device-nodes",
     Verdict::kFail, "missing: /dev/nvidia-uvm"},
    {"a node of before",
     [](Facts& f) {
       f.nodes->needed[1].trouble = Error(Code::kFailedPrecondition, "has the major number 5");
     },
     "device-nodes", Verdict::kFail, "/dev/nvidia-uvm: has the major number 5"},
    {"no cgroup right", [](Facts& f) { f.nodes->needed[0].trouble = Error(Code::kPermissionDenied, "no"); },
     "device-rights", Verdict::kFail, "/dev/nvidiactl"},
    {"a closed node", [](Facts& f) { f.nodes->needed[0].for_all = false; }, "device-rights", Verdict::kWarn,
     "only some users"},
    {"no link", [](Facts& f) { f.nodes->without_char_link = {"/dev/nvidia0"}; }, "device-rights",
     Verdict::kWarn, "daemon-reload"},
    {"a driver that hangs", [](Facts& f) { f.driver = fail(Code::kDeadlineExceeded, "did not answer"); },
     "driver-answers", Verdict::kFail, "did not answer"},
    {"a driver of another version",
     [](Facts& f) { f.driver = fail(Code::kUnavailable, "nvmlInit_v2: Driver/library version mismatch"); },
     "driver-answers", Verdict::kFail, "version mismatch"},
    {"a GPU less", [](Facts& f) { f.driver->gpus.pop_back(); }, "driver-answers", Verdict::kFail,
     "1 of the 2 GPUs"},
    {"no kubelet", [](Facts& f) { f.kubelet.socket = fail(Code::kNotFound, "no"); }, "kubelet",
     Verdict::kFail, "no kubelet runs here"},
    {"a kubelet that has ended", [](Facts& f) { f.kubelet.socket = fail(Code::kUnavailable, "refused"); },
     "kubelet", Verdict::kFail, "no registrations"},
    {"another kubelet",
     [](Facts& f) {
       f.kubelet.socket = fail(Code::kNotFound, "no");
       f.kubelet.other_folders = {"/var/lib/k0s/kubelet"};
     },
     "kubelet", Verdict::kFail, "one is at /var/lib/k0s/kubelet"},
    {"no plugin",
     [](Facts& f) {
       f.kubelet.plugins.clear();
       f.programs->device_plugins.clear();
     },
     "plugin", Verdict::kFail, "no device plugin"},
    {"a plugin that ended",
     [](Facts& f) { f.kubelet.plugins[0].trouble = Error(Code::kUnavailable, "refused"); }, "plugin",
     Verdict::kFail, "has ended"},
    {"an agent in trouble", [](Facts& f) { f.agent->problems = {"nvidia.com/gpu: not registered"}; }, "agent",
     Verdict::kFail, "not registered"},
    {"no CDI", [](Facts& f) { f.engines = Engines{.all = {containerd(false)}, .endpoint = {}}; }, "runtime",
     Verdict::kFail, "containerd 1.7.20 is not fit for CDI: off"},
    {"no spec", [](Facts& f) { f.cdi->devices.clear(); }, "cdi", Verdict::kFail, "no CDI spec"},
    {"a refused spec", [](Facts& f) { f.cdi->problems = {"x.json:1: no"}; }, "cdi", Verdict::kFail,
     "x.json:1: no"},
    {"a stale spec", [](Facts& f) { f.cdi->versions = {"535.1.2"}; }, "cdi", Verdict::kFail,
     "of driver 535.1.2, the driver is 570.124.06"},
    {"a spec of files that went", [](Facts& f) { f.cdi->missing = {"/usr/lib/libcuda.so.1"}; }, "cdi",
     Verdict::kFail, "not there: /usr/lib/libcuda.so.1"},
    {"nothing of the resource", [](Facts& f) { (*f.kubelet.allocatable)["nvidia.com/gpu"] = 0; }, "resource",
     Verdict::kFail, "the agent offers nothing"},
    {"all held", [](Facts& f) { (*f.kubelet.held)["nvidia.com/gpu"] = 2; }, "resource", Verdict::kWarn,
     "all are held: 2 nvidia.com/gpu"},
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
    {"MIG waits", [](Facts& f) { f.driver->gpus[1].mig.pending = true; }, "mig", Verdict::kFail,
     "GPU 1: MIG is off, and on after"},
    {"MIG without instances", [](Facts& f) { f.driver->gpus[0].mig.enabled = true; }, "mig", Verdict::kFail,
     "no instance"},
    {"MIG half done", [](Facts& f) { f.driver->gpus[0].mig = {true, std::nullopt, 2, 1}; }, "mig",
     Verdict::kFail, "1 GPU instance without"},
    {"MIG failed", [](Facts& f) { f.cluster->mig_state = "failed"; }, "mig", Verdict::kFail,
     "mig.config.state"},
    {"MPS down", [](Facts& f) { (*f.mps)[0].trouble = Error(Code::kUnavailable, "refused"); }, "mps",
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
    {"ACS", [](Facts& f) { f.bus->redirecting_bridges = {"0000:1a:00.0"}; }, "iommu", Verdict::kWarn, "ACS"},
    {"IOMMU", [](Facts& f) { f.bus->translated_gpus = {"0000:1b:00.0"}; }, "iommu", Verdict::kWarn, "IOMMU"},
    {"few lanes", [](Facts& f) { f.driver->gpus[0].width = 4; }, "pcie-width", Verdict::kWarn,
     "GPU 0 has 4 of 16 lanes"},
    {"a fabric that waits", [](Facts& f) { f.driver->gpus[0].fabric = health::FabricState::kJoining; },
     "fabric", Verdict::kFail, "GPU 0 has not joined"},
    {"a fabric that refused", [](Facts& f) { f.driver->gpus[0].fabric = health::FabricState::kFailed; },
     "fabric", Verdict::kFail, "GPU 0 was refused"},
    {"a slow fabric", [](Facts& f) { f.driver->gpus[0].fabric = health::FabricState::kDegraded; }, "fabric",
     Verdict::kWarn, "has less"},
    {"no fabric manager",
     [](Facts& f) {
       for (auto& gpu : f.driver->gpus) gpu.fabric = health::FabricState::kNone;
       f.programs->fabric_manager = false;
     },
     "fabric", Verdict::kFail, "no fabric manager"},
    {"two plugins", [](Facts& f) { f.programs->device_plugins.emplace_back(7, "nvidia-device-plugin"); },
     "two-plugins", Verdict::kFail, "nvidia-device-plugin (process 7)"},
    {"two at the sockets",
     [](Facts& f) { f.kubelet.plugins.push_back({"nvidiaGPU-1.sock", std::nullopt, 7}); }, "two-plugins",
     Verdict::kFail, "process 7"},
    {"no right", [](Facts& f) { f.cluster->missing_rights = std::vector<std::string>{"patch on nodes"}; },
     "rights", Verdict::kFail, "may not: patch on nodes"},
    {"refused", [](Facts& f) { f.agent->refusals = {"the API server answered 403: no"}; }, "rights",
     Verdict::kFail, "answered 403"},
    {"a clock off", [](Facts& f) { f.cluster->ahead = std::chrono::seconds(-20); }, "clock", Verdict::kWarn,
     "20 seconds behind"},
    {"a clock far off", [](Facts& f) { f.cluster->ahead = std::chrono::seconds(600); }, "clock",
     Verdict::kFail, "600 seconds ahead of"},
    {"nobody's clock",
     [](Facts& f) {
       f.cluster = fail(Code::kNotFound, "no kubeconfig");
       f.clock_synchronised = false;
     },
     "clock", Verdict::kWarn, "not synchronised"},
};

TEST(Checks, EachNamesItsFaultAndNoOtherDoes) {
  for (const auto& fault : kFaults) {
    auto facts = healthy();
    fault.make(facts);
    const auto findings = diagnose(facts);
    EXPECT_EQ(of(findings, fault.verdict), fault.check) << fault.name;
    EXPECT_EQ(of(findings, fault.verdict == Verdict::kFail ? Verdict::kWarn : Verdict::kFail), "")
        << fault.name;
    const auto* first = foremost(findings);
    ASSERT_NE(first, nullptr) << fault.name;
    EXPECT_NE(first->judgement.found.find(fault.says), std::string::npos)
        << fault.name << ": " << first->judgement.found;
    EXPECT_NE(first->judgement.fix, "") << fault.name;
    EXPECT_NE(summary(findings).find(first->judgement.found), std::string::npos) << fault.name;
  }
}

TEST(Checks, EveryOneHasAFault) {
  for (const auto& check : checks()) {
    EXPECT_TRUE(std::ranges::any_of(kFaults, [&](const Fault& fault) { return fault.check == check.id; }))
        << check.id;
  }
}

TEST(Checks, WhatStandsOnAFaultIsNotJudged) {
  auto facts = healthy();
  facts.installed.module = fail(Code::kNotFound, "no");
  facts.driver = fail(Code::kUnavailable, "no driver");
  const auto findings = diagnose(facts);
  EXPECT_EQ(of(findings, Verdict::kFail), "driver");
  const auto answers = std::ranges::find(findings, "driver-answers", &Finding::id);
  ASSERT_NE(answers, findings.end());
  EXPECT_EQ(answers->judgement.found, "once `driver` is put right");
}

// In a container the kernel's files may be hidden, and yet the driver answers.
TEST(Checks, ADriverThatAnswersIsLoaded) {
  auto facts = healthy();
  facts.installed.module = fail(Code::kNotFound, "no");
  EXPECT_EQ(of(diagnose(facts), Verdict::kFail), "");
  EXPECT_EQ(judgement_of(facts, "driver").verdict, Verdict::kPass);
}

TEST(Checks, NeedsAreEarlierOnes) {
  std::vector<std::string_view> seen;
  for (const auto& check : checks()) {
    for (const auto need : check.needs) {
      if (need.empty()) continue;
      EXPECT_NE(std::ranges::find(seen, need), seen.end()) << check.id << " needs " << need;
    }
    EXPECT_EQ(std::ranges::find(seen, check.id), seen.end()) << check.id;
    seen.push_back(check.id);
  }
}

TEST(Checks, WhatWasNotLookedAtCannotBeTold) {
  for (const auto& finding : diagnose(Facts{})) {
    const bool told = finding.judgement.verdict != Verdict::kCannotTell;
    // Sockets that nobody could look at are seen as none.
    EXPECT_TRUE(!told || finding.id == "driver-library" || finding.id == "kubelet" ||
                finding.id == "driver-answers")
        << finding.id << ": " << finding.judgement.found;
  }
}

TEST(Checks, WithoutAnAgentTheDriverSpeaksOfItsGpus) {
  struct Case {
    std::function<void(GpuFacts&)> make;
    Verdict verdict;
    const char* says;
  };
  const std::vector<Case> cases{
      {[](GpuFacts&) {}, Verdict::kPass, "nothing against 2 GPUs"},
      {[](GpuFacts& gpu) { gpu.unreadable = Error(Code::kDeviceLost, "GPU is lost"); }, Verdict::kFail,
       "GPU 1: GPU is lost"},
      {[](GpuFacts& gpu) { gpu.recovery_action = 1; }, Verdict::kFail, "GPU 1: the driver asks for: "},
      {[](GpuFacts& gpu) { gpu.rows_failed = true; }, Verdict::kFail, "could not be remapped"},
      {[](GpuFacts& gpu) { gpu.sram_threshold = true; }, Verdict::kFail, "SRAM"},
      {[](GpuFacts& gpu) { gpu.rows_pending = true; }, Verdict::kWarn, "wait for a reset"},
      {[](GpuFacts& gpu) { gpu.pages_pending = true; }, Verdict::kWarn, "pages wait"},
      {[](GpuFacts& gpu) { gpu.inforom_valid = false; }, Verdict::kWarn, "InfoROM"},
  };
  for (const auto& one : cases) {
    auto facts = healthy();
    facts.agent = fail(Code::kNotFound, "no agent runs here");
    one.make(facts.driver->gpus[1]);
    const auto findings = diagnose(facts);
    const auto gpus = std::ranges::find(findings, "gpus", &Finding::id);
    EXPECT_EQ(gpus->judgement.verdict, one.verdict) << one.says;
    EXPECT_NE(gpus->judgement.found.find(one.says), std::string::npos) << gpus->judgement.found;
  }
}

TEST(Checks, WhatOnlyRootMaySeeIsNoFault) {
  auto facts = healthy();
  const auto denied = fail(Code::kPermissionDenied, "permission denied");
  facts.kubelet.socket = denied;
  facts.kubelet.plugins.clear();
  facts.kubelet.plugins_seen = denied;
  facts.kubelet.allocatable = denied;
  facts.programs->device_plugins.clear();
  facts.mps = denied;
  facts.bus->bridges_unseen = true;
  const auto findings = diagnose(facts);
  EXPECT_EQ(of(findings, Verdict::kFail) + of(findings, Verdict::kWarn), "");
  EXPECT_EQ(of(findings, Verdict::kCannotTell), "kubelet plugin resource mps iommu");
}

TEST(Checks, CdiIsAskedForOnlyWhereItIsUsed) {
  auto facts = healthy();
  facts.settings->cdi = false;
  facts.cdi->devices.clear();
  facts.engines = Engines{.all = {containerd(false, true)}, .endpoint = {}};
  EXPECT_EQ(of(diagnose(facts), Verdict::kFail), "");
  facts.settings->cdi = true;
  EXPECT_EQ(of(diagnose(facts), Verdict::kFail), "runtime cdi");
  facts.settings = fail(Code::kNotFound, "no agent");
  facts.engines = Engines{.all = {containerd(true)}, .endpoint = {}};
  EXPECT_EQ(of(diagnose(facts), Verdict::kFail), "");
  EXPECT_EQ(of(diagnose(facts), Verdict::kCannotTell), "cdi");
}

TEST(Report, TheLastLineIsTheFirstThingToDo) {
  auto facts = healthy();
  facts.kubelet.plugins[0].trouble = Error(Code::kUnavailable, "refused");
  facts.cluster->ahead = std::chrono::seconds(20);
  const auto findings = diagnose(facts);
  const auto text = text_report(findings);
  const auto last = text.substr(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_EQ(last, summary(findings) + "\n");
  EXPECT_FALSE(last.find("Then see to") != std::string::npos) << last;
  facts.mps = std::vector<MpsDaemon>{{"nvidia.com/gpu", Error(Code::kUnavailable, "gone")}};
  EXPECT_TRUE(summary(diagnose(facts)).ends_with(" Then see to `mps`.")) << summary(diagnose(facts));
  EXPECT_TRUE(last.starts_with("Pod cannot be allocated: nobody answers at nvidia-gpu.sock")) << last;
  EXPECT_EQ(verdict_of(findings), Verdict::kFail);
  EXPECT_NE(json_report(findings).find("\"id\": \"plugin\",\n      \"complaint\": \"Pod cannot be "
                                       "allocated\",\n      \"verdict\": \"fail\""),
            std::string::npos)
      << json_report(findings);
}

TEST(Report, WhatOthersSaidStaysOneLine) {
  auto facts = healthy();
  facts.cluster->pods = {{"a/b", "0/3 nodes:\n\x1b[2Jtwo \xc2\x9b 2J lines, 95 °C", false}};
  const auto findings = diagnose(facts);
  EXPECT_EQ(summary(findings).find('\n'), std::string::npos);
  EXPECT_EQ(text_report(findings).find('\x1b'), std::string::npos);
  EXPECT_EQ(text_report(findings).find("\xc2\x9b"), std::string::npos);
  EXPECT_NE(text_report(findings).find("95 °C"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::doctor
