#include "sim/driver/memory_limits.h"

#include <linux/capability.h>

#include <fstream>

#include "base/test_capabilities.h"
#include "sim/driver/driver_test.h"
#include "sim/state/mig.h"

namespace gpulet::sim {
namespace {

constexpr unsigned long long kLimitMiB = 1ULL << 20;

class MemoryLimitCallsTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    std::filesystem::create_directories(container());
    set_text(edit_machine()->driver.version, "615.71.09");
    edit_machine()->memory.mode = MemoryBackend::kDmem;
  }
  void TearDown() override {
    unsetenv("GPULET_SIM_CGROUP");
    DriverTest::TearDown();
  }

  std::string pod() const { return directory_ + "/pod"; }
  std::string container() const { return pod() + "/container"; }

  static nvmlReturn_t set(nvmlDevice_t device, const std::string& cgroup, unsigned long long mib) {
    nvmlSetMemoryLimits_v1_t limits{cgroup.c_str(), mib * kLimitMiB, mib * kLimitMiB};
    return nvmlDeviceSetMemoryLimits_v1(device, &limits);
  }
  static nvmlReturn_t clear(nvmlDevice_t device, const std::string& cgroup) {
    nvmlSetMemoryLimits_v1_t limits{cgroup.c_str(), 0, NVML_DEVICE_MEMORY_LIMIT_MAX};
    return nvmlDeviceSetMemoryLimits_v1(device, &limits);
  }
  static nvmlReturn_t get(nvmlDevice_t device, const std::string& cgroup,
                          nvmlGetMemoryLimits_v1_t* found = nullptr) {
    nvmlGetMemoryLimits_v1_t limits{};
    if (found == nullptr) found = &limits;
    found->nameSpace = cgroup.c_str();
    return nvmlDeviceGetMemoryLimits_v1(device, found);
  }
  static unsigned long long total_mib(nvmlDevice_t device) {
    nvmlMemory_v2_t memory{};
    memory.version = nvmlMemory_v2;
    EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_SUCCESS);
    return memory.total / kLimitMiB;
  }
};

TEST_F(MemoryLimitCallsTest, SetsReadsAndClears) {
  const auto device = gpu_device(1);
  ASSERT_EQ(set(device, container(), 3000), NVML_SUCCESS);
  ASSERT_TRUE(charge_memory(*edit_machine(), 1, 77, look_up_cgroup(container()).chain, 500 * kLimitMiB));
  nvmlGetMemoryLimits_v1_t found{};
  ASSERT_EQ(get(device, container(), &found), NVML_SUCCESS);
  EXPECT_EQ(found.softLimit, 3000 * kLimitMiB);
  EXPECT_EQ(found.hardLimit, 3000 * kLimitMiB);
  EXPECT_EQ(found.currentUsed, 500 * kLimitMiB);
  edit_machine()->memory.misreported_hard = 7;
  ASSERT_EQ(get(device, container(), &found), NVML_SUCCESS);
  EXPECT_EQ(found.hardLimit, 7u);
  ASSERT_EQ(clear(device, container()), NVML_SUCCESS);
  ASSERT_EQ(get(device, container(), &found), NVML_SUCCESS);
  EXPECT_EQ(found.hardLimit, NVML_DEVICE_MEMORY_LIMIT_MAX);
}

TEST_F(MemoryLimitCallsTest, AnOlderDriverHasNoSuchFunction) {
  set_text(edit_machine()->driver.version, "610.43.02");
  run_without_capability(CAP_SYS_ADMIN, [this] {
    EXPECT_EQ(set(gpu_device(0), container(), 10), NVML_ERROR_FUNCTION_NOT_FOUND);
    EXPECT_EQ(get(gpu_device(0), container()), NVML_ERROR_FUNCTION_NOT_FOUND);
  });
}

