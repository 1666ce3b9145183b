#include "cli/kubectl/cluster_doctor.h"

#include <gtest/gtest.h>

#include "cli/kubectl/test_cluster.h"

namespace gpulet::cli::kubectl {
namespace {

using doctor::Verdict;

PublishedNodeFacts published_node(const scheduler::GpuNode& node, std::uint64_t offered) {
  GpuCollection collection;
  collection.apply_object(gpu_node_object("n", node).dump());
  return {.offered = {{"nvidia.com/gpu", offered}}, .gpus = collection.gpus()};
}

// Two nodes in order.
ClusterDoctorFacts sound_cluster() {
  ClusterDoctorFacts facts;
  for (const std::string name : {"n1", "n2"}) {
    (*facts.nodes)[name] = {.ready = true, .has_gpus = true, .allocatable = {{"nvidia.com/gpu", 2}}};
    (**facts.published)[name] = published_node(scheduler::test_node(2, 2), 2);
    facts.agents->push_back({.name_space = "gpulet",
                             .name = "agent-" + name,
                             .node = name,
                             .image = "gpulet:1",
                             .ready = true,
                             .waiting = {}});
  }
  (*facts.nodes)["cpu"] = {.ready = true, .has_gpus = false, .allocatable = {}};
  facts.scheduler = SchedulerFacts{.installed = true, .answers = true, .error = {}};
  return facts;
}

doctor::CheckResult result_of(const ClusterDoctorFacts& facts, std::string_view id) {
  for (const auto& finding : check_cluster(facts)) {
    if (finding.id == id) return finding.result;
  }
  ADD_FAILURE() << "no check " << id;
  return {};
}

TEST(ClusterDoctor, FindsNothingInASoundCluster) {
  const auto findings = check_cluster(sound_cluster());
  EXPECT_EQ(findings.size(), 5U);
  for (const auto& finding : findings)
    EXPECT_EQ(finding.result.verdict, Verdict::kPass) << finding.id << ": " << finding.result.found;
  EXPECT_EQ(doctor::findings_summary(findings, "this cluster"),
            "No fault found that keeps a Pod from a GPU of this cluster.");
}

TEST(ClusterDoctor, NamesNodesWithoutAReadyAgent) {
  auto facts = sound_cluster();
  facts.agents->at(1).ready = false;
  facts.agents->at(1).waiting = "CrashLoopBackOff";
  (*facts.nodes)["n3"] = {.ready = false, .has_gpus = true, .allocatable = {}};
  const auto result = result_of(facts, "agents");
  EXPECT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.found, "2 of 3 nodes with GPUs have no agent that is ready");
  EXPECT_EQ(result.details, (std::vector<std::string>{"n2: gpulet/agent-n2 is not ready (CrashLoopBackOff)",
                                                      "n3: no agent; the node is not ready"}));
  // During an update an old Pod and a new one are on the node.
  facts = sound_cluster();
  auto old = facts.agents->at(0);
  old.ready = false;
  facts.agents->push_back(old);
  EXPECT_EQ(result_of(facts, "agents").verdict, Verdict::kPass);
  facts.agents->clear();
  EXPECT_EQ(result_of(facts, "agents").verdict, Verdict::kSkip) << "they may be services of the hosts";
}

TEST(ClusterDoctor, ComparesGpuNodesWithTheKubelets) {
  auto facts = sound_cluster();
  facts.nodes->at("n1").allocatable["nvidia.com/gpu"] = 1;
  (*facts.published)->erase("n2");
  (**facts.published)["gone"] = published_node(scheduler::test_node(1, 1), 1);
  facts.undecodable["n4"] = "cannot decode a GpuNode: n4: gpus is not a list";
  (*facts.nodes)["n4"] = {.ready = true, .has_gpus = true, .allocatable = {}};
  const auto result = result_of(facts, "gpu-nodes");
  EXPECT_EQ(result.verdict, Verdict::kWarn);
  EXPECT_EQ(result.details, (std::vector<std::string>{"cannot decode a GpuNode: n4: gpus is not a list",
                                                      "n1: nvidia.com/gpu: GpuNode 2, kubelet 1",
                                                      "n2: no GpuNode", "gone: a GpuNode without a Node"}));
  facts = sound_cluster();
  facts.nodes->at("n1").allocatable.clear();
  (**facts.published)["n1"].offered = {{"gpu.nvidia.com", 2}};
  EXPECT_EQ(result_of(facts, "gpu-nodes").verdict, Verdict::kPass) << "no kubelet counts claims";
  facts = sound_cluster();
  facts.nodes->at("n1").ready = false;
  facts.nodes->at("n1").allocatable.clear();
  EXPECT_EQ(result_of(facts, "gpu-nodes").verdict, Verdict::kPass) << "an unready kubelet counts nothing";
  facts.published = std::nullopt;
  EXPECT_EQ(result_of(facts, "gpu-nodes").verdict, Verdict::kSkip);
  EXPECT_EQ(result_of(facts, "gpu-health").verdict, Verdict::kSkip);
}

TEST(ClusterDoctor, WarnsOfDifferentVersions) {
  auto facts = sound_cluster();
  facts.agents->at(1).image = "gpulet:2";
  const auto result = result_of(facts, "versions");
  EXPECT_EQ(result.verdict, Verdict::kWarn);
  EXPECT_EQ(result.details, (std::vector<std::string>{"gpulet:1: n1", "gpulet:2: n2"}));
}

TEST(ClusterDoctor, JudgesTheScheduler) {
  auto facts = sound_cluster();
  facts.scheduler = SchedulerFacts{.installed = true, .answers = false, .error = "no endpoints"};
  EXPECT_EQ(result_of(facts, "scheduler").verdict, Verdict::kFail);
  EXPECT_EQ(result_of(facts, "scheduler").found, "the scheduler extender does not answer: no endpoints");
  facts.scheduler = SchedulerFacts();
  EXPECT_EQ(result_of(facts, "scheduler").verdict, Verdict::kSkip);
}

TEST(ClusterDoctor, JudgesTheHealthOfGpus) {
  auto facts = sound_cluster();
  (**facts.published)["n1"] = published_node(faulty_node(), 1);
  auto result = result_of(facts, "gpu-health");
  EXPECT_EQ(result.verdict, Verdict::kFail);
  EXPECT_EQ(result.found, "1 of 4 GPUs out of service");
  EXPECT_EQ(result.details,
            std::vector<std::string>{"n1: GPU 1 is quarantined: XID 79: GPU has fallen off the bus"});
  auto flagged = scheduler::test_node(2, 2);
  flagged.gpus[0].state = health::DeviceState::kDegraded;
  (**facts.published)["n1"] = published_node(flagged, 2);
  EXPECT_EQ(result_of(facts, "gpu-health").verdict, Verdict::kWarn);
}

TEST(ClusterDoctor, WhatCannotBeReadIsUnknown) {
  ClusterDoctorFacts facts;
  const auto denied = [] { return fail(Code::kPermissionDenied, "missing permission"); };
  facts.nodes = denied();
  facts.agents = denied();
  facts.published = denied();
  facts.scheduler = denied();
  for (const auto& finding : check_cluster(facts))
    EXPECT_EQ(finding.result.verdict, Verdict::kUnknown) << finding.id;
}

TEST(ClusterDoctor, LimitsTheDetails) {
  auto facts = sound_cluster();
  for (int i = 0; i < 100; ++i)
    (*facts.nodes)["m" + std::to_string(i)] = {.ready = true, .has_gpus = true, .allocatable = {}};
  EXPECT_EQ(result_of(facts, "agents").details.size(), 21U);
  EXPECT_EQ(result_of(facts, "agents").details.back(), "…");
}

TEST(ClusterDoctor, ParsesNodesAndPods) {
  const auto node = parse_cluster_node(
      R"({"metadata":{"name":"n1","labels":{"a":"b"}},"status":{"conditions":[{"type":"Ready","status":"True"}],)"
      R"("capacity":{"cpu":"8","nvidia.com/gpu":"4"},"allocatable":{"cpu":"7500m","nvidia.com/gpu":"3"}}})");
  EXPECT_EQ(node,
            (ClusterNodeFacts{.ready = true, .has_gpus = true, .allocatable = {{"nvidia.com/gpu", 3}}}));
  EXPECT_TRUE(parse_cluster_node(R"({"metadata":{"labels":{"nvidia.com/gpu.present":"true"}}})").has_gpus);
  for (const char* odd :
       {"", "[]", "{}", R"({"status":3})", R"({"metadata":{"labels":[]},"status":{"capacity":1}})"})
    EXPECT_EQ(parse_cluster_node(odd), ClusterNodeFacts()) << odd;
  const auto agent = parse_cluster_agent(
      R"({"metadata":{"name":"a","namespace":"gpulet"},"spec":{"nodeName":"n1","containers":[{"image":"g:1"}]},)"
      R"("status":{"phase":"Running","containerStatuses":[{"state":{"waiting":{"reason":"CrashLoopBackOff"}}}]}})");
  EXPECT_EQ(agent, (ClusterAgentFacts{.name_space = "gpulet",
                                      .name = "a",
                                      .node = "n1",
                                      .image = "g:1",
                                      .ready = false,
                                      .waiting = "CrashLoopBackOff"}));
  for (const char* odd : {"", "[]", "{}", R"({"spec":{"nodeName":"n1"},"status":{"phase":"Failed"}})"})
    EXPECT_FALSE(parse_cluster_agent(odd)) << odd;
}

}  // namespace
}  // namespace gpulet::cli::kubectl
