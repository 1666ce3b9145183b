#include "scheduler/score.h"

#include <gtest/gtest.h>

#include "scheduler/test_nodes.h"

namespace gpulet::scheduler {
namespace {

class ScoreTest : public testing::Test {
 protected:
  std::vector<int> score(const PodRequest& pod, const std::string& policy) {
    static const std::vector<std::string_view> kNames = {"n1", "n2", "n3"};
    return scorer_.score(view_, pod, policy, kNames);
  }
  ClusterView view_;
  Scorer scorer_;
};

TEST_F(ScoreTest, TheNodeThatHasTheLinksIsBest) {
  GpuNode split = test_node(8, 4), whole = test_node(8, 4);
  hold(split, "a/b", {0, 1, 4, 5});
  hold(whole, "a/c", {0, 1, 2, 3});
  view_.set_node("n1", split);
  view_.set_node("n2", whole);
  const auto scores = score(test_pod("p", 4), "topology");
  EXPECT_LT(scores[0], scores[1]);
  EXPECT_EQ(scores[1], kMaxScore);
  EXPECT_EQ(scores[2], 0) << "nothing is known of it";
}

TEST_F(ScoreTest, BinpackFillsAndSpreadSpreads) {
  GpuNode used = test_node(8, 4);
  hold(used, "a/b", {0, 1, 2, 3});
  view_.set_node("n1", used);
  view_.set_node("n2", test_node(8, 4));
  EXPECT_GT(score(test_pod("p", 1), "binpack")[0], score(test_pod("p", 1), "binpack")[1]);
  EXPECT_LT(score(test_pod("p", 1), "spread")[0], score(test_pod("p", 1), "spread")[1]);
}

TEST_F(ScoreTest, EqualNodesHaveTheBestScoreAndAnUnknownPolicyIsTheDefault) {
  view_.set_node("n1", test_node(8, 4));
  view_.set_node("n2", test_node(8, 4));
  for (const char* policy : {"default", "spread", "nonsense", ""}) {
    EXPECT_EQ(score(test_pod("p", 2), policy), (std::vector{kMaxScore, kMaxScore, 0})) << policy;
  }
}

TEST(BestOf, TheBestInTheOrderAskedAndOfEqualOnesTheFirst) {
  const std::vector<int> scores = {3, 10, 0, 10, 3, 10, 1};
  using Places = std::vector<std::size_t>;
  EXPECT_EQ(best_of(scores, 0), Places{});
  EXPECT_EQ(best_of(scores, 1), Places{1});
  EXPECT_EQ(best_of(scores, 3), (Places{1, 3, 5}));
  EXPECT_EQ(best_of(scores, 4), (Places{0, 1, 3, 5}));
  EXPECT_EQ(best_of(scores, 6), (Places{0, 1, 3, 4, 5, 6}));
  EXPECT_EQ(best_of(scores, 7), (Places{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(best_of(scores, 100).size(), 7U);
  EXPECT_TRUE(best_of({}, 5).empty());
}

TEST_F(ScoreTest, AShareIsATaskOfPartOfAGpu) {
  view_.set_node("n1", test_node(2, 2, 4));
  const auto task = task_on(*view_.find("n1"), test_pod("p", 1));
  ASSERT_TRUE(task.has_value());
  EXPECT_EQ(task->gpus, 1);
  EXPECT_EQ(task->gpu_milli, 250);
  auto other = test_pod("p", 1);
  other.containers[0].demands[0].resource = ResourceName("example.com/fpga");
  EXPECT_FALSE(task_on(*view_.find("n1"), other).has_value());
  EXPECT_EQ(score(other, "default"), (std::vector{0, 0, 0}));
}

}  // namespace
}  // namespace gpulet::scheduler
