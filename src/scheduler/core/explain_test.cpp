#include "scheduler/core/explain.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "scheduler/model/test_nodes.h"

namespace gpulet::scheduler {
namespace {

class ExplainTest : public testing::Test {
 protected:
  ExplainTest() {
    GpuNode split = test_node(8, 4), broken = test_node(8, 8);
    hold_units(split, "team/one", {0, 1});
    hold_units(split, "team/two", {4, 5});
    for (const std::size_t gpu : {1, 2, 3, 4, 5})
      quarantine_gpu(broken, gpu, "XID 79: GPU has fallen off the bus");
    view_.set_node("n1", split);
    view_.set_node("n2", broken);
  }
  Explanation ask(PodRequest pod) {
    return explain_placement(view_, scorer_, pod, {"topology", "from the Pod"});
  }

  ClusterState view_;
  Scorer scorer_;
};

TEST_F(ExplainTest, NamesReasonsAndHints) {
  auto pod = test_pod("p", 4);
  apply_annotation("gpulet.io/gpu-links", "NV", pod);
  apply_annotation("gpulet.io/gpu-memory", "lots", pod);
  EXPECT_EQ(
      explanation_text(ask(pod)),
      "default/p requests 4 nvidia.com/gpu, linked by NV; scored by topology (from the Pod)\n"
      "  ! annotation gpulet.io/gpu-memory is \"lots\": expected a whole-number quantity, as 40Gi; ignored\n"
      "Fits on no node.\n"
      "Rejected:\n"
      "  n1  4/8 held, 4 free but no 4 linked by NV\n"
      "  n2  0/8 held, 5 quarantined (XID 79), 3 free of 4 requested\n"
      "Hints:\n"
      "  without the annotation gpulet.io/gpu-links it fits on n1\n");
}

TEST_F(ExplainTest, SaysWhatMigOnDemandCouldFree) {
  const ResourceName half("nvidia.com/mig-3g.40gb");
  auto offering = test_node(1, 1);
  offering.mig_offer.resources.push_back({half, 1, "GPU 0: 4 x 1g.10gb in use"});
  view_.set_node("n1", offering);
  auto pod = test_pod("p", 1);
  pod.containers[0].devices[0].resource = half;
  EXPECT_EQ(ask(pod).hints,
            std::vector<std::string>{"with MIG on demand nvidia.com/mig-3g.40gb can be free on n1 (1)"});
  pod.containers[0].devices[0].count = 2;
  EXPECT_EQ(ask(pod).hints, std::vector<std::string>{"MIG on demand cannot free 2 of nvidia.com/mig-3g.40gb: "
                                                     "n1 (1: GPU 0: 4 x 1g.10gb in use)"});
  // Where others of the kind exist, and are all held.
  auto held = test_node(1, 1);
  held.resources[0].name = half;
  hold_units(held, "team/one", {0});
  view_.set_node("n2", held);
  pod.containers[0].devices[0].count = 1;
  EXPECT_EQ(ask(pod).hints,
            (std::vector<std::string>{"with MIG on demand nvidia.com/mig-3g.40gb can be free on n1 (1)",
                                      "n2 lacks 1 nvidia.com/mig-3g.40gb; held by team/one (1)"}));
  held.allocations.clear();
  view_.set_node("n2", held);
  EXPECT_EQ(ask(pod).hints, std::vector<std::string>());
}

TEST_F(ExplainTest, NamesTheFieldOfAMemoryRequest) {
  auto pod = test_pod("p", 1);
  pod.containers[0].memory = {.mib = 100'000};
  pod.containers[0].memory_source = "limit nvidia.com/gpumem of container main";
  const auto explanation = ask(pod);
  EXPECT_EQ(explanation.requests, "1 nvidia.com/gpu, with 100000Mi each");
  ASSERT_EQ(explanation.hints.size(), 1U);
  EXPECT_EQ(explanation.hints[0], "without the limit nvidia.com/gpumem of container main it fits on n1, n2");
  pod.containers[0].memory = {.millionths = 333'000};
  EXPECT_EQ(ask(pod).requests, "1 nvidia.com/gpu, with 33.3000 % of the memory each");
  pod.containers[0].memory = {.millionths = 500'000};
  EXPECT_EQ(ask(pod).requests, "1 nvidia.com/gpu, with 50 % of the memory each");
}

TEST_F(ExplainTest, SaysWhereComputeIsNotHeldAndWhy) {
  auto older = test_node(8, 8);
  older.no_compute_limit = "the driver is 580.95.05: MPS protocol 3 needs 615 or later";
  for (const char* name : {"n1", "n2", "n3", "n4"})
    view_.set_node(name, name == std::string("n4") ? test_node(8, 8) : older);
  auto pod = test_pod("p", 1);
  EXPECT_TRUE(ask(pod).notes.empty());
  pod.requests_compute = true;
  const std::string note =
      "nvidia.com/gpucores is checked, not held, on n1, n2, n3: " + older.no_compute_limit;
  EXPECT_EQ(ask(pod).notes, std::vector<std::string>{note});
  EXPECT_TRUE(explanation_text(ask(pod)).ends_with("Notes:\n  " + note + "\n"));
  EXPECT_EQ(nlohmann::json::parse(explanation_json(ask(pod)))["notes"][0], note);
  older.no_compute_limit = "gpulet.mps.manage is false: another program runs the daemons";
  view_.set_node("n2", older);
  EXPECT_EQ(ask(pod).notes.size(), 2U);
  view_.set_node("n2", test_node(0, 0));
  EXPECT_EQ(ask(pod).notes.size(), 1U) << "nodes where it does not fit do not count";
}

TEST_F(ExplainTest, NamesTheGradeThatAPodDemands) {
  auto shared = test_node(1, 1, 4);
  shared.memory_limit.ends_excess = true;
  view_.set_node("n1", shared);
  view_.set_node("n2", shared);
  auto pod = test_pod("p", 1);
  pod.limit_demand = {fraction::LimitGrade::kKernel, {{{.name = "main"}, {.mib = 1024}}}};
  const auto explanation = ask(pod);
  EXPECT_EQ(explanation.requests, "1 nvidia.com/gpu, memory limits of grade kernel or better");
  ASSERT_EQ(explanation.nodes.size(), 2U);
  EXPECT_EQ(explanation.nodes[0].reason, "limits GPU memory by audit; the Pod demands kernel");
  ASSERT_EQ(explanation.hints.size(), 1U);
  EXPECT_EQ(explanation.hints[0], "without the annotation gpulet.io/min-limit-grade it fits on n1, n2");
}

TEST_F(ExplainTest, AContradictionRejectsEveryNode) {
  for (auto pod : {test_pod("p", 1), test_pod("p", 0)}) {
    if (pod.containers[0].devices[0].count == 0) pod.containers.clear();
    pod.request_error = "annotation gpu-fraction is \"2\": expected less";
    auto other = test_node(8, 8);
    other.resources[0].name = ResourceName("nvidia.com/gpu.shared");
    view_.set_node("n3", other);
    const auto explanation = ask(pod);
    ASSERT_EQ(explanation.nodes.size(), 3U);
    for (const auto& node : explanation.nodes) {
      EXPECT_FALSE(node.fits);
      EXPECT_EQ(node.reason, pod.request_error);
    }
    EXPECT_TRUE(explanation.hints.empty());
  }
}

TEST_F(ExplainTest, NamesHoldersOfMissingDevices) {
  const auto hints = ask(test_pod("p", 5)).hints;
  ASSERT_EQ(hints.size(), 1U);
  EXPECT_EQ(hints[0], "n1 lacks 1 nvidia.com/gpu; held by team/one (2), team/two (2)");
  EXPECT_EQ(ask(test_pod("p", 9)).hints[0], "no node has 9 of nvidia.com/gpu: the largest has 8");
  auto other = test_pod("p", 1);
  other.containers[0].devices[0].resource = ResourceName("example.com/fpga");
  EXPECT_TRUE(ask(other).hints.empty()) << "nothing that is ours refuses it";
}

TEST_F(ExplainTest, ANodeWithoutTheResourceDoesNotFit) {
  auto shared = test_node(8, 8);
  shared.resources[0].name = ResourceName("nvidia.com/gpu.shared");
  view_.set_node("n3", shared);
  EXPECT_EQ(explanation_text(ask(test_pod("p", 9))),
            "default/p requests 9 nvidia.com/gpu; scored by topology (from the Pod)\n"
            "Fits on no node.\n"
            "Rejected:\n"
            "  n1  4/8 held, 4 free of 9 requested\n"
            "  n2  0/8 held, 5 quarantined (XID 79), 3 free of 9 requested\n"
            "  n3  publishes nothing that the Pod requests\n"
            "Hints:\n"
            "  no node has 9 of nvidia.com/gpu: the largest has 8\n");
}

TEST_F(ExplainTest, ListsFittingNodesWithDevices) {
  const auto result = ask(test_pod("p", 2));
  ASSERT_EQ(result.nodes.size(), 2U);
  EXPECT_TRUE(result.nodes[0].fits);
  EXPECT_EQ(result.nodes[0].score, kMaxScore);
  EXPECT_NE(result.nodes[0].devices.find("linked by NV4"), std::string::npos) << result.nodes[0].devices;
  EXPECT_TRUE(result.hints.empty());
}

TEST_F(ExplainTest, ShowsDevicesOfABoundPod) {
  auto pod = test_pod("one", 2, "n1");
  pod.name_space = "team";
  auto result = ask(pod);
  EXPECT_EQ(result.node, "n1");
  EXPECT_EQ(result.devices, "GPU 0, 1, linked by NV4");
  pod.name = "new";
  view_.set_pod(pod);
  result = ask(pod);
  EXPECT_NE(result.devices.find("assumed"), std::string::npos) << result.devices;
  const auto json = nlohmann::json::parse(explanation_json(result));
  EXPECT_EQ(json["pod"], "team/new");
  EXPECT_EQ(json["nodes"].size(), 1U);
}

TEST_F(ExplainTest, NamesFaultyGpusOfARunningPod) {
  auto node = test_node(4, 4);
  hold_units(node, "team/run", {0, 1, 2});
  quarantine_gpu(node, 1, "XID 95: uncontained memory error");
  quarantine_gpu(node, 2, "GPU has fallen off the bus");
  quarantine_gpu(node, 3, "held by nobody");
  node.gpus[2].state = health::DeviceState::kLost;
  view_.set_node("n3", node);
  auto pod = test_pod("run", 3, "n3");
  pod.name_space = "team";
  const auto result = ask(pod);
  EXPECT_EQ(result.faults, (std::vector<std::string>{"GPU 1 is quarantined: XID 95: uncontained memory error",
                                                     "GPU 2 is lost: GPU has fallen off the bus"}));
  EXPECT_NE(explanation_text(result).find("\n  ! GPU 2 is lost: GPU has fallen off the bus\n"),
            std::string::npos)
      << explanation_text(result);
  EXPECT_EQ(nlohmann::json::parse(explanation_json(result))["faults"].size(), 2U);
  pod.node = "n1";
  pod.name = "one";
  EXPECT_TRUE(ask(pod).faults.empty());
}

TEST_F(ExplainTest, ShowsDevicesOfAClaim) {
  auto node = test_claim_node(4, 4);
  hold_units(node, "default/p", {1, 2});
  quarantine_gpu(node, 2, "XID 79: GPU has fallen off the bus");
  view_.set_node("n3", node);
  EXPECT_EQ(explanation_text(ask(test_claim_pod("p", "n3"))),
            "default/p requests resource claims; scored by topology (from the Pod)\n"
            "Bound to n3 with GPU 1, 2, linked by NV4\n"
            "  ! GPU 2 is quarantined: XID 79: GPU has fallen off the bus\n");
  EXPECT_EQ(explanation_text(ask(test_claim_pod("p"))),
            "default/p requests resource claims; scored by topology (from the Pod)\n")
      << "kube-scheduler alone knows";
  auto both = test_pod("p", 1, "n3");
  both.has_claims = true;
  EXPECT_EQ(ask(both).requests, "1 nvidia.com/gpu, resource claims");
}

TEST_F(ExplainTest, CountsNodesBeyondTheLimit) {
  for (int i = 0; i < 40; ++i) view_.set_node("m" + std::to_string(i), test_node(2, 2));
  const auto text = explanation_text(ask(test_pod("p", 6)), 5);
  EXPECT_NE(text.find("  and 37 more\n"), std::string::npos) << text;
}

TEST_F(ExplainTest, IgnoresPodsWithoutDevices) {
  PodRequest pod;
  pod.name = "web";
  EXPECT_EQ(ask(pod).requests, "no device");
  EXPECT_TRUE(ask(pod).nodes.empty());
}

}  // namespace
}  // namespace gpulet::scheduler
