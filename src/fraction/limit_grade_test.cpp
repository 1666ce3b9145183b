#include "fraction/limit_grade.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace gpulet::fraction {
namespace {

constexpr std::uint64_t kLimitMib = 8192;
const GradeCap kNoDriver{LimitGrade::kMps, "no driver"}, kNoAudit{LimitGrade::kNone, "no audit"};

LimitMeans audited_means() { return {.no_driver_limit = "no driver", .ends_excess = true}; }
LimitMeans mps_means(std::uint64_t process_mib) {
  return {.no_driver_limit = "no driver", .no_audit = "no audit", .mps_process_mib = process_mib};
}

TEST(LimitGradeTest, HasANameEach) {
  for (const auto grade : kLimitGrades) EXPECT_EQ(parse_limit_grade(limit_grade_name(grade)), grade);
  EXPECT_EQ(limit_grade_name(LimitGrade::kAudited), "audited");
  EXPECT_EQ(parse_limit_grade("Kernel"), std::nullopt);
  EXPECT_EQ(parse_limit_grade(""), std::nullopt);
}

TEST(LimitGradeTest, APodDemandsOneThatHoldsSomething) {
  EXPECT_EQ(parse_min_grade("mps").value(), LimitGrade::kMps);
  for (const auto* const value : {"none", "", "hard\n"}) EXPECT_FALSE(parse_min_grade(value)) << value;
  EXPECT_EQ(parse_min_grade("hard\n").error().message(),
            "annotation gpulet.io/min-limit-grade is \"hard \": expected kernel, mps or audited");
}

TEST(LimitGradeTest, TheHardestMeansCounts) {
  auto means = audited_means();
  EXPECT_EQ(grade_of_container(kLimitMib, means, {}), (Grade{LimitGrade::kAudited, {kNoDriver}}));
  means.mps_process_mib = kLimitMib;
  EXPECT_EQ(grade_of_container(kLimitMib, means, {}), (Grade{LimitGrade::kMps, {kNoDriver}}));
  means.has_driver_limit = true;
  EXPECT_EQ(grade_of_container(kLimitMib, means, {}), Grade{LimitGrade::kKernel});
}

TEST(LimitGradeTest, WithoutMeansTheReasonsAreThoseOfEachGrade) {
  const LimitMeans nothing{.no_driver_limit = "no driver", .no_audit = "no audit"};
  EXPECT_EQ(grade_of_container(kLimitMib, nothing, {}),
            (Grade{LimitGrade::kNone, {kNoDriver, kNoAudit}}));
}

TEST(LimitGradeTest, OnlyMpsLimitsAContainerThatRequestsNoMemory) {
  const LimitMeans hard{.has_driver_limit = true, .ends_excess = true};
  EXPECT_EQ(
      grade_of_container(0, hard, {}),
      (Grade{LimitGrade::kNone,
             {{LimitGrade::kNone, "its Pod requests no memory of the GPU, so there is no limit to hold"}}}));
  EXPECT_EQ(grade_of_container(0, mps_means(kLimitMib), {}).grade, LimitGrade::kMps);
}

TEST(LimitGradeTest, AWiderLimitOfMpsDoesNotHoldThatOfThePod) {
  EXPECT_EQ(grade_of_container(kLimitMib, mps_means(kLimitMib + 1), {}),
            (Grade{LimitGrade::kNone,
                   {kNoDriver,
                    {LimitGrade::kAudited,
                     "MPS limits a process to 8193 MiB, more than the 8192 MiB of the Pod"},
                    kNoAudit}}));
}

TEST(LimitGradeTest, ABrokenRuleLowersIt) {
  const LimitMeans all{.has_driver_limit = true, .ends_excess = true};
  const GradeCap audited{LimitGrade::kAudited, "sees host processes"};
  const GradeCap none{LimitGrade::kNone, "is privileged"};
  EXPECT_EQ(grade_of_container(kLimitMib, all, std::vector{audited}),
            (Grade{LimitGrade::kAudited, {audited}}));
  EXPECT_EQ(grade_of_container(kLimitMib, all, std::vector{audited, none}),
            (Grade{LimitGrade::kNone, {audited, none}}));
  // What would not be reached anyway is no reason.
  EXPECT_EQ(grade_of_container(kLimitMib, audited_means(), std::vector{audited}),
            (Grade{LimitGrade::kAudited, {kNoDriver}}));
}

TEST(LimitGradeTest, ANodeHoldsWhatAllItsResourcesHold) {
  EXPECT_EQ(common_means({}), LimitMeans{});
  EXPECT_EQ(grade_of_node(mps_means(10)).grade, LimitGrade::kMps);
  const auto both = common_means(std::vector{audited_means(), mps_means(10)});
  EXPECT_EQ(grade_of_node(both), (Grade{LimitGrade::kNone, {kNoDriver, kNoAudit}}));
  EXPECT_EQ(common_means(std::vector{mps_means(10), mps_means(20)}).mps_process_mib, 20u);
}

RC_GTEST_PROP(LimitGradeProperty, NoRuleRaisesAGrade, ()) {
  const auto flag = [] { return *rc::gen::arbitrary<bool>(); };
  LimitMeans means{.has_driver_limit = flag(), .ends_excess = flag()};
  means.mps_process_mib = *rc::gen::inRange(0u, 4u);
  const std::uint64_t limit = *rc::gen::inRange(0u, 4u);
  std::vector<GradeCap> caps;
  auto before = grade_of_container(limit, means, caps).grade;
  for (const auto index : *rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(0, 4))) {
    caps.push_back({kLimitGrades[index], "a rule"});
    const auto after = grade_of_container(limit, means, caps);
    RC_ASSERT(after.grade <= before && after.grade <= kLimitGrades[index]);
    RC_ASSERT(after.reasons.size() <= kMaxGradeReasons);
    before = after.grade;
  }
}

}  // namespace
}  // namespace gpulet::fraction
