#include "scheduler/waste.h"

#include <gtest/gtest.h>

#include "scheduler/test_random.h"

namespace gpulet::scheduler {
namespace {

// By the words of the definitions: GPU by GPU, and by placing one task after the other.
Waste by_definition(const NodeState& node, const Workload& workload) {
  Waste waste;
  for (const TaskClass& entry : workload.classes()) {
    const Task& task = entry.task;
    double unusable = 0;
    for (const std::uint16_t share : node.shares()) {
      const bool usable = node.fits(task) && (task.gpus == 0 || share >= task.gpu_milli);
      if (!usable) unusable += share;
    }
    waste.fragmentation += entry.weight * unusable;
    if (task.gpus == 0) continue;

    // As many tasks as the GPUs hold, each of its shares on the emptiest GPU; CPU and memory in fractions.
    double times = 0;
    if (node.fits(task)) {
      unsigned shares = 0;
      for (const std::uint16_t share : node.shares()) shares += share / task.gpu_milli;
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

Workload mix(const std::vector<Task>& tasks) { return Workload::of(tasks); }

TEST(Waste, IsWhatOneTaskCannotUse) {
  const NodeState node = randomly::with_free({1000, 600, 200});
  const auto whole = WasteMeter(mix({randomly::asking(1, 1000)})).measure(node);
  EXPECT_DOUBLE_EQ(whole.fragmentation, 800);
  EXPECT_DOUBLE_EQ(whole.unhosted, 800);
  const auto half = WasteMeter(mix({randomly::asking(1, 500)})).measure(node);
  EXPECT_DOUBLE_EQ(half.fragmentation, 200);
  EXPECT_DOUBLE_EQ(half.unhosted, 300);  // three halves
  const auto pair = WasteMeter(mix({randomly::asking(2, 1000)})).measure(node);
  EXPECT_DOUBLE_EQ(pair.fragmentation, 1800) << "there is no second whole GPU";
}

TEST(Waste, OfATaskWithoutGpusCountsWhereItDoesNotFit) {
  Task processors;
  processors.cpu_milli = 4000;
  NodeState node = randomly::with_free({1000});
  node.cpu_milli = 4000;
  EXPECT_DOUBLE_EQ(WasteMeter(mix({processors})).measure(node).fragmentation, 0);
  node.cpu_milli = 3999;
  EXPECT_DOUBLE_EQ(WasteMeter(mix({processors})).measure(node).fragmentation, 1000);
  EXPECT_DOUBLE_EQ(WasteMeter(mix({processors})).measure(node).unhosted, 0);
}

TEST(Waste, CountsGpusThatTheProcessorsLeaveUnused) {
  Task task = randomly::asking(1, 1000);
  task.cpu_milli = 8000;
  NodeState node = randomly::with_free({1000, 1000, 1000, 1000});
  node.cpu_milli = 12000;
  const Waste waste = WasteMeter(mix({task})).measure(node);
  EXPECT_DOUBLE_EQ(waste.fragmentation, 0);
  EXPECT_DOUBLE_EQ(waste.unhosted, 2500);
}

TEST(Waste, AgreesWithItsDefinitionAndWithWhatIsRemembered) {
  randomly::Random random(7);
  for (int round = 0; round < 40; ++round) {
    const Workload workload = mix(randomly::tasks(random, 1 + randomly::below(random, 40)));
    WasteMeter meter(workload);
    for (int at = 0; at < 100; ++at) {
      const NodeState node = randomly::node(random);
      const Waste expected = by_definition(node, workload);
      const Waste measured = meter.measure(node);
      ASSERT_NEAR(measured.fragmentation, expected.fragmentation, 1e-6);
      ASSERT_NEAR(measured.unhosted, expected.unhosted, 1e-6);
      for (int again = 0; again < 2; ++again) {
        ASSERT_EQ(meter.of(node).fragmentation, measured.fragmentation);
        ASSERT_EQ(meter.of(node).unhosted, measured.unhosted);
      }
    }
  }
}

TEST(Waste, DoesNotDependOnTheOrderOfGpus) {
  randomly::Random random(8);
  WasteMeter meter(mix(randomly::tasks(random, 30)));
  for (int at = 0; at < 200; ++at) {
    NodeState node = randomly::node(random);
    const Waste before = meter.measure(node);
    std::shuffle(node.free.begin(), node.free.begin() + node.gpus, random);
    ASSERT_EQ(meter.measure(node).unhosted, before.unhosted);
    ASSERT_EQ(meter.of(node).fragmentation, before.fragmentation);
  }
}

}  // namespace
}  // namespace gpulet::scheduler
