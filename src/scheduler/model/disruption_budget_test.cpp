#include "scheduler/model/disruption_budget.h"

#include <gtest/gtest.h>

namespace gpulet::scheduler {
namespace {

DisruptionBudget budget_with(const std::string& selector) {
  auto budget =
      parse_disruption_budget(R"({"metadata":{"namespace":"a","name":"b"},"spec":{"selector":)" + selector +
                              R"(},"status":{"disruptionsAllowed":2,"disruptedPods":{"z":"t","c":"t"}}})");
  EXPECT_TRUE(budget);
  return budget.value_or(DisruptionBudget{});
}

TEST(DisruptionBudget, ReadsTheObject) {
  const auto budget = budget_with(R"({"matchLabels":{"app":"web"}})");
  EXPECT_EQ(budget.name_space + "/" + budget.name, "a/b");
  EXPECT_EQ(budget.allowed, 2);
  EXPECT_TRUE(budget.counts_as_disrupted("c"));
  EXPECT_TRUE(budget.counts_as_disrupted("z"));
  EXPECT_FALSE(budget.counts_as_disrupted("d"));
}

TEST(DisruptionBudget, MatchesAsSelectorsDo) {
  const struct {
    const char* selector;
    const char* labels;
    bool matches;
  } kCases[] = {
      {R"({"matchLabels":{"app":"web"}})", "app=web\ntier=1\n", true},
      {R"({"matchLabels":{"app":"web"}})", "tier=1\napp=web\n", true},
      {R"({"matchLabels":{"app":"web"}})", "app=webs\n", false},
      {R"({"matchLabels":{"app":"web"}})", "myapp=web\n", false},
      {R"({"matchLabels":{"app":"web","tier":"1"}})", "app=web\n", false},
      {R"({"matchLabels":{"app":""}})", "app=\n", true},
      {R"({"matchExpressions":[{"key":"app","operator":"In","values":["a","web"]}]})", "app=web\n", true},
      {R"({"matchExpressions":[{"key":"app","operator":"NotIn","values":["web"]}]})", "app=web\n", false},
      {R"({"matchExpressions":[{"key":"app","operator":"NotIn","values":["web"]}]})", "tier=1\n", true},
      {R"({"matchExpressions":[{"key":"app","operator":"Exists"}]})", "app=x\n", true},
      {R"({"matchExpressions":[{"key":"app","operator":"DoesNotExist"}]})", "app=x\n", false},
      {R"({"matchExpressions":[{"key":"app","operator":"Gt","values":["1"]}]})", "app=2\n", false},
      {R"({"matchLabels":{"app":"web"},"matchExpressions":[{"key":"tier","operator":"Exists"}]})",
       "app=web\n", false},
      {"{}", "app=web\n", false},  // as kube-scheduler: no Pod
      {"null", "app=web\n", false},
      {R"({"matchExpressions":[{"key":"app","operator":"DoesNotExist"}]})", "", false},  // likewise
  };
  for (const auto& [selector, labels, matches] : kCases) {
    EXPECT_EQ(budget_with(selector).matches_pod("a", labels), matches) << selector << " " << labels;
    EXPECT_FALSE(budget_with(selector).matches_pod("other", labels)) << selector;
  }
}

TEST(DisruptionBudget, RefusesAnythingElse) {
  for (const char* const text : {"", "[]", "{}", R"({"metadata":{"namespace":"a"}})", "{\"metadata\":"})
    EXPECT_FALSE(parse_disruption_budget(text)) << text;
  EXPECT_FALSE(parse_disruption_budget(std::string(kMaxBudgetBytes + 1, ' ')));
}

}  // namespace
}  // namespace gpulet::scheduler
