#include "nvml/power.h"

#include <linux/capability.h>

#include "base/test_capabilities.h"
#include "nvml/test_on_driver.h"

namespace gpulet::nvml {
namespace {

class PowerControlTest : public DriverTest {
 protected:
  PowerControl control() const { return {*session_, gpu_}; }
};

TEST_F(PowerControlTest, SetsALimitThatIsReadBack) {
  ASSERT_TRUE(control().set_power_limit(MilliWatts{450'000}));
  EXPECT_EQ(Usage(*session_, gpu_).power_limit().value(), MilliWatts{450'000});
  const auto refused = control().set_power_limit(MilliWatts{701'000});
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(refused.error().message().starts_with("nvmlDeviceSetPowerManagementLimit: "));
}

TEST_F(PowerControlTest, LocksAndUnlocksClocks) {
  ASSERT_TRUE(control().lock_graphics_clocks(1200, 1410));
  EXPECT_EQ(Usage(*session_, gpu_).clock(Clock::kGraphics).value(), 1200u);
  EXPECT_EQ(root_.edit_machine()->gpus[0].clocks.locked_graphics[1], 1410);
  ASSERT_TRUE(control().unlock_graphics_clocks());
  EXPECT_EQ(Usage(*session_, gpu_).clock(Clock::kGraphics).value(), 345u);
  ASSERT_TRUE(control().lock_memory_clocks(2619, 2619));
  EXPECT_EQ(root_.edit_machine()->gpus[0].clocks.locked_memory[0], 2619);
  ASSERT_TRUE(control().unlock_memory_clocks());
  EXPECT_EQ(root_.edit_machine()->gpus[0].clocks.locked_memory[1], 0);
  EXPECT_EQ(control().lock_graphics_clocks(1410, 1200).error().code(), Code::kInvalidArgument);
}

TEST_F(PowerControlTest, ListsSupportedClocks) {
  const auto memory = control().supported_memory_clocks();
  ASSERT_TRUE(memory);
  EXPECT_EQ(*memory, std::vector<unsigned>{2619});
  const auto graphics = control().supported_graphics_clocks(2619);
  ASSERT_TRUE(graphics);
  EXPECT_EQ(graphics->front(), 1980u);
  EXPECT_EQ(graphics->back(), 210u);
  EXPECT_EQ(control().supported_graphics_clocks(1).error().code(), Code::kNotFound);
}

TEST_F(PowerControlTest, SettingNeedsARight) {
  run_without_capability(CAP_SYS_ADMIN, [this] {
    for (const auto& refused :
         {control().set_power_limit(MilliWatts{450'000}), control().lock_graphics_clocks(1200, 1200),
          control().unlock_graphics_clocks(), control().lock_memory_clocks(2619, 2619),
          control().unlock_memory_clocks()}) {
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code(), Code::kPermissionDenied);
      EXPECT_NE(refused.error().message().find("CAP_SYS_ADMIN"), std::string::npos);
      EXPECT_EQ(refused.error().message().find("MONITOR"), std::string::npos);
    }
  });
}

}  // namespace
}  // namespace gpulet::nvml
