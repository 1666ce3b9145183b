// What a monitor polls of the driver, and what it does not have.
#include "sim/driver/driver_test.h"

namespace gpulet::sim {
namespace {

nvmlReturn_t uncorrected(nvmlDevice_t device, nvmlMemoryLocation_t location, unsigned long long* count) {
  return nvmlDeviceGetMemoryErrorCounter(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC,
                                         location, count);
}

TEST_F(DriverTest, EccByLocationAndTheSramThreshold) {
  unsigned long long count = 0;
  edit()->gpus[0].ecc[1][0].by_location[NVML_MEMORY_LOCATION_SRAM] = 4;
  ASSERT_EQ(uncorrected(gpu(0), NVML_MEMORY_LOCATION_SRAM, &count), NVML_SUCCESS);
  EXPECT_EQ(count, 4u);
  ASSERT_EQ(uncorrected(gpu(0), NVML_MEMORY_LOCATION_DRAM, &count), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  nvmlEccSramErrorStatus_t status{};
  status.version = nvmlEccSramErrorStatus_v1;
  ASSERT_EQ(nvmlDeviceGetSramEccErrorStatus(gpu(0), &status), NVML_SUCCESS);
  EXPECT_EQ(status.volatileUncSecDed, 4u);
  EXPECT_EQ(status.bThresholdExceeded, 0u);
  edit()->gpus[0].sram_threshold = 1;
  ASSERT_EQ(nvmlDeviceGetSramEccErrorStatus(gpu(0), &status), NVML_SUCCESS);
  EXPECT_EQ(status.bThresholdExceeded, 1u);
  edit()->gpus[0].architecture = NVML_DEVICE_ARCH_VOLTA;
  EXPECT_EQ(uncorrected(gpu(0), NVML_MEMORY_LOCATION_SRAM, &count), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(uncorrected(gpu(0), NVML_MEMORY_LOCATION_L2_CACHE, &count), NVML_SUCCESS);
  edit()->gpus[0].ecc_current = 0;
  EXPECT_EQ(uncorrected(gpu(0), NVML_MEMORY_LOCATION_DRAM, &count), NVML_ERROR_NOT_SUPPORTED);
}

TEST_F(DriverTest, TheInforomIsValidated) {
  EXPECT_EQ(nvmlDeviceValidateInforom(gpu(0)), NVML_SUCCESS);
  edit()->gpus[0].faults.inforom = 1;
  EXPECT_EQ(nvmlDeviceValidateInforom(gpu(0)), NVML_ERROR_CORRUPTED_INFOROM);
  EXPECT_EQ(nvmlDeviceValidateInforom(gpu(1)), NVML_SUCCESS);
  edit()->gpus[1].inforom_image[0] = '\0';
  EXPECT_EQ(nvmlDeviceValidateInforom(gpu(1)), NVML_ERROR_NOT_SUPPORTED);
  const nvmlDevice_t third = gpu(2);
  edit()->gpus[2].faults.lost = 1;
  EXPECT_EQ(nvmlDeviceValidateInforom(third), NVML_ERROR_GPU_IS_LOST);
}

}  // namespace
}  // namespace gpulet::sim
