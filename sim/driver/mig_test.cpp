#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "sim/driver/driver_test.h"
#include "sim/state/mig.h"

namespace gpulet::sim {
namespace {

// Profile ids of H100 80GB.
constexpr unsigned k1g = 19;
constexpr unsigned k1gMedia = 20;
constexpr unsigned k2g = 14;
constexpr unsigned k3g = 9;
constexpr unsigned k4g = 5;
constexpr unsigned k7g = 0;

class MigTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    nvmlReturn_t activation = NVML_ERROR_UNKNOWN;
    ASSERT_EQ(nvmlDeviceSetMigMode(gpu_device(0), NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
    ASSERT_EQ(activation, NVML_SUCCESS);
  }
  nvmlGpuInstance_t create_instance(unsigned profile) {
    nvmlGpuInstance_t instance = nullptr;
    EXPECT_EQ(nvmlDeviceCreateGpuInstance(gpu_device(0), profile, &instance), NVML_SUCCESS) << profile;
    return instance;
  }
  nvmlGpuInstanceInfo_t instance_info(nvmlGpuInstance_t instance) {
    nvmlGpuInstanceInfo_t found{};
    EXPECT_EQ(nvmlGpuInstanceGetInfo(instance, &found), NVML_SUCCESS);
    return found;
  }
  unsigned free_capacity(unsigned profile) {
    unsigned count = 99;
    EXPECT_EQ(nvmlDeviceGetGpuInstanceRemainingCapacity(gpu_device(0), profile, &count), NVML_SUCCESS);
    return count;
  }
};

TEST_F(MigTest, TheModeStaysPendingWhileAnotherProcessHoldsTheGpu) {
  auto other = ClientEntry::add_client(state_, *edit_machine(), 0b10);
  ASSERT_TRUE(other) << other.error().full_message();
  unsigned current = 0;
  unsigned pending = 0;
  nvmlReturn_t activation = NVML_SUCCESS;
  ASSERT_EQ(nvmlDeviceSetMigMode(gpu_device(1), NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
  EXPECT_EQ(activation, NVML_ERROR_IN_USE);
  ASSERT_EQ(nvmlDeviceGetMigMode(gpu_device(1), &current, &pending), NVML_SUCCESS);
  EXPECT_EQ(current, 0u);
  EXPECT_EQ(pending, 1u);
  ASSERT_EQ(nvmlDeviceSetMigMode(gpu_device(2), NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
  EXPECT_EQ(activation, NVML_SUCCESS) << "it does not hold this one";

  other = fail(Code::kInternal, "closed");
  ASSERT_EQ(nvmlDeviceSetMigMode(gpu_device(1), NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
  EXPECT_EQ(activation, NVML_SUCCESS);
}

TEST_F(MigTest, TheDriverResetsAnIdleAmpereGpuForItsMode) {
  unsigned current = 0;
  unsigned pending = 0;
  {
    auto machine = edit_machine();
    machine->gpus[1].mig.mode_needs_reset = 1;
    machine->gpus[1].pcie_replays = 7;
  }
  nvmlReturn_t activation = NVML_ERROR_UNKNOWN;
  ASSERT_EQ(nvmlDeviceSetMigMode(gpu_device(1), NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
  EXPECT_EQ(activation, NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetMigMode(gpu_device(1), &current, &pending), NVML_SUCCESS);
  EXPECT_EQ(current, 1u);
  EXPECT_EQ(edit_machine()->gpus[1].pcie_replays, 0u) << "it was reset";
}

TEST_F(MigTest, TheModeOfAnAmpereGpuIsPendingWithPassThrough) {
  unsigned current = 0;
  unsigned pending = 0;
  {
    auto machine = edit_machine();
    machine->gpus[1].mig.mode_needs_reset = 1;
    machine->gpus[1].mig.passthrough = 1;
  }
  nvmlReturn_t activation = NVML_SUCCESS;
  ASSERT_EQ(nvmlDeviceSetMigMode(gpu_device(1), NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
  EXPECT_EQ(activation, NVML_ERROR_RESET_REQUIRED);
  ASSERT_EQ(nvmlDeviceGetMigMode(gpu_device(1), &current, &pending), NVML_SUCCESS);
  EXPECT_EQ(current, 0u);
  EXPECT_EQ(pending, 1u);
  ASSERT_TRUE(reset_gpu(*edit_machine(), 1));
  ASSERT_EQ(nvmlDeviceGetMigMode(gpu_device(1), &current, &pending), NVML_SUCCESS);
  EXPECT_EQ(current, 1u);
}

TEST_F(MigTest, ModeWaitsForAnIdleGpu) {
  Process process{};
  process.pid = 99;
  process.gpu_instance = process.compute_instance = kNoInstance;
  ASSERT_TRUE(add_process(edit_machine()->gpus[1], process));
  nvmlReturn_t activation = NVML_SUCCESS;
  ASSERT_EQ(nvmlDeviceSetMigMode(gpu_device(1), NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
  EXPECT_EQ(activation, NVML_ERROR_IN_USE);
  ASSERT_TRUE(remove_process(edit_machine()->gpus[1], 99));
  ASSERT_EQ(nvmlDeviceSetMigMode(gpu_device(1), NVML_DEVICE_MIG_ENABLE, &activation), NVML_SUCCESS);
  EXPECT_EQ(activation, NVML_SUCCESS);
  // MIG stays on while instances exist.
  create_instance(k7g);
  ASSERT_EQ(nvmlDeviceSetMigMode(gpu_device(0), NVML_DEVICE_MIG_DISABLE, &activation), NVML_SUCCESS);
  EXPECT_EQ(activation, NVML_ERROR_IN_USE);
}

TEST_F(MigTest, IsNotSupportedWithMigOff) {
  nvmlGpuInstance_t instance = nullptr;
  EXPECT_EQ(nvmlDeviceCreateGpuInstance(gpu_device(1), k1g, &instance), NVML_ERROR_NOT_SUPPORTED);
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetGpuInstanceRemainingCapacity(gpu_device(1), k1g, &count), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceGetMaxMigDeviceCount(gpu_device(1), &count), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(nvmlDeviceGetMaxMigDeviceCount(gpu_device(0), &count), NVML_SUCCESS);
  EXPECT_EQ(count, 7u);
  nvmlGpuInstance_t instances[8];
  EXPECT_EQ(nvmlDeviceGetGpuInstances(gpu_device(1), k1g, instances, &count), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(nvmlDeviceGetGpuInstanceById(gpu_device(1), 0, &instance), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvmlDeviceGetGpuInstanceId(gpu_device(1), &count), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetComputeInstanceId(gpu_device(1), &count), NVML_ERROR_INVALID_ARGUMENT);
  edit_machine()->gpus[2].mig.capable = 0;
  EXPECT_EQ(nvmlDeviceGetMigMode(gpu_device(2), &count, &count), NVML_ERROR_NOT_SUPPORTED);
}

TEST_F(MigTest, ProfilesAndPlacements) {
  nvmlGpuInstanceProfileInfo_v2_t profile{};
  profile.version = nvmlGpuInstanceProfileInfo_v2;
  ASSERT_EQ(nvmlDeviceGetGpuInstanceProfileInfoV(gpu_device(0), NVML_GPU_INSTANCE_PROFILE_3_SLICE, &profile),
            NVML_SUCCESS);
  EXPECT_EQ(profile.id, k3g);
  EXPECT_STREQ(profile.name, "MIG 3g.40gb");
  EXPECT_EQ(profile.sliceCount, 3u);
  nvmlGpuInstanceProfileInfo_v3_t third{};
  third.version = nvmlGpuInstanceProfileInfo_v3;
  ASSERT_EQ(nvmlDeviceGetGpuInstanceProfileInfoV(gpu_device(0), NVML_GPU_INSTANCE_PROFILE_3_SLICE,
                                                 reinterpret_cast<nvmlGpuInstanceProfileInfo_v2_t*>(&third)),
            NVML_SUCCESS);
  EXPECT_STREQ(third.name, "MIG 3g.40gb");
  profile.version = 7;
  EXPECT_EQ(nvmlDeviceGetGpuInstanceProfileInfoV(gpu_device(0), 0, &profile),
            NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  nvmlGpuInstanceProfileInfo_t plain{};
  EXPECT_EQ(nvmlDeviceGetGpuInstanceProfileInfo(gpu_device(0), NVML_GPU_INSTANCE_PROFILE_6_SLICE, &plain),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceGetGpuInstanceProfileInfo(gpu_device(0), NVML_GPU_INSTANCE_PROFILE_COUNT, &plain),
            NVML_ERROR_INVALID_ARGUMENT);

  unsigned count = 0;
  ASSERT_EQ(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu_device(1), k3g, nullptr, &count), NVML_SUCCESS);
  ASSERT_EQ(count, 2u);
  nvmlGpuInstancePlacement_t places[2];
  ASSERT_EQ(nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu_device(1), k3g, places, &count), NVML_SUCCESS);
  EXPECT_EQ(places[1].start, 4u);
  EXPECT_EQ(places[1].size, 4u);
}

// Where hardware puts instances whose placement nobody chooses, and the ids they get. Source: NVIDIA's MIG
// user guide, and `nvidia-smi mig -cgi` and `-lgi` of A100 and H100.
TEST_F(MigTest, PlacesAndNumbersLikeHardware) {
  struct Made {
    unsigned profile, start, id;
  };
  const std::vector<Made> layouts[] = {
      {{k1g, 6, 9}, {k1g, 4, 7}, {k1g, 5, 8}, {k1g, 0, 11}, {k1g, 1, 12}, {k1g, 2, 13}, {k1g, 3, 14}},
      {{k2g, 4, 3}, {k2g, 0, 5}, {k1g, 6, 9}, {k2g, 2, 6}},
      {{k3g, 4, 1}, {k3g, 0, 2}},
      {{k3g, 4, 1}, {k4g, 0, 2}},
      {{k1g, 6, 9}, {k2g, 4, 3}, {k4g, 0, 2}},
      // All of all-balanced, in each order that begins with 3g.
      {{k3g, 4, 1}, {k2g, 0, 5}, {k1g, 2, 13}, {k1g, 3, 14}},
      {{k3g, 4, 1}, {k1g, 0, 11}, {k2g, 2, 6}, {k1g, 1, 12}},
      {{k3g, 4, 1}, {k1g, 0, 11}, {k1g, 1, 12}, {k2g, 2, 6}},
  };
  for (const auto& layout : layouts) {
    std::vector<nvmlGpuInstance_t> instances;
    for (const Made& expected : layout) {
      instances.push_back(create_instance(expected.profile));
      const auto made = instance_info(instances.back());
      EXPECT_EQ(made.placement.start, expected.start) << "profile " << expected.profile;
      EXPECT_EQ(made.id, expected.id) << "profile " << expected.profile;
    }
    for (const auto instance : instances) EXPECT_EQ(nvmlGpuInstanceDestroy(instance), NVML_SUCCESS);
  }
}

// As on hardware: "Insufficient Resources" for 19,19,14,9.
TEST_F(MigTest, LeavesNoHalfFor3gBehindSmallerInstances) {
  for (const unsigned profile : {k1g, k1g, k2g}) create_instance(profile);
  nvmlGpuInstance_t none = nullptr;
  EXPECT_EQ(nvmlDeviceCreateGpuInstance(gpu_device(0), k3g, &none), NVML_ERROR_INSUFFICIENT_RESOURCES);
}

TEST_F(MigTest, CountsTheRemainingCapacity) {
  for (unsigned i = 0; i < 7; ++i) {
    EXPECT_EQ(free_capacity(k1g), 7 - i);
    create_instance(k1g);
  }
  nvmlGpuInstance_t none = nullptr;
  EXPECT_EQ(nvmlDeviceCreateGpuInstance(gpu_device(0), k1g, &none), NVML_ERROR_INSUFFICIENT_RESOURCES);
}

TEST_F(MigTest, MixedLayout) {
  create_instance(k3g);
  create_instance(k2g);
  create_instance(k1g);
  EXPECT_EQ(free_capacity(k4g), 0u);
  EXPECT_EQ(free_capacity(k7g), 0u);
  EXPECT_EQ(free_capacity(k1g), 1u) << "3g has the upper half, with the slice that has memory only";
}

TEST_F(MigTest, AssignsMediaEnginesOnce) {
  create_instance(k1gMedia);
  EXPECT_EQ(free_capacity(k1gMedia), 0u);
  EXPECT_EQ(free_capacity(k1g), 6u);
  nvmlGpuInstance_t none = nullptr;
  EXPECT_EQ(nvmlDeviceCreateGpuInstance(gpu_device(0), k1gMedia, &none), NVML_ERROR_INSUFFICIENT_RESOURCES);
}

TEST_F(MigTest, HonoursRequestedPlacements) {
  nvmlGpuInstance_t instance = nullptr;
  const nvmlGpuInstancePlacement_t at_four{4, 4};
  ASSERT_EQ(nvmlDeviceCreateGpuInstanceWithPlacement(gpu_device(0), k3g, &at_four, &instance), NVML_SUCCESS);
  EXPECT_EQ(instance_info(instance).id, 1u);
  EXPECT_EQ(nvmlDeviceCreateGpuInstanceWithPlacement(gpu_device(0), k3g, &at_four, &instance),
            NVML_ERROR_INSUFFICIENT_RESOURCES);
  const nvmlGpuInstancePlacement_t odd{1, 4};
  EXPECT_EQ(nvmlDeviceCreateGpuInstanceWithPlacement(gpu_device(0), k3g, &odd, &instance),
            NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(MigTest, LifeOfAMigDevice) {
  const nvmlGpuInstance_t instance = create_instance(k3g);
  nvmlComputeInstance_t compute = nullptr;
  ASSERT_EQ(nvmlGpuInstanceCreateComputeInstance(instance, 2, &compute), NVML_SUCCESS);
  nvmlDevice_t mig = nullptr;
  ASSERT_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_device(0), 0, &mig), NVML_SUCCESS);
  nvmlDevice_t none = nullptr;
  EXPECT_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_device(0), 1, &none), NVML_ERROR_NOT_FOUND);
  unsigned value = 0;
  ASSERT_EQ(nvmlDeviceIsMigDeviceHandle(mig, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 1u);
  ASSERT_EQ(nvmlDeviceGetGpuInstanceId(mig, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 1u);
  ASSERT_EQ(nvmlDeviceGetComputeInstanceId(mig, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 0u);
  nvmlDevice_t parent = nullptr;
  ASSERT_EQ(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig, &parent), NVML_SUCCESS);
  EXPECT_EQ(parent, gpu_device(0));
  char text[96];
  ASSERT_EQ(nvmlDeviceGetName(mig, text, sizeof(text)), NVML_SUCCESS);
  EXPECT_STREQ(text, "NVIDIA H100 80GB HBM3 MIG 3g.40gb");
  ASSERT_EQ(nvmlDeviceGetUUID(mig, text, sizeof(text)), NVML_SUCCESS);
  EXPECT_EQ(std::string(text).substr(0, 4), "MIG-");
  nvmlDevice_t found = nullptr;
  ASSERT_EQ(nvmlDeviceGetHandleByUUID(text, &found), NVML_SUCCESS);
  EXPECT_EQ(found, mig);
  nvmlDeviceAttributes_t attributes{};
  ASSERT_EQ(nvmlDeviceGetAttributes_v2(mig, &attributes), NVML_SUCCESS);
  EXPECT_EQ(attributes.multiprocessorCount, 60u);
  EXPECT_EQ(attributes.memorySizeMB, 40320u);
  EXPECT_EQ(nvmlDeviceGetTemperature(mig, NVML_TEMPERATURE_GPU, &value), NVML_ERROR_INVALID_ARGUMENT);
  nvmlUtilization_t utilization{};
  EXPECT_EQ(nvmlDeviceGetUtilizationRates(gpu_device(0), &utilization), NVML_ERROR_NOT_SUPPORTED);

  Process process{};
  process.pid = 7;
  process.gpu_instance = 1;
  process.compute_instance = 0;
  process.memory_bytes = 1u << 30;
  ASSERT_TRUE(add_process(edit_machine()->gpus[0], process));
  nvmlMemory_t memory{};
  ASSERT_EQ(nvmlDeviceGetMemoryInfo(mig, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.total, 40320ull << 20);
  EXPECT_EQ(memory.used, 1u << 30);
  EXPECT_EQ(nvmlComputeInstanceDestroy(compute), NVML_ERROR_IN_USE);
  EXPECT_EQ(nvmlGpuInstanceDestroy(instance), NVML_ERROR_IN_USE);
  ASSERT_TRUE(remove_process(edit_machine()->gpus[0], 7));
  EXPECT_EQ(nvmlComputeInstanceDestroy(compute), NVML_SUCCESS);
  EXPECT_EQ(nvmlComputeInstanceDestroy(compute), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetName(mig, text, sizeof(text)), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlGpuInstanceDestroy(instance), NVML_SUCCESS);
  EXPECT_EQ(nvmlGpuInstanceDestroy(instance), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(MigTest, AnInjectedErrorFailsOneCall) {
  edit_machine()->gpus[0].faults.mig_error = NVML_ERROR_INSUFFICIENT_RESOURCES;
  edit_machine()->gpus[0].faults.mig_skip = 1;
  const nvmlGpuInstance_t first = create_instance(k1g);
  nvmlGpuInstance_t second = nullptr;
  // Reads neither fail nor count.
  EXPECT_EQ(instance_info(first).profileId, k1g);
  EXPECT_EQ(nvmlDeviceCreateGpuInstance(gpu_device(0), k1g, &second), NVML_ERROR_INSUFFICIENT_RESOURCES);
  EXPECT_EQ(free_capacity(k1g), 6u);
  EXPECT_EQ(nvmlDeviceCreateGpuInstance(gpu_device(0), k1g, &second), NVML_SUCCESS);
  nvmlReturn_t activation = NVML_SUCCESS;
  edit_machine()->gpus[1].faults.mig_error = NVML_ERROR_UNKNOWN;
  EXPECT_EQ(nvmlDeviceSetMigMode(gpu_device(1), NVML_DEVICE_MIG_ENABLE, &activation), NVML_ERROR_UNKNOWN);
  edit_machine()->gpus[0].faults.mig_error = NVML_ERROR_IN_USE;
  EXPECT_EQ(nvmlGpuInstanceDestroy(first), NVML_ERROR_IN_USE);
  EXPECT_EQ(nvmlGpuInstanceDestroy(first), NVML_SUCCESS);
}

TEST_F(MigTest, AnInjectedHangLastsUntilHealed) {
  const nvmlGpuInstance_t first = create_instance(k1g);
  edit_machine()->gpus[0].faults.mig_hang = 1;
  auto destroyed = std::async(std::launch::async, [&] { return nvmlGpuInstanceDestroy(first); });
  // Other calls of the GPU respond.
  EXPECT_EQ(instance_info(first).profileId, k1g);
  EXPECT_EQ(destroyed.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  heal_gpu(edit_machine()->gpus[0]);
  EXPECT_EQ(destroyed.get(), NVML_SUCCESS);
  EXPECT_EQ(free_capacity(k1g), 7u);
}

TEST_F(MigTest, ComputeInstancesShareOneGpuInstance) {
  const nvmlGpuInstance_t instance = create_instance(k4g);
  nvmlComputeInstanceProfileInfo_v2_t profile{};
  profile.version = nvmlComputeInstanceProfileInfo_v2;
  ASSERT_EQ(nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, 1, 0, &profile), NVML_SUCCESS);
  EXPECT_STREQ(profile.name, "MIG 2c.4g.40gb");
  EXPECT_EQ(profile.instanceCount, 2u);
  EXPECT_EQ(nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, 2, 0, &profile), NVML_ERROR_NOT_SUPPORTED)
      << "no 3c on 4g";
  nvmlComputeInstance_t two = nullptr;
  nvmlComputeInstance_t one = nullptr;
  ASSERT_EQ(nvmlGpuInstanceCreateComputeInstance(instance, 1, &two), NVML_SUCCESS);
  ASSERT_EQ(nvmlGpuInstanceCreateComputeInstance(instance, 0, &one), NVML_SUCCESS);
  nvmlComputeInstanceInfo_t found{};
  ASSERT_EQ(nvmlComputeInstanceGetInfo_v2(one, &found), NVML_SUCCESS);
  EXPECT_EQ(found.placement.start, 2u);
  EXPECT_EQ(found.id, 1u);
  unsigned count = 9;
  ASSERT_EQ(nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, 0, &count), NVML_SUCCESS);
  EXPECT_EQ(count, 1u);
  nvmlComputeInstance_t none = nullptr;
  EXPECT_EQ(nvmlGpuInstanceCreateComputeInstance(instance, 1, &none), NVML_ERROR_INSUFFICIENT_RESOURCES);
  nvmlDevice_t mig = nullptr;
  char name[96];
  ASSERT_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_device(0), 1, &mig), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceGetName(mig, name, sizeof(name)), NVML_SUCCESS);
  EXPECT_STREQ(name, "NVIDIA H100 80GB HBM3 MIG 1c.4g.40gb");
}

}  // namespace
}  // namespace gpulet::sim
