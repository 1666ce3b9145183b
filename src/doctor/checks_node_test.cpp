// Which container engine is checked, machines that gpulet does not serve, and how a pending Pod is explained,
// also where its text is hostile.
#include <gtest/gtest.h>

#include "base/text.h"
#include "doctor/checks.h"
#include "doctor/probe.h"
#include "doctor/test_facts.h"

namespace gpulet::doctor {
namespace {

TEST(Checks, SuggestsTheDistributionsUnit) {
  auto facts = healthy_facts();
  facts.kubelet.socket = fail(Code::kUnavailable, "refused");
  EXPECT_NE(result_of(facts, "kubelet").fix.find("`systemctl status kubelet`"), std::string::npos);
  facts.engines->all = {distribution_engine("RKE2", "/run/k3s/containerd/containerd.sock", true)};
  EXPECT_NE(result_of(facts, "kubelet").fix.find("`systemctl status 'rke2-*'`"), std::string::npos)
      << result_of(facts, "kubelet").fix;
}

TEST(Checks, AMachineThatGpuletDoesNotServeIsNamed) {
  using inventory::UnservedPlatform;
  struct Case {
    UnservedPlatform platform;
    const char* path;
    bool has_bus, has_gpus;  // NVIDIA's on it
    Verdict verdict;
    const char* found;
  };
  for (const auto& one : std::vector<Case>{
           {UnservedPlatform::kTegra, "/etc/nv_tegra_release", false, false, Verdict::kFail,
            "this machine is Tegra (/etc/nv_tegra_release)"},
           {UnservedPlatform::kTegra, "/sys/devices/soc0/family", true, false, Verdict::kFail,
            "this machine is Tegra (/sys/devices/soc0/family)"},
           {UnservedPlatform::kTegra, "/etc/nv_tegra_release", true, true, Verdict::kPass,
            "on the PCI bus; this machine is Tegra"},
           {UnservedPlatform::kWsl, "/dev/dxg", true, false, Verdict::kFail,
            "this machine is WSL 2 (/dev/dxg)"},
       }) {
    auto facts = healthy_facts();  // the driver answers
    facts.platform = {one.platform, one.path};
    if (!one.has_bus) facts.bus = fail(Code::kNotFound, "no PCI bus");
    if (facts.bus && !one.has_gpus) facts.bus->gpus.clear();
    const auto result = result_of(facts, "pci");
    EXPECT_EQ(result.verdict, one.verdict) << one.found;
    EXPECT_NE(result.found.find(one.found), std::string::npos) << result.found;
    if (one.verdict == Verdict::kFail) {
      EXPECT_NE(result.fix.find("use NVIDIA's device plugin"), std::string::npos) << result.fix;
    }
  }
}

TEST(Checks, ClaimsThatWaitAndGpusThatMove) {
  using namespace std::chrono_literals;
  struct Case {
    Duration moves, waits;  // 0: nothing does
    const char* reason;
    Verdict verdict;
    const char *found, *fix;
  };
  const std::string not_served = "the MPS control daemon of claims/u1 has ended";
  for (const auto& one : std::vector<Case>{
           {0s, 0s, "", Verdict::kPass, "no claim waits, and no GPU moves for long; 2 devices", ""},
           {2min, 9s, "the claim does not exist", Verdict::kPass, "no claim waits", ""},
           {3min, 0s, "is offered by claims when Pod team/p ends", Verdict::kWarn,
            "GPU 1 is offered by claims when Pod team/p ends (for 3m)", "kubectl delete pod"},
           {4min, 0s, "is offered by the device plugin when claim team/a ends", Verdict::kWarn, "(for 4m)",
            "claim's Pods"},
           {4min, 0s, "is offered by claims when the kubelet has withdrawn it", Verdict::kWarn, "withdrawn",
            "journalctl -u kubelet"},
           {4min, 0s, "is offered by claims later: the Node shows nvidia.com/gpu: 8, expected 4",
            Verdict::kWarn, "expected 4", "update the Node"},
           {4min, 0s, "is offered by the device plugin when the ResourceSlices are known to lack it",
            Verdict::kWarn, "ResourceSlices", "API server"},
           {4min, 0s, "is offered by claims when the device plugin's Pods are known", Verdict::kWarn, "known",
            "pod-resources"},
           {4min, 0s, "takes long", Verdict::kWarn, "takes long", "logs ds/gpulet"},
           {4min, 10s, not_served.c_str(), Verdict::kFail,
            "claim team/a is not prepared: the MPS control daemon of claims/u1 has ended (for 10s)",
            "the check `mps`"},
           {0s, 1min, "cannot read the claim: connection refused", Verdict::kFail, "refused", "API server"},
           {0s, 1min, "the API server has not answered yet", Verdict::kFail, "answered", "reaches"},
           {0s, 1min, "device \"gpu-0\" is still held by the claim team/b (uid u2)", Verdict::kFail, "held",
            "Pods of that claim"},
           {0s, 1min, "the GPUs of this node are not known yet", Verdict::kFail, "known", "driver-answers"},
           {0s, 1min, "GpuConfig: unknown field", Verdict::kFail, "unknown", "gpulet dra check"},
       }) {
    auto facts = healthy_facts();
    auto& agent = *facts.agent;
    agent.read_at = *parse_wall_time("2026-01-31T12:05:00.000Z");
    agent.claims.offered = 2;
    if (one.moves != 0s)
      agent.claims.moves = {{DeviceUuid("GPU-1"), true, agent.read_at - one.moves, one.reason}};
    if (one.waits != 0s) agent.claims.waiting = {{"team", "a", "u1", agent.read_at - one.waits, one.reason}};
    const auto result = result_of(facts, "claims");
    EXPECT_EQ(result.verdict, one.verdict) << one.reason;
    EXPECT_NE(result.found.find(one.found), std::string::npos) << result.found;
    EXPECT_NE(result.fix.find(one.fix), std::string::npos) << result.fix;
  }
  EXPECT_EQ(result_of(healthy_facts(), "claims").found, "no GPU is offered by claims");
}

// Nothing is wrong where no resource is left to the device plugin.
TEST(Checks, ANodeMayOfferAllByClaims) {
  auto facts = healthy_facts();
  facts.kubelet.plugins.clear();
  facts.kubelet.allocatable = std::map<std::string, std::size_t>{};
  for (auto& device : facts.agent->devices) device.resource.clear();
  EXPECT_EQ(result_of(facts, "plugin").verdict, Verdict::kFail);
  facts.agent->claims.offered = 1;
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kFail), "");
  EXPECT_EQ(result_of(facts, "plugin").found,
            "the agent offers 1 device by claims, and none by the device plugin");
  EXPECT_EQ(result_of(facts, "resource").found, "none by the device plugin; 1 device by claims");
}

