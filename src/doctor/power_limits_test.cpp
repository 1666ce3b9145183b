#include <gtest/gtest.h>

#include "doctor/checks.h"
#include "doctor/test_facts.h"

namespace gpulet::doctor {
namespace {

TEST(PowerLimitsCheck, ShowsLimitsAndProblems) {
  auto facts = healthy_facts();
  EXPECT_EQ(check_power_limits(facts).verdict, Verdict::kPass) << "no rule";
  facts.agent->devices = {AgentDevice{"GPU 0", "GPU-0", "allocatable", "", true, "nvidia.com/gpu"}};
  facts.agent->power = {{.gpu = DeviceUuid("GPU-0"),
                         .limit = MilliWatts{500'000},
                         .enforced = MilliWatts{450'000},
                         .source = "rule"}};
  auto result = check_power_limits(facts);
  EXPECT_EQ(result.verdict, Verdict::kPass);
  EXPECT_EQ(result.found, "1 power limit in force");
  EXPECT_EQ(result.details,
            std::vector<std::string>{"GPU 0: 500W by rule, of which the driver enforces 450W"});
  facts.agent->power.push_back({.gpu = DeviceUuid("GPU-1"), .problems = {"it needs CAP_SYS_ADMIN"}});
  result = check_power_limits(facts);
  EXPECT_EQ(result.verdict, Verdict::kWarn);
  EXPECT_EQ(result.found, "GPU-1: it needs CAP_SYS_ADMIN");
  EXPECT_EQ(result.fix, "give the agent's container CAP_SYS_ADMIN");
  facts.agent = fail(Code::kUnavailable, "no agent");
  EXPECT_EQ(check_power_limits(facts).verdict, Verdict::kSkip);
}

}  // namespace
}  // namespace gpulet::doctor
