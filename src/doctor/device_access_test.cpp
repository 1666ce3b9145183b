#include <gtest/gtest.h>

#include "doctor/checks.h"
#include "doctor/test_facts.h"

namespace gpulet::doctor {
namespace {

TEST(DevicePermissions, NameContainersThatTheAgentFoundCutOff) {
  auto facts = healthy_facts();
  ASSERT_EQ(check_device_permissions(facts).verdict, Verdict::kPass);
  facts.agent->cut_off = {"Pod team/a: container main may not open /dev/nvidia0"};
  auto result = check_device_permissions(facts);
  EXPECT_EQ(result.verdict, Verdict::kWarn);
  EXPECT_EQ(result.found,
            "Pod team/a: container main may not open /dev/nvidia0: the device cgroup refuses it, as after "
            "`systemctl daemon-reload`");
  // Without the nodes in sight, too.
  facts.nodes = fail(Code::kNotFound, "not here");
  EXPECT_EQ(check_device_permissions(facts).verdict, Verdict::kWarn);
  facts.agent = fail(Code::kUnavailable, "no agent");
  EXPECT_EQ(check_device_permissions(facts).verdict, Verdict::kUnknown);
}

}  // namespace
}  // namespace gpulet::doctor
