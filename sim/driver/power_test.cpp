// Power limits and locked clocks: bounds, rights, and what ends them.
#include <linux/capability.h>

#include "base/test_capabilities.h"
#include "sim/driver/driver_test.h"

namespace gpulet::sim {
namespace {

class PowerCallsTest : public DriverTest {
 protected:
  unsigned limit_of(nvmlDevice_t device) {
    unsigned milliwatts = 0;
    EXPECT_EQ(nvmlDeviceGetPowerManagementLimit(device, &milliwatts), NVML_SUCCESS);
    return milliwatts;
  }
  unsigned clock_of(nvmlDevice_t device, nvmlClockType_t type) {
    unsigned megahertz = 0;
    EXPECT_EQ(nvmlDeviceGetClockInfo(device, type, &megahertz), NVML_SUCCESS);
    return megahertz;
  }
  void restart_client() {
    ASSERT_EQ(nvmlShutdown(), NVML_SUCCESS);
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  }
};

TEST_F(PowerCallsTest, ALimitIsWithinBoundsAndSurvivesItsClient) {
  unsigned least = 0, most = 0;
  ASSERT_EQ(nvmlDeviceGetPowerManagementLimitConstraints(gpu_device(0), &least, &most), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceSetPowerManagementLimit(gpu_device(0), least - 1), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceSetPowerManagementLimit(gpu_device(0), most + 1), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(limit_of(gpu_device(0)), 700'000u);
  ASSERT_EQ(nvmlDeviceSetPowerManagementLimit(gpu_device(0), least), NVML_SUCCESS);
  restart_client();
  EXPECT_EQ(limit_of(gpu_device(0)), least);
  EXPECT_EQ(limit_of(gpu_device(1)), 700'000u) << "of another GPU";
}

TEST_F(PowerCallsTest, ALimitCapsThePowerDrawn) {
  edit_machine()->gpus[0].power_usage_mw = 650'000;
  ASSERT_EQ(nvmlDeviceSetPowerManagementLimit(gpu_device(0), 300'000), NVML_SUCCESS);
  unsigned drawn = 0;
  ASSERT_EQ(nvmlDeviceGetPowerUsage(gpu_device(0), &drawn), NVML_SUCCESS);
  EXPECT_EQ(drawn, 300'000u);
}

TEST_F(PowerCallsTest, ClocksAreLockedWithinTheirRange) {
  const auto device = gpu_device(0);
  ASSERT_EQ(nvmlDeviceSetGpuLockedClocks(device, 1200, 1410), NVML_SUCCESS);
  EXPECT_EQ(clock_of(device, NVML_CLOCK_GRAPHICS), 1200u) << "idle";
  EXPECT_EQ(clock_of(device, NVML_CLOCK_SM), 1200u);
  edit_machine()->gpus[0].processes[0].pid = 77;
  ASSERT_EQ(nvmlDeviceSetGpuLockedClocks(device, 1200, 1410), NVML_SUCCESS);
  EXPECT_EQ(clock_of(device, NVML_CLOCK_GRAPHICS), 1410u) << "busy";
  EXPECT_EQ(nvmlDeviceSetGpuLockedClocks(device, 1410, 1200), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceSetGpuLockedClocks(device, 1, 1200), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceSetGpuLockedClocks(device, 1200, 99'999), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceSetGpuLockedClocks(device, 1200, NVML_CLOCK_LIMIT_ID_TDP), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(clock_of(device, NVML_CLOCK_GRAPHICS), 1410u);
  ASSERT_EQ(nvmlDeviceResetGpuLockedClocks(device), NVML_SUCCESS);
  EXPECT_EQ(clock_of(device, NVML_CLOCK_GRAPHICS), 1980u);
  EXPECT_EQ(nvmlDeviceSetMemoryLockedClocks(device, 2619, 2619), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceSetMemoryLockedClocks(device, 100, 2619), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceResetMemoryLockedClocks(device), NVML_SUCCESS);
}

TEST_F(PowerCallsTest, OlderGpusLockNoClocks) {
  edit_machine()->gpus[0].architecture = NVML_DEVICE_ARCH_VOLTA;
  EXPECT_EQ(nvmlDeviceSetGpuLockedClocks(gpu_device(0), 1200, 1200), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceSetMemoryLockedClocks(gpu_device(0), 2619, 2619), NVML_ERROR_NOT_SUPPORTED);
  edit_machine()->gpus[0].architecture = NVML_DEVICE_ARCH_PASCAL;
  EXPECT_EQ(nvmlDeviceSetGpuLockedClocks(gpu_device(0), 1200, 1200), NVML_ERROR_NOT_SUPPORTED);
}

TEST_F(PowerCallsTest, SettingNeedsAnAdministrator) {
  run_without_capability(CAP_SYS_ADMIN, [this] {
    EXPECT_EQ(nvmlDeviceSetPowerManagementLimit(gpu_device(0), 300'000), NVML_ERROR_NO_PERMISSION);
    EXPECT_EQ(nvmlDeviceSetGpuLockedClocks(gpu_device(0), 1200, 1200), NVML_ERROR_NO_PERMISSION);
    EXPECT_EQ(nvmlDeviceResetGpuLockedClocks(gpu_device(0)), NVML_ERROR_NO_PERMISSION);
    EXPECT_EQ(nvmlDeviceSetMemoryLockedClocks(gpu_device(0), 2619, 2619), NVML_ERROR_NO_PERMISSION);
    EXPECT_EQ(limit_of(gpu_device(0)), 700'000u);
  });
}

TEST_F(PowerCallsTest, AReloadAndAResetEndBoth) {
  for (const bool is_reset : {true, false}) {
    ASSERT_EQ(nvmlDeviceSetPowerManagementLimit(gpu_device(0), 300'000), NVML_SUCCESS);
    ASSERT_EQ(nvmlDeviceSetGpuLockedClocks(gpu_device(0), 1200, 1200), NVML_SUCCESS);
    if (is_reset) {
      ASSERT_TRUE(reset_gpu(*edit_machine(), 0));
    } else {
      unload_driver(*edit_machine());
      load_driver(*edit_machine());
      ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
    }
    EXPECT_EQ(limit_of(gpu_device(0)), 700'000u) << is_reset;
    EXPECT_EQ(clock_of(gpu_device(0), NVML_CLOCK_GRAPHICS), 345u) << is_reset;
  }
}

}  // namespace
}  // namespace gpulet::sim
