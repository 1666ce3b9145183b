#include "scheduler/core/mig_demand_planner.h"

#include <gtest/gtest.h>

#include <random>

#include <nlohmann/json.hpp>

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

const ResourceName kThirdSlices("nvidia.com/mig-3g.40gb"), kSmallSlice("nvidia.com/mig-1g.10gb");

WaitingPod waiting_pod(const std::string& name, const ResourceName& resource = kThirdSlices,
                       unsigned count = 1) {
  return {"team/" + name, "uid-" + name, resource, count, ""};
}
MigSupply supply_of(unsigned offered, unsigned free = 0, const ResourceName& resource = kThirdSlices) {
  return {{{resource, free}}, {{{resource, offered, "GPU 0: 7 × 1g.10gb in use"}}}, {}};
}
std::vector<std::string> pods_at(const MigDemandPlan& plan, const std::string& node) {
  const auto found = plan.requests.find(node);
  return found == plan.requests.end() ? std::vector<std::string>() : found->second.at(0).pods;
}

TEST(MigDemandPlanner, AsksTheNodeThatCanCut) {
  const std::vector pods = {waiting_pod("a"), waiting_pod("b")};
  const auto plan = plan_mig_demand(pods, {{"n1", supply_of(0)}, {"n2", supply_of(2)}, {"n3", {}}}, {});
  ASSERT_EQ(plan.requests.size(), 1u);
  EXPECT_EQ(plan.requests.at("n2"),
            (std::vector<MigDemand::Request>{{kThirdSlices, 2, {"team/a", "team/b"}}}));
  EXPECT_EQ(plan.node_of.at("team/b"), "n2");
}

TEST(MigDemandPlanner, SpreadsOverNodes) {
  const std::vector pods = {waiting_pod("a"), waiting_pod("b"), waiting_pod("c")};
  const auto plan = plan_mig_demand(pods, {{"n1", supply_of(2)}, {"n2", supply_of(2)}}, {});
  EXPECT_EQ(pods_at(plan, "n1"), (std::vector<std::string>{"team/a", "team/c"}));
  EXPECT_EQ(pods_at(plan, "n2"), std::vector<std::string>{"team/b"});
}

TEST(MigDemandPlanner, AsksNobodyWhileThereIsRoom) {
  const std::vector pods = {waiting_pod("a"), waiting_pod("b")};
  const auto plan = plan_mig_demand(pods, {{"n1", supply_of(0, 1)}, {"n2", supply_of(1)}}, {});
  EXPECT_EQ(plan.requests.size(), 1u);
  EXPECT_EQ(pods_at(plan, "n2"), std::vector<std::string>{"team/b"}) << "the room is for one";
}

TEST(MigDemandPlanner, APodStaysWithItsNode) {
  std::map<std::string, MigSupply> nodes = {{"n1", supply_of(1)}, {"n2", supply_of(1)}};
  nodes.at("n2").recorded = {"1", {{kThirdSlices, 1, {"team/a"}}}};
  const std::vector pods = {waiting_pod("a")};
  EXPECT_EQ(plan_mig_demand(pods, nodes, {}).node_of.at("team/a"), "n2");
  nodes.at("n2").free[kThirdSlices] = 1;
  EXPECT_EQ(plan_mig_demand(pods, nodes, {}).node_of.at("team/a"), "n2") << "cut, and not bound yet";
  nodes.at("n2") = supply_of(0);
  nodes.at("n2").recorded = {"1", {{kThirdSlices, 1, {"team/a"}}}};
  EXPECT_EQ(plan_mig_demand(pods, nodes, {}).node_of.at("team/a"), "n1") << "others took it";
}

TEST(MigDemandPlanner, SaysWhyNot) {
  const std::vector pods = {waiting_pod("a", kThirdSlices, 2),
                            waiting_pod("b", ResourceName("example.com/fpga"))};
  const auto plan = plan_mig_demand(pods, {{"n1", supply_of(1)}, {"n2", supply_of(2)}}, {{"team/a", "n2"}});
  EXPECT_TRUE(plan.requests.empty());
  ASSERT_EQ(plan.unmet.size(), 1u) << "nobody cuts what b wants";
  EXPECT_EQ(plan.unmet.at("team/a"), "n1: GPU 0: 7 × 1g.10gb in use; n2: the Pod was not scheduled there");
}

