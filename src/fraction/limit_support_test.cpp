#include "fraction/limit_support.h"

#include <gtest/gtest.h>

#include <functional>

namespace gpulet::fraction {
namespace {

LimitEvidence full_support() {
  return {.driver_version = "615.71.09",
          .has_functions = true,
          .is_administrator = true,
          .is_cgroup_v2 = true,
          .parameters = "EnableResizableBar: 0\nRegistryDwords: \"\"\nRegistryDwordsPerDevice: \"\"\n"};
}

TEST(LimitSupport, NamesTheFirstReason) {
  const struct {
    std::function<void(LimitEvidence&)> change;
    std::string reason;
  } cases[] = {
      {[](auto&) {}, ""},
      {[](auto& e) { e.driver_version = "620.10"; }, ""},
      {[](auto& e) { e.parameters = std::nullopt; }, ""},
      {[](auto& e) {
         e.driver_version = "610.43.02";
         e.is_cgroup_v2 = false;
       },
       "the driver is 610.43.02: memory limits need 615 or later"},
      {[](auto& e) { e.driver_version = "unknown"; },
       "the driver is unknown: memory limits need 615 or later"},
      {[](auto& e) { e.has_functions = false; },
       "the library of driver 615.71.09 has no nvmlDeviceSetMemoryLimits_v1"},
      {[](auto& e) { e.is_cgroup_v2 = false; }, "the node has no cgroup v2, which memory limits need"},
      {[](auto& e) { e.is_administrator = false; }, "no CAP_SYS_ADMIN, which setting memory limits needs"},
  };
  for (const auto& one : cases) {
    auto evidence = full_support();
    one.change(evidence);
    const auto support = check_limit_support(evidence);
    EXPECT_EQ(support.reason, one.reason);
    EXPECT_EQ(support.is_supported(), one.reason.empty());
  }
}

TEST(LimitSupport, ReadsTheRegistryKeyOfTheParameters) {
  const std::pair<const char*, bool> lines[] = {
      {"RegistryDwords: \"RmMemacctMode=0\"", false},
      {"RegistryDwords: \"RmMemacctMode=0x0\"", false},
      {"EnableMSI: 1\nRegistryDwords: \"RMIntrLockingMode=1; RmMemacctMode=0;\"\nRmMsg: \"\"", false},
      {"RegistryDwords: \"RmMemacctMode=0;RmMemacctMode=1\"", true},
      {"RegistryDwords: \"RmMemacctMode=1\"", true},
      {"RegistryDwords: \"RmMemacctMode=3\"", true},
      {"RegistryDwords: \"XRmMemacctMode=0\"", true},
      {"RegistryDwordsPerDevice: \"RmMemacctMode=0\"", true},
      {"RmMsg: \"RmMemacctMode=0\"", true},
      {"RegistryDwords:", true},
      {"", true},
  };
  for (const auto& [parameters, expected] : lines) {
    auto evidence = full_support();
    evidence.parameters = parameters;
    const auto support = check_limit_support(evidence);
    EXPECT_EQ(support.is_supported(), expected) << parameters;
    if (!expected) {
      EXPECT_NE(support.reason.find("RmMemacctMode=0"), std::string::npos) << support.reason;
    }
  }
}

}  // namespace
}  // namespace gpulet::fraction
