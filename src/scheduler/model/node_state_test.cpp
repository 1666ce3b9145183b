// Tests of the small value types: models, mixes, nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/model/test_random.h"

namespace gpulet::scheduler {
namespace {

using testing::HasSubstr;

TEST(LoadCurve, RoundTrips) {
  randomly::Random random(3);
  for (int at = 0; at < 200; ++at) {
    const LoadCurve curve = randomly::random_curve(random);
    const auto read = decode_curve(encode_curve(curve));
    ASSERT_TRUE(read);
    EXPECT_EQ(*read, curve);
  }
  EXPECT_EQ(encode_curve(flat_curve(16, 255)), "1010101010101010ff");
}

TEST(LoadCurve, RejectsInvalidText) {
  for (const std::string text : {"", "10", "1010101010101010f", "1010101010101010ff0", "1010101010101010FF",
                                 "1010101010101010g0", "-010101010101010ff0"}) {
    const auto read = decode_curve(text);
    ASSERT_FALSE(read) << text;
    EXPECT_THAT(read.error().message(), HasSubstr("18 lower-case hexadecimal digits"));
  }
}

TEST(LoadCurve, SumsSaturate) {
  EXPECT_EQ(flat_curve(60, 70) + flat_curve(50, 5), flat_curve(110, 75));
  EXPECT_EQ(flat_curve(200, 0) + flat_curve(200, 0), flat_curve(255, 0));
}

TEST(Models, NumberInOrderOfAppearance) {
  Models models;
  EXPECT_EQ(*models.model_id("T4"), 0);
  EXPECT_EQ(*models.model_id("A10"), 1);
  EXPECT_EQ(*models.model_id("T4"), 0);
  const auto set = models.parse_model_set("A10|V100M16|A10");
  ASSERT_TRUE(set);
  EXPECT_TRUE(set->accepts(1));
  EXPECT_TRUE(set->accepts(2));
  EXPECT_FALSE(set->accepts(0));
  EXPECT_TRUE(models.parse_model_set("")->accepts(0));
  EXPECT_FALSE(models.parse_model_set("A10||T4"));
}

TEST(Models, AreAtMost64) {
  Models models;
  for (std::size_t at = 0; at < kMaxModels; ++at) ASSERT_TRUE(models.model_id("model-" + std::to_string(at)));
  const auto more = models.model_id("one too many");
  ASSERT_FALSE(more);
  EXPECT_THAT(more.error().message(), HasSubstr("'one too many'"));
  EXPECT_TRUE(models.model_id("model-3"));
}

TEST(Workload, WeighsEqualTasksTogether) {
  std::vector<Task> tasks = {randomly::task_requesting(1, 500), randomly::task_requesting(1, 1000),
                             randomly::task_requesting(1, 500)};
  tasks[2].load = flat_curve(1, 1);
  const Workload mix = Workload::from_tasks(tasks);
  ASSERT_EQ(mix.classes().size(), 2u);
  EXPECT_DOUBLE_EQ(mix.classes()[0].weight, 2.0 / 3);
  EXPECT_DOUBLE_EQ(mix.classes()[1].weight, 1.0 / 3);
}

TEST(Workload, IsTypicalWithoutTasks) {
  double sum = 0;
  const Workload mix = Workload::from_tasks({});
  for (const TaskClass& entry : mix.classes()) sum += entry.weight;
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_EQ(mix.classes().size(), Workload::typical().classes().size());
}

TEST(NodeState, FitsOnlyWithEnoughOfEverything) {
  NodeState node = randomly::node_with_free({1000, 400});
  node.cpu_milli = 1000;
  node.memory_mib = 1000;
  node.model = 2;
  Task task = randomly::task_requesting(1, 500);
  EXPECT_TRUE(node.fits(task));
  task.cpu_milli = 1001;
  EXPECT_FALSE(node.fits(task));
  task.cpu_milli = 1000;
  task.memory_mib = 1001;
  EXPECT_FALSE(node.fits(task));
  task.memory_mib = 0;
  task.gpus = 2;
  EXPECT_FALSE(node.fits(task));
  task.gpus = 1;
  task.models.bits = 0b011;
  EXPECT_FALSE(node.fits(task));
  task.models.bits = 0b100;
  EXPECT_TRUE(node.fits(task));
  node.allocate_task(task, 0b01);
  EXPECT_EQ(node.free[0], 500);
  EXPECT_EQ(node.cpu_milli, 0);
}

TEST(NodeState, IgnoresUncountedResources) {
  NodeState node = randomly::node_with_free({1000});
  Task task = randomly::task_requesting(1, 1000);
  task.cpu_milli = 1'000'000;
  EXPECT_TRUE(node.fits(task));
  node.allocate_task(task, 1);
  EXPECT_EQ(node.cpu_milli, kUncounted);
}

}  // namespace
}  // namespace gpulet::scheduler