TEST_F(MemoryLimitCallsTest, RefusesArgumentsAndCgroups) {
  const auto device = gpu_device(0);
  EXPECT_EQ(nvmlDeviceSetMemoryLimits_v1(device, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetMemoryLimits_v1(device, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  nvmlSetMemoryLimits_v1_t nameless{};
  EXPECT_EQ(nvmlDeviceSetMemoryLimits_v1(device, &nameless), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(set(nullptr, container(), 10), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(set(device, container(), 90'000), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(set(device, pod() + "/gone", 10), NVML_ERROR_OPERATING_SYSTEM);
  EXPECT_EQ(get(device, pod() + "/gone"), NVML_ERROR_OPERATING_SYSTEM);
  EXPECT_EQ(set(device, "", 10), NVML_ERROR_OPERATING_SYSTEM);
  std::ofstream(container() + "/tasks") << "";
  EXPECT_EQ(set(device, container(), 10), NVML_ERROR_NOT_SUPPORTED) << "cgroup version 1";
  edit_machine()->memory.mode = MemoryBackend::kOff;
  EXPECT_EQ(set(device, pod(), 10), NVML_ERROR_NOT_SUPPORTED);
}

TEST_F(MemoryLimitCallsTest, SettingNeedsAnAdministrator) {
  ASSERT_EQ(set(gpu_device(0), container(), 10), NVML_SUCCESS);
  run_without_capability(CAP_SYS_ADMIN, [this] {
    EXPECT_EQ(set(gpu_device(0), container(), 20), NVML_ERROR_NO_PERMISSION);
    EXPECT_EQ(clear(gpu_device(0), container()), NVML_ERROR_NO_PERMISSION);
    EXPECT_EQ(get(gpu_device(0), container()), NVML_SUCCESS);
  });
}

TEST_F(MemoryLimitCallsTest, MigHasNoLimits) {
  {
    const auto machine = edit_machine();
    GpuInstance* instance = nullptr;
    ComputeInstance* compute = nullptr;
    ASSERT_EQ(set_mig_mode(machine->gpus[0], true), MigOutcome::kOk);
    ASSERT_EQ(create_gpu_instance(machine->gpus[0], 19, std::nullopt, &instance), MigOutcome::kOk);
    ASSERT_EQ(create_compute_instance(machine->gpus[0], *instance, 0, std::nullopt, &compute),
              MigOutcome::kOk);
  }
  nvmlDevice_t mig = nullptr;
  ASSERT_EQ(nvmlDeviceGetMigDeviceHandleByIndex(gpu_device(0), 0, &mig), NVML_SUCCESS);
  for (const auto device : {gpu_device(0), mig}) {
    EXPECT_EQ(set(device, container(), 10), NVML_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(get(device, container()), NVML_ERROR_NOT_SUPPORTED);
  }
}

TEST_F(MemoryLimitCallsTest, AFreshCgroupOnMiscIsNoProofOfAnything) {
  edit_machine()->memory.mode = MemoryBackend::kMisc;
  EXPECT_EQ(get(gpu_device(0), container()), NVML_ERROR_NOT_SUPPORTED);
  ASSERT_EQ(set(gpu_device(0), container(), 10), NVML_SUCCESS);
  EXPECT_EQ(get(gpu_device(0), container()), NVML_SUCCESS);
  EXPECT_EQ(get(gpu_device(0), pod()), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(clear(gpu_device(0), pod()), NVML_ERROR_NOT_FOUND);
}

TEST_F(MemoryLimitCallsTest, ARemovedCgroupKeepsItsLimitOnMiscOnly) {
  for (const auto backend : {MemoryBackend::kMisc, MemoryBackend::kDmem}) {
    edit_machine()->memory.mode = backend;
    ASSERT_EQ(set(gpu_device(0), container(), 10), NVML_SUCCESS);
    std::filesystem::remove(container());
    EXPECT_EQ(get(gpu_device(0), container()), NVML_ERROR_OPERATING_SYSTEM);
    std::filesystem::create_directory(container());
    nvmlGetMemoryLimits_v1_t found{};
    ASSERT_EQ(get(gpu_device(0), container(), &found), NVML_SUCCESS);
    EXPECT_EQ(found.hardLimit == 10 * kLimitMiB, backend == MemoryBackend::kMisc);
  }
}

TEST_F(MemoryLimitCallsTest, AProcessSeesTheLimitOfItsOwnCgroupAsTheGpusMemory) {
  const auto device = gpu_device(0);
  const auto whole = total_mib(device);
  setenv("GPULET_SIM_CGROUP", container().c_str(), 1);
  ASSERT_EQ(set(device, pod(), 4000), NVML_SUCCESS);
  EXPECT_EQ(total_mib(device), whole) << "a limit of a parent is enforced, not shown";
  ASSERT_EQ(set(device, container(), 3000), NVML_SUCCESS);
  EXPECT_EQ(total_mib(device), 3000u);
  EXPECT_EQ(total_mib(gpu_device(1)), whole);
  ASSERT_TRUE(charge_memory(*edit_machine(), 0, 77, look_up_cgroup(container()).chain, 500 * kLimitMiB));
  nvmlMemory_v2_t memory{};
  memory.version = nvmlMemory_v2;
  ASSERT_EQ(nvmlDeviceGetMemoryInfo_v2(device, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used, 500 * kLimitMiB);
  EXPECT_EQ(memory.free, 2500 * kLimitMiB);
  unsetenv("GPULET_SIM_CGROUP");
  EXPECT_EQ(total_mib(device), whole) << "this process is in no limited cgroup";
}

}  // namespace
}  // namespace gpulet::sim
