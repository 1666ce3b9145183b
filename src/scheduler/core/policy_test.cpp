#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/core/policy.h"
#include "scheduler/model/links.h"
#include "scheduler/model/test_random.h"

namespace gpulet::scheduler {
namespace {

using randomly::node_with_free;
using randomly::task_requesting;
using testing::HasSubstr;

std::shared_ptr<Policy> named_policy(std::string_view name, const std::vector<Task>& mix = {}) {
  auto made = make_simulator_policy(name, {Workload::from_tasks(mix)});
  EXPECT_TRUE(made) << (made ? "" : made.error().full_message());
  return made ? *made : nullptr;
}

double score_of(Policy& of, const NodeState& node, const Task& task) {
  const auto choice = choose_placement(of, node, task);
  EXPECT_TRUE(choice.has_value());
  return choice ? choice->score : 0;
}

GpuSet gpu_set(Policy& of, const NodeState& node, const Task& task) {
  const auto choice = choose_placement(of, node, task);
  EXPECT_TRUE(choice.has_value());
  return choice ? choice->gpus : 0;
}

TEST(Policies, AreFoundByName) {
  for (const std::string& name : policy_names()) {
    const auto made = make_policy(name, {});
    ASSERT_TRUE(made) << name;
    EXPECT_EQ((*made)->policy_name(), name);
  }
  EXPECT_EQ(named_policy("bestfit")->policy_name(), "binpack");
  EXPECT_EQ(named_policy("fgd")->policy_name(), "fragmentation");
}

TEST(Policies, UnknownNameListsPolicies) {
  const auto made = make_policy("sprad", {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(made.error().message(),
            "unknown policy 'sprad'; did you mean spread? Policies: default, binpack, spread, topology, "
            "fragmentation, load");
  const auto other = make_policy("", {});
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message(), HasSubstr("unknown policy ''; policies: default, "));
}

TEST(Policies, SimulatorPoliciesAreNotForPods) {
  EXPECT_FALSE(make_policy("random", {}));
  EXPECT_FALSE(make_policy("fgd", {}));
  EXPECT_THAT(simulator_policy_names(), testing::Contains("random"));
  EXPECT_THAT(policy_names(), testing::Not(testing::Contains("random")));
}

// Every result of a policy can be carried out, and there is one wherever the task fits.
TEST(Policies, PlaceExactlyWhereATaskFits) {
  randomly::Random random(1);
  const std::vector<Task> mix = randomly::random_tasks(random, 60);
  for (const std::string& name : simulator_policy_names()) {
    const auto chosen = named_policy(name, mix);
    std::size_t placements = 0;
    for (int at = 0; at < 4000; ++at) {
      NodeState node = randomly::random_node(random);
      const Task task = randomly::random_task(random);
      const auto choice = choose_placement(*chosen, node, task);
      ASSERT_EQ(choice.has_value(), node.fits(task)) << name;
      if (!choice) continue;
      ++placements;
      ASSERT_EQ(std::popcount(choice->gpus), task.gpus) << name;
      ASSERT_EQ(choice->gpus & ~node.gpus_with_free(task.gpu_milli), 0u) << name;
      const auto again = choose_placement(*chosen, node, task);
      ASSERT_EQ(again->score, choice->score) << name;
      ASSERT_EQ(again->gpus, choice->gpus) << name;
      const unsigned before = node.free_milli();
      node.allocate_task(task, choice->gpus);
      ASSERT_EQ(before - node.free_milli(), static_cast<unsigned>(task.total_milli())) << name;
    }
    EXPECT_GT(placements, 500u) << name;
  }
}

TEST(Policies, BinpackFillsAndSpreadDoesNot) {
  const NodeState full = node_with_free({1000, 500, 300, 0});
  const NodeState empty = node_with_free({1000, 1000, 1000, 1000});
  const auto binpack = named_policy("binpack");
  const auto spread = named_policy("spread");
  const Task task = task_requesting(1, 250);
  EXPECT_GT(score_of(*binpack, full, task), score_of(*binpack, empty, task));
  EXPECT_LT(score_of(*spread, full, task), score_of(*spread, empty, task));
  EXPECT_EQ(gpu_set(*binpack, full, task), 0b0100u);
  EXPECT_EQ(gpu_set(*spread, full, task), 0b0001u);
  EXPECT_EQ(gpu_set(*binpack, full, task_requesting(2, 250)), 0b0110u) << "two shares: the fullest two GPUs";
}

TEST(Policies, FragmentationKeepsWholeGpusWhole) {
  // Half of the tasks request a whole GPU: a share should not break a whole GPU.
  const auto fgd = named_policy("fragmentation", {task_requesting(1, 1000), task_requesting(1, 400)});
  const NodeState node = node_with_free({1000, 400});
  const Task task = task_requesting(1, 400);
  EXPECT_EQ(gpu_set(*fgd, node, task), 0b10u);
  // Of the 1000 and 400 free, 400 are useless to whole-GPU tasks; afterwards none are: half of the mix gains
  // 400.
  EXPECT_DOUBLE_EQ(score_of(*fgd, node, task), 200);
  EXPECT_LT(score_of(*fgd, node_with_free({1000, 1000}), task), 0);
}

TEST(Policies, TopologyPrefersLinkedSets) {
  const auto topology = named_policy("topology");
  NodeState linked = node_with_free({1000, 1000, 1000, 1000, 0, 0, 0, 0});
  linked.links = randomly::two_quads();
  NodeState torn = node_with_free({1000, 1000, 0, 0, 1000, 1000, 0, 0});
  torn.links = randomly::two_quads();
  const NodeState unknown = node_with_free({1000, 1000, 1000, 1000, 0, 0, 0, 0});
  EXPECT_GT(score_of(*topology, linked, task_requesting(4, 1000)),
            score_of(*topology, torn, task_requesting(4, 1000)));
  EXPECT_GT(score_of(*topology, torn, task_requesting(2, 1000)),
            score_of(*topology, linked, task_requesting(2, 1000)))
      << "a pair leaves the quad alone";
  EXPECT_GT(score_of(*topology, linked, task_requesting(4, 1000)),
            score_of(*topology, unknown, task_requesting(4, 1000)));
  EXPECT_LT(score_of(*topology, linked, task_requesting(1, 1000)),
            score_of(*topology, unknown, task_requesting(1, 1000)))
      << "one GPU has no use for links";
}

TEST(Policies, LinkedSetsMatchThePlacement) {
  for (const char* name : {"topology", "default"}) {
    const auto chosen = named_policy(name);
    NodeState node = node_with_free({1000, 0, 1000, 0, 1000, 1000, 1000, 1000});
    node.links = randomly::two_quads();
    EXPECT_EQ(gpu_set(*chosen, node, task_requesting(4, 1000)), 0b11110000u) << name;
    EXPECT_EQ(gpu_set(*chosen, node, task_requesting(2, 1000)), 0b00000101u)
        << name << ": the torn half first";
  }
}

NodeState hot(NodeState node, GpuSet set, unsigned percent) {
  node.add_load(set, flat_curve(percent, 0));
  return node;
}

TEST(Policies, LoadAndDefaultAvoidHotGpusAndMachines) {
  for (const char* name : {"load", "default"}) {
    const auto chosen = named_policy(name);
    const Task share = task_requesting(1, 300);
    const NodeState node = node_with_free({500, 500, 500});
    EXPECT_EQ(gpu_set(*chosen, hot(node, 0b101, 70), share), 0b010u) << name;
    EXPECT_LT(score_of(*chosen, hot(node, 0b111, 70), share), score_of(*chosen, node, share)) << name;
    const NodeState half = node_with_free({0, 1000});
    EXPECT_LT(score_of(*chosen, hot(half, 0b01, 90), task_requesting(1, 1000)),
              score_of(*chosen, half, task_requesting(1, 1000)))
        << name << ": a free GPU on a busy machine";
  }
}

TEST(Policies, LoadKeepsPeaksOfTheSameHourApart) {
  const auto chosen = named_policy("load");
  Task day = task_requesting(1, 300);
  LoadCurve by_day;
  std::fill_n(by_day.busy.begin() + 2, 4, std::uint8_t{60});
  LoadCurve by_night;
  std::fill_n(by_night.busy.begin(), 2, std::uint8_t{60});
  std::fill_n(by_night.busy.begin() + 6, 2, std::uint8_t{60});
  day.load = by_day;
  NodeState node = node_with_free({500, 500});
  node.load[0] = by_day;
  node.load[1] = by_night;
  EXPECT_EQ(gpu_set(*chosen, node, day), 0b10u);
  EXPECT_GT(gpu_load_cost(node, by_day, 0), 3 * gpu_load_cost(node, by_day, 1));
}

TEST(Policies, MissingMemoryCostsMoreThanLoad) {
  NodeState node = node_with_free({500, 500});
  node.load[0] = flat_curve(0, 80);
  node.load[1] = flat_curve(60, 10);
  Task task = task_requesting(1, 300);
  task.load = flat_curve(10, 40);
  EXPECT_EQ(gpu_set(*named_policy("load"), node, task), 0b10u);
}

TEST(Policies, LoadIsIgnoredWithoutGpus) {
  Task processors;
  processors.cpu_milli = 1000;
  const NodeState node = node_with_free({1000});
  for (const char* name : {"load", "default"}) {
    const auto chosen = named_policy(name);
    EXPECT_EQ(score_of(*chosen, hot(node, 1, 90), processors), score_of(*chosen, node, processors));
  }
}

}  // namespace
}  // namespace gpulet::scheduler
