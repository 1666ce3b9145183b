#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/links.h"
#include "scheduler/policy.h"
#include "scheduler/test_random.h"

namespace gpulet::scheduler {
namespace {

using randomly::asking;
using randomly::with_free;
using testing::HasSubstr;

std::shared_ptr<Policy> policy(std::string_view name, const std::vector<Task>& mix = {}) {
  auto made = simulator_policy_named(name, {Workload::of(mix)});
  EXPECT_TRUE(made) << (made ? "" : made.error().text());
  return made ? *made : nullptr;
}

double score(Policy& of, const NodeState& node, const Task& task) {
  const auto choice = choose(of, node, task);
  EXPECT_TRUE(choice.has_value());
  return choice ? choice->score : 0;
}

GpuSet gpus(Policy& of, const NodeState& node, const Task& task) {
  const auto choice = choose(of, node, task);
  EXPECT_TRUE(choice.has_value());
  return choice ? choice->gpus : 0;
}

TEST(Policies, AreFoundByName) {
  for (const std::string& name : policy_names()) {
    const auto made = policy_named(name, {});
    ASSERT_TRUE(made) << name;
    EXPECT_EQ((*made)->name(), name);
  }
  EXPECT_EQ(policy("bestfit")->name(), "binpack");
  EXPECT_EQ(policy("fgd")->name(), "fragmentation");
}

TEST(Policies, AnUnknownNameSaysWhatThereIs) {
  const auto made = policy_named("sprad", {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(made.error().message(),
            "no policy 'sprad'; did you mean spread? There are default, binpack, spread, topology, "
            "fragmentation, load");
  const auto other = policy_named("", {});
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message(), HasSubstr("no policy ''; there are default, "));
}

TEST(Policies, ThatOnlyASimulatorMayUseAreNotForPods) {
  EXPECT_FALSE(policy_named("random", {}));
  EXPECT_FALSE(policy_named("fgd", {}));
  EXPECT_THAT(simulator_policy_names(), testing::Contains("random"));
  EXPECT_THAT(policy_names(), testing::Not(testing::Contains("random")));
}

// Whatever a policy answers can be carried out, and it answers wherever the task fits.
TEST(Policies, AnswerWhereverATaskFitsAndOnlyThere) {
  randomly::Random random(1);
  const std::vector<Task> mix = randomly::tasks(random, 60);
  for (const std::string& name : simulator_policy_names()) {
    const auto chosen = policy(name, mix);
    std::size_t answers = 0;
    for (int at = 0; at < 4000; ++at) {
      NodeState node = randomly::node(random);
      const Task task = randomly::task(random);
      const auto choice = choose(*chosen, node, task);
      ASSERT_EQ(choice.has_value(), node.fits(task)) << name;
      if (!choice) continue;
      ++answers;
      ASSERT_EQ(std::popcount(choice->gpus), task.gpus) << name;
      ASSERT_EQ(choice->gpus & ~node.with_free(task.gpu_milli), 0u) << name;
      const auto again = choose(*chosen, node, task);
      ASSERT_EQ(again->score, choice->score) << name;
      ASSERT_EQ(again->gpus, choice->gpus) << name;
      const unsigned before = node.free_milli();
      node.take(task, choice->gpus);
      ASSERT_EQ(before - node.free_milli(), static_cast<unsigned>(task.total_milli())) << name;
    }
    EXPECT_GT(answers, 500u) << name;
  }
}

TEST(Policies, BinpackFillsAndSpreadDoesNot) {
  const NodeState full = with_free({1000, 500, 300, 0});
  const NodeState empty = with_free({1000, 1000, 1000, 1000});
  const auto binpack = policy("binpack");
  const auto spread = policy("spread");
  const Task task = asking(1, 250);
  EXPECT_GT(score(*binpack, full, task), score(*binpack, empty, task));
  EXPECT_LT(score(*spread, full, task), score(*spread, empty, task));
  EXPECT_EQ(gpus(*binpack, full, task), 0b0100u);
  EXPECT_EQ(gpus(*spread, full, task), 0b0001u);
  EXPECT_EQ(gpus(*binpack, full, asking(2, 250)), 0b0110u) << "two shares: the fullest two GPUs";
}

TEST(Policies, FragmentationKeepsWholeGpusWhole) {
  // Half of the tasks ask for a whole GPU: a share should go where no whole GPU is broken.
  const auto fgd = policy("fragmentation", {asking(1, 1000), asking(1, 400)});
  const NodeState node = with_free({1000, 400});
  const Task task = asking(1, 400);
  EXPECT_EQ(gpus(*fgd, node, task), 0b10u);
  // Of the 1000 and 400 free, 400 are useless to whole-GPU tasks; then none are: half of the mix gains 400.
  EXPECT_DOUBLE_EQ(score(*fgd, node, task), 200);
  EXPECT_LT(score(*fgd, with_free({1000, 1000}), task), 0);
}

TEST(Policies, TopologyGivesLinkedSetsToThoseThatAskForMany) {
  const auto topology = policy("topology");
  NodeState linked = with_free({1000, 1000, 1000, 1000, 0, 0, 0, 0});
  linked.links = randomly::two_quads();
  NodeState torn = with_free({1000, 1000, 0, 0, 1000, 1000, 0, 0});
  torn.links = randomly::two_quads();
  const NodeState unknown = with_free({1000, 1000, 1000, 1000, 0, 0, 0, 0});
  EXPECT_GT(score(*topology, linked, asking(4, 1000)), score(*topology, torn, asking(4, 1000)));
  EXPECT_GT(score(*topology, torn, asking(2, 1000)), score(*topology, linked, asking(2, 1000)))
      << "a pair leaves the quad alone";
  EXPECT_GT(score(*topology, linked, asking(4, 1000)), score(*topology, unknown, asking(4, 1000)));
  EXPECT_LT(score(*topology, linked, asking(1, 1000)), score(*topology, unknown, asking(1, 1000)))
      << "one GPU has no use for links";
}

TEST(Policies, LinkedSetsAreThoseOfTheNodesOwnPlacement) {
  for (const char* name : {"topology", "default"}) {
    const auto chosen = policy(name);
    NodeState node = with_free({1000, 0, 1000, 0, 1000, 1000, 1000, 1000});
    node.links = randomly::two_quads();
    EXPECT_EQ(gpus(*chosen, node, asking(4, 1000)), 0b11110000u) << name;
    EXPECT_EQ(gpus(*chosen, node, asking(2, 1000)), 0b00000101u) << name << ": the torn half first";
  }
}

NodeState hot(NodeState node, GpuSet set, unsigned percent) {
  node.add_load(set, flat_curve(percent, 0));
  return node;
}

TEST(Policies, LoadAndDefaultAvoidHotGpusAndMachines) {
  for (const char* name : {"load", "default"}) {
    const auto chosen = policy(name);
    const Task share = asking(1, 300);
    const NodeState node = with_free({500, 500, 500});
    EXPECT_EQ(gpus(*chosen, hot(node, 0b101, 70), share), 0b010u) << name;
    EXPECT_LT(score(*chosen, hot(node, 0b111, 70), share), score(*chosen, node, share)) << name;
    const NodeState half = with_free({0, 1000});
    EXPECT_LT(score(*chosen, hot(half, 0b01, 90), asking(1, 1000)), score(*chosen, half, asking(1, 1000)))
        << name << ": a free GPU on a busy machine";
  }
}

TEST(Policies, LoadKeepsPeaksOfTheSameHourApart) {
  const auto chosen = policy("load");
  Task day = asking(1, 300);
  LoadCurve by_day;
  std::fill_n(by_day.busy.begin() + 2, 4, std::uint8_t{60});
  LoadCurve by_night;
  std::fill_n(by_night.busy.begin(), 2, std::uint8_t{60});
  std::fill_n(by_night.busy.begin() + 6, 2, std::uint8_t{60});
  day.load = by_day;
  NodeState node = with_free({500, 500});
  node.load[0] = by_day;
  node.load[1] = by_night;
  EXPECT_EQ(gpus(*chosen, node, day), 0b10u);
  EXPECT_GT(load_cost(node, by_day, 0), 3 * load_cost(node, by_day, 1));
}

TEST(Policies, MemoryThatWouldNotDoCostsMoreThanAnyLoad) {
  NodeState node = with_free({500, 500});
  node.load[0] = flat_curve(0, 80);
  node.load[1] = flat_curve(60, 10);
  Task task = asking(1, 300);
  task.load = flat_curve(10, 40);
  EXPECT_EQ(gpus(*policy("load"), node, task), 0b10u);
}

TEST(Policies, LoadPlaysNoPartWithoutGpus) {
  Task processors;
  processors.cpu_milli = 1000;
  const NodeState node = with_free({1000});
  for (const char* name : {"load", "default"}) {
    const auto chosen = policy(name);
    EXPECT_EQ(score(*chosen, hot(node, 1, 90), processors), score(*chosen, node, processors));
  }
}

}  // namespace
}  // namespace gpulet::scheduler