// At random: never more than a node offers, no Pod twice, and none left out that fits.
TEST(MigDemandPlanner, KeepsItsPromises) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t limit) { return static_cast<unsigned>(random() % limit); };
  for (int round = 0; round < 300; ++round) {
    std::map<std::string, MigSupply> nodes;
    std::vector<WaitingPod> pods;
    for (unsigned i = below(5); i > 0; --i) {
      const unsigned free = below(2);
      nodes["n" + std::to_string(i)] =
          supply_of(free + below(4), free, below(2) == 0 ? kThirdSlices : kSmallSlice);
    }
    for (unsigned i = below(8); i > 0; --i)
      pods.push_back(
          waiting_pod(std::to_string(i), below(2) == 0 ? kThirdSlices : kSmallSlice, 1 + below(3)));
    for (auto& [name, supply] : nodes) {
      if (!pods.empty() && below(3) == 0) supply.recorded = {"1", {{pods[0].resource, 1, {pods[0].pod}}}};
    }
    const auto plan = plan_mig_demand(pods, nodes, {});
    std::set<std::string> asked;
    for (const auto& [name, requests] : plan.requests) {
      for (const auto& request : requests) {
        ASSERT_LE(request.count, nodes.at(name).offer.find(request.resource)->count);
        for (const auto& pod : request.pods) ASSERT_TRUE(asked.insert(pod).second);
      }
    }
    for (const auto& pod : pods) {
      if (asked.contains(pod.pod) || !plan.unmet.contains(pod.pod)) continue;
      for (const auto& [name, supply] : nodes) {
        const auto* offer = supply.offer.find(pod.resource);
        if (offer == nullptr) continue;
        unsigned taken = 0;
        if (const auto found = plan.requests.find(name); found != plan.requests.end()) {
          for (const auto& request : found->second)
            taken += request.resource == pod.resource ? request.count : 0;
        }
        for (const auto& other : pods) {
          if (other.resource == pod.resource && !asked.contains(other.pod) && !plan.unmet.contains(other.pod))
            taken += other.count;  // has room somewhere
        }
        ASSERT_GT(taken + pod.count, offer->count) << name;
      }
    }
    // The plan, recorded, is its own continuation.
    for (auto& [name, supply] : nodes) {
      const auto found = plan.requests.find(name);
      supply.recorded = {"2",
                         found == plan.requests.end() ? std::vector<MigDemand::Request>() : found->second};
    }
    for (const auto& [pod, node] : plan_mig_demand(pods, nodes, {}).node_of) {
      if (!asked.contains(pod)) continue;
      ASSERT_EQ(node, plan.node_of.at(pod));
    }
  }
}

json pending_pod() {
  return json::parse(R"({"metadata": {"namespace": "team", "name": "a", "uid": "u1",
                  "creationTimestamp": "2026-01-31T12:00:00Z"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-3g.40gb": "1", "cpu": "1"}}},
                            {"name": "d", "resources": {"limits": {"nvidia.com/mig-3g.40gb": "2"}}}],
             "initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/mig-3g.40gb": "2"}}}]},
    "status": {"phase": "Pending", "conditions": [
      {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
       "message": "0/3 nodes are available: 3 Insufficient nvidia.com/mig-3g.40gb. no new claims"}]}})");
}

TEST(MigDemandPlanner, ReadsThePodsThatWait) {
  EXPECT_EQ(parse_waiting_pod(pending_pod().dump()),
            (WaitingPod{"team/a", "u1", kThirdSlices, 3, "2026-01-31T12:00:00Z"}));
  const auto with = [](const char* path, json value) {
    auto pod = pending_pod();
    pod[json::json_pointer(path)] = std::move(value);
    return parse_waiting_pod(pod.dump()).has_value();
  };
  EXPECT_FALSE(with("/spec/nodeName", "n1"));
  EXPECT_FALSE(with("/status/nominatedNodeName", "n1"));
  EXPECT_FALSE(with("/metadata/deletionTimestamp", "2026-01-31T12:00:00Z"));
  EXPECT_FALSE(with("/status/conditions/0/reason", "SchedulingGated"));
  for (const auto* message :
       {"", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.",
        "0/3 nodes are available: 3 Insufficient cpu.",
        "0/3 nodes are available: 3 Insufficient nvidia.com/mig-3g.40gb.me."})
    EXPECT_FALSE(with("/status/conditions/0/message", message)) << message;
  for (const auto* message :
       {"3 Insufficient nvidia.com/mig-3g.40gb", "3 Insufficient nvidia.com/mig-3g.40gb.",
        "1 Insufficient nvidia.com/mig-3g.40gb.me, 2 Insufficient nvidia.com/mig-3g.40gb, 1 Insufficient "
        "cpu."})
    EXPECT_TRUE(with("/status/conditions/0/message", message)) << message;
  EXPECT_FALSE(with("/status/conditions", json::array()));
  EXPECT_FALSE(with("/status/conditions", "none"));
  EXPECT_FALSE(with("/spec/containers/0/resources/limits", {{"nvidia.com/gpu", "1"}})) << "of two resources";
  EXPECT_TRUE(with("/spec/priority", 5));
  EXPECT_FALSE(parse_waiting_pod("{").has_value());
}

}  // namespace
}  // namespace gpulet::scheduler