TEST(Checks, ChecksOnlyTheKubeletsEngine) {
  const std::string k3s = "/run/k3s/containerd/containerd.sock";
  auto facts = healthy_facts();
  // Docker's containerd is installed next to that of k3s.
  facts.engines = Engines{.all = {test_containerd(false), distribution_engine("k3s", k3s, true)},
                          .endpoint = runtimes::KubeletEndpoint{k3s, "k3s server", "/usr/local/bin/k3s"}};
  auto judgement = result_of(facts, "runtime");
  EXPECT_EQ(judgement.verdict, Verdict::kPass);
  EXPECT_EQ(judgement.found, "containerd 1.7.20 of k3s injects devices by CDI");
  EXPECT_EQ(judgement.details,
            (std::vector<std::string>{"the kubelet uses the engine at " + k3s + " (k3s server)",
                                      "read: /var/lib/rancher/k3s/config.toml"}));
  facts.engines->endpoint =
      runtimes::KubeletEndpoint{"/run/containerd/containerd.sock", "kubelet", "/usr/bin/kubelet"};
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kFail), "runtime");
  facts.engines->endpoint = runtimes::KubeletEndpoint{"/run/cri-dockerd.sock", "kubelet", "/usr/bin/kubelet"};
  judgement = result_of(facts, "runtime");
  EXPECT_EQ(judgement.verdict, Verdict::kUnknown);
  EXPECT_NE(judgement.found.find("/run/cri-dockerd.sock"), std::string::npos) << judgement.found;
  // Unknown: the engine whose socket exists.
  facts.engines->endpoint.reset();
  facts.engines->all[1].report.socket = k3s;
  EXPECT_EQ(ids_with(run_checks(facts), Verdict::kFail), "");
  // k3s and RKE2 share a socket path.
  facts.engines =
      Engines{.all = {distribution_engine("k3s", k3s, true), distribution_engine("RKE2", k3s, false)},
              .endpoint = runtimes::KubeletEndpoint{k3s, "the command line",
                                                    "/var/lib/rancher/rke2/data/bin/kubelet"}};
  EXPECT_EQ(result_of(facts, "runtime").found, "containerd 1.7.20 of RKE2 is not ready for CDI: off");
}

