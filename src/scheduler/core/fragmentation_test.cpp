#include "scheduler/core/fragmentation.h"

#include <gtest/gtest.h>

#include "scheduler/model/test_random.h"

namespace gpulet::scheduler {
namespace {

// Straight from the definitions: GPU by GPU, and by placing one task after the other.
Fragmentation by_definition(const NodeState& node, const Workload& workload) {
  Fragmentation waste;
  for (const TaskClass& entry : workload.classes()) {
    const Task& task = entry.task;
    double unusable = 0;
    for (const std::uint16_t share : node.free_shares()) {
      const bool usable = node.fits(task) && (task.gpus == 0 || share >= task.gpu_milli);
      if (!usable) unusable += share;
    }
    waste.fragmented += entry.weight * unusable;
    if (task.gpus == 0) continue;

    // As many tasks as the GPUs hold, each share on the emptiest GPU; CPU and memory in fractions.
    double times = 0;
    if (node.fits(task)) {
      unsigned shares = 0;
      for (const std::uint16_t share : node.free_shares()) shares += share / task.gpu_milli;
      times = shares / task.gpus;
      if (node.cpu_milli != kUncounted && task.cpu_milli > 0) {
        times = std::min(times, static_cast<double>(node.cpu_milli) / static_cast<double>(task.cpu_milli));
      }
      if (node.memory_mib != kUncounted && task.memory_mib > 0) {
        times = std::min(times, static_cast<double>(node.memory_mib) / static_cast<double>(task.memory_mib));
      }
    }
    const double filled = times * static_cast<double>(task.total_milli());
    waste.unhosted += entry.weight * std::max(0.0, node.free_milli() - filled);
  }
  return waste;
}

Workload mix(const std::vector<Task>& tasks) { return Workload::from_tasks(tasks); }

TEST(Fragmentation, IsWhatOneTaskCannotUse) {
  const NodeState node = randomly::node_with_free({1000, 600, 200});
  const auto whole =
      FragmentationEstimator(mix({randomly::task_requesting(1, 1000)})).estimate_uncached(node);
  EXPECT_DOUBLE_EQ(whole.fragmented, 800);
  EXPECT_DOUBLE_EQ(whole.unhosted, 800);
  const auto half = FragmentationEstimator(mix({randomly::task_requesting(1, 500)})).estimate_uncached(node);
  EXPECT_DOUBLE_EQ(half.fragmented, 200);
  EXPECT_DOUBLE_EQ(half.unhosted, 300);  // three halves
  const auto pair = FragmentationEstimator(mix({randomly::task_requesting(2, 1000)})).estimate_uncached(node);
  EXPECT_DOUBLE_EQ(pair.fragmented, 1800) << "there is no second whole GPU";
}

TEST(Fragmentation, CountsTasksWithoutGpusWhereTheyDoNotFit) {
  Task processors;
  processors.cpu_milli = 4000;
  NodeState node = randomly::node_with_free({1000});
  node.cpu_milli = 4000;
  EXPECT_DOUBLE_EQ(FragmentationEstimator(mix({processors})).estimate_uncached(node).fragmented, 0);
  node.cpu_milli = 3999;
  EXPECT_DOUBLE_EQ(FragmentationEstimator(mix({processors})).estimate_uncached(node).fragmented, 1000);
  EXPECT_DOUBLE_EQ(FragmentationEstimator(mix({processors})).estimate_uncached(node).unhosted, 0);
}

TEST(Fragmentation, CountsGpusLeftUnusedByCpus) {
  Task task = randomly::task_requesting(1, 1000);
  task.cpu_milli = 8000;
  NodeState node = randomly::node_with_free({1000, 1000, 1000, 1000});
  node.cpu_milli = 12000;
  const Fragmentation waste = FragmentationEstimator(mix({task})).estimate_uncached(node);
  EXPECT_DOUBLE_EQ(waste.fragmented, 0);
  EXPECT_DOUBLE_EQ(waste.unhosted, 2500);
}

TEST(Fragmentation, AgreesWithItsDefinitionAndTheCache) {
  randomly::Random random(7);
  for (int round = 0; round < 40; ++round) {
    const Workload workload = mix(randomly::random_tasks(random, 1 + randomly::random_below(random, 40)));
    FragmentationEstimator meter(workload);
    for (int at = 0; at < 100; ++at) {
      const NodeState node = randomly::random_node(random);
      const Fragmentation expected = by_definition(node, workload);
      const Fragmentation measured = meter.estimate_uncached(node);
      ASSERT_NEAR(measured.fragmented, expected.fragmented, 1e-6);
      ASSERT_NEAR(measured.unhosted, expected.unhosted, 1e-6);
      for (int again = 0; again < 2; ++again) {
        ASSERT_EQ(meter.estimate(node).fragmented, measured.fragmented);
        ASSERT_EQ(meter.estimate(node).unhosted, measured.unhosted);
      }
    }
  }
}

TEST(Fragmentation, DoesNotDependOnTheOrderOfGpus) {
  randomly::Random random(8);
  FragmentationEstimator meter(mix(randomly::random_tasks(random, 30)));
  for (int at = 0; at < 200; ++at) {
    NodeState node = randomly::random_node(random);
    const Fragmentation before = meter.estimate_uncached(node);
    std::shuffle(node.free.begin(), node.free.begin() + node.gpus, random);
    ASSERT_EQ(meter.estimate_uncached(node).unhosted, before.unhosted);
    ASSERT_EQ(meter.estimate(node).fragmented, before.fragmented);
  }
}

}  // namespace
}  // namespace gpulet::scheduler