TEST(Checks, ExplainsPendingPodsByNode) {
  auto facts = healthy_facts();
  PodExplanation explained =
      parse_explanation(
          R"({"asks":"9 nvidia.com/gpu","nodes":[{"node":"a","fits":true},{"node":"b","fits":false,"reason":"8 free"},)"
          R"({"node":"n","fits":false,"reason":"0 free"}],"hints":["n lacks 1","x","y","z"]})",
          "n")
          .value();
  explained.by_extender = true;
  PendingPod waits{"team/train", "0/3 nodes", false, explained};
  PendingPod unknown{"team/more", "0/3 nodes", false, fail(Code::kUnavailable, "nobody is there")};
  facts.cluster->pods = {waits, unknown, PendingPod{"team/third", "0/3", false, std::nullopt}};
  const auto findings = run_checks(facts);
  const auto& judgement = most_severe(findings)->result;
  EXPECT_EQ(judgement.found, "team/train (and 2 more): 0/3 nodes");
  EXPECT_EQ(judgement.details,
            (std::vector<std::string>{
                "team/train requests 9 nvidia.com/gpu; according to gpulet's extender:",
                "  enough GPUs are free on a: something else prevents it (see the message above)",
                "  not on n: 0 free", "  not on b: 8 free", "  hint: n lacks 1", "  hint: x", "  hint: y",
                "team/more could not be explained: nobody is there"}));
  EXPECT_NE(text_report(findings).find("    not on n: 0 free\n"), std::string::npos) << text_report(findings);
  EXPECT_NE(json_report(findings).find("\"  not on n: 0 free\""), std::string::npos);
  EXPECT_FALSE(parse_explanation("[]", "n"));
  EXPECT_FALSE(parse_explanation("{}", "n"));
  std::string many = R"({"asks":"1","nodes":[{"node":"x"})";
  for (int i = 0; i < 14; ++i) many += R"(,{"node":"y","reason":"r"})";
  EXPECT_EQ(parse_explanation(many + "]}", "y")->nodes.size(), kMaxReasons);
  EXPECT_EQ(parse_explanation(many + "]}", "y")->left_out, 5u);
}

TEST(NvidiaRuntime, IsJudgedByItsConfigWhereTheEngineHasIt) {
  auto facts = healthy_facts();
  EXPECT_EQ(check_nvidia_runtime(facts).verdict, Verdict::kPass);
  facts.engines = Engines{.all = {test_containerd(true, true)}, .endpoint = {}};
  const std::string command = "`gpulet runtime configure --deny-visible-devices-env`";
  const std::string both =
      "first deviceListStrategy: cdi-cri or volume-mounts, or Pods lose their GPUs; then " + command;
  using Config = runtimes::nvidia::RuntimeConfig;
  const Config open{"/toolkit/config.toml", true, false}, mounts{"/toolkit/config.toml", false, true},
      closed{"/toolkit/config.toml", false, false};
  const AgentSettings envvar{.source = "x"}, cdi{.source = "x", .cdi = true},
      by_mounts{.source = "x", .volume_mounts = true};
  const Result<AgentSettings> unknown = fail(Code::kNotFound, "none");
  struct Case {
    Config config;
    Result<AgentSettings> settings;
    Verdict verdict;
    std::string fix;
  };
  const Case cases[] = {{{}, envvar, Verdict::kWarn, both},
                        {open, unknown, Verdict::kWarn, both},
                        {open, cdi, Verdict::kWarn, command},
                        {open, by_mounts, Verdict::kWarn, command},
                        {mounts, unknown, Verdict::kPass, ""},
                        {closed, cdi, Verdict::kPass, ""},
                        {mounts, by_mounts, Verdict::kPass, ""},
                        {closed, by_mounts, Verdict::kFail, command},
                        {mounts, envvar, Verdict::kFail, "deviceListStrategy: cdi-cri or volume-mounts"}};
  for (const auto& [config, settings, verdict, fix] : cases) {
    facts.engines->nvidia_runtime_config = config;
    facts.settings = settings;
    const auto result = check_nvidia_runtime(facts);
    EXPECT_EQ(result.verdict, verdict) << result.found;
    EXPECT_EQ(result.fix, fix);
  }
  facts.engines->nvidia_runtime_config = fail(Code::kInvalidArgument, "is no TOML", "config.toml:3");
  EXPECT_EQ(check_nvidia_runtime(facts).verdict, Verdict::kUnknown);
}

TEST(Report, SanitizesForeignText) {
  auto facts = healthy_facts();
  facts.cluster->pods = {{"a/b", "0/3 nodes:\n\x1b[2Jtwo \xc2\x9b 2J lines, 95 °C", false}};
  const auto findings = run_checks(facts);
  EXPECT_EQ(findings_summary(findings).find('\n'), std::string::npos);
  EXPECT_EQ(text_report(findings).find('\x1b'), std::string::npos);
  EXPECT_EQ(text_report(findings).find("\xc2\x9b"), std::string::npos);
  EXPECT_NE(text_report(findings).find("95 °C"), std::string::npos);
}

TEST(NodeChecks, AGpuThatWaitsForItsPreflightIsNoFault) {
  auto facts = healthy_facts();
  for (auto& device : facts.agent->devices) {
    device.offered = false;
    device.waits = true;
    device.reason = "waits for its preflight, for the driver";
  }
  const auto gpus = result_of(facts, "gpus");
  EXPECT_EQ(gpus.verdict, Verdict::kWarn);
  EXPECT_EQ(gpus.found.find("GPU 0 waits for its preflight, for the driver"), 0u) << gpus.found;
  (*facts.kubelet.allocatable)["nvidia.com/gpu"] = 0;
  const auto found = result_of(facts, "resource").found;
  EXPECT_NE(found.find("GPU 0 waits for its preflight"), std::string::npos) << found;
}

}  // namespace
}  // namespace gpulet::doctor
