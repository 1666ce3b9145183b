#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "sim/driver/driver_test.h"

namespace gpulet::sim {
namespace {

using namespace std::chrono_literals;

TEST_F(DriverTest, ALostGpuDoesNotAffectOthers) {
  const nvmlDevice_t lost = gpu_device(1);
  std::string uuid = state_.lock_for_read()->gpus[1].uuid;
  edit_machine()->gpus[1].faults.lost = 1;
  unsigned value = 0;
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(nvmlDeviceGetPowerUsage(lost, &value), NVML_ERROR_GPU_IS_LOST);
  EXPECT_EQ(nvmlDeviceGetSupportedVgpus(lost, &value, nullptr), NVML_ERROR_GPU_IS_LOST);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(1, &device), NVML_ERROR_GPU_IS_LOST);
  EXPECT_EQ(nvmlDeviceGetHandleByUUID(uuid.c_str(), &device), NVML_ERROR_GPU_IS_LOST);
  EXPECT_EQ(nvmlDeviceGetPowerUsage(gpu_device(0), &value), NVML_SUCCESS);
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  EXPECT_EQ(count, kGpus);
  heal_gpu(edit_machine()->gpus[1]);
  EXPECT_EQ(nvmlDeviceGetPowerUsage(lost, &value), NVML_SUCCESS);
}

void set_answer(Machine& machine, const char* call, std::uint32_t gpu, std::uint32_t nvml_return) {
  Answer& answer = machine.answers[machine.answer_count++];
  std::snprintf(answer.call, sizeof answer.call, "%s", call);
  answer.gpu = gpu;
  answer.nvml_return = nvml_return;
}

TEST_F(DriverTest, AnAnswerReplacesOneFunctionOfOneGpu) {
  set_answer(*edit_machine(), "nvmlDeviceGetPowerUsage", 1, NVML_ERROR_NOT_READY);
  unsigned value = 0;
  EXPECT_EQ(nvmlDeviceGetPowerUsage(gpu_device(1), &value), NVML_ERROR_NOT_READY);
  EXPECT_EQ(nvmlDeviceGetPowerUsage(gpu_device(0), &value), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetMinorNumber(gpu_device(1), &value), NVML_SUCCESS);
  edit_machine()->answer_count = 0;
  EXPECT_EQ(nvmlDeviceGetPowerUsage(gpu_device(1), &value), NVML_SUCCESS);
}

TEST_F(DriverTest, AnAnswerToAnyOptionalCallLeavesGpusFindable) {
  set_answer(*edit_machine(), "*", kMaxGpus, NVML_ERROR_UNKNOWN);
  unsigned value = 0;
  char text[96];
  nvmlPciInfo_t pci{};
  EXPECT_EQ(nvmlDeviceGetCount_v2(&value), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetUUID(gpu_device(0), text, sizeof text), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetPciInfo_v3(gpu_device(0), &pci), NVML_SUCCESS);
  EXPECT_EQ(nvmlSystemGetDriverVersion(text, sizeof text), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetName(gpu_device(0), text, sizeof text), NVML_ERROR_UNKNOWN);
  EXPECT_EQ(nvmlSystemGetCudaDriverVersion_v2(reinterpret_cast<int*>(&value)), NVML_ERROR_UNKNOWN);
  // A function that this driver does not have answers too.
  EXPECT_EQ(nvmlDeviceGetSupportedVgpus(gpu_device(0), &value, nullptr), NVML_ERROR_UNKNOWN);
}

TEST_F(DriverTest, AHangingGpuBlocksOnlyItsOwnCalls) {
  const nvmlDevice_t hanging = gpu_device(2);
  edit_machine()->gpus[2].faults.hang = 1;
  std::promise<nvmlReturn_t> returned;
  auto result = returned.get_future();
  std::thread caller([&] {
    unsigned temperature = 0;
    returned.set_value(nvmlDeviceGetTemperature(hanging, NVML_TEMPERATURE_GPU, &temperature));
  });
  unsigned value = 0;
  EXPECT_EQ(nvmlDeviceGetPowerUsage(gpu_device(0), &value), NVML_SUCCESS);
  EXPECT_EQ(result.wait_for(50ms), std::future_status::timeout);
  EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  edit_machine()->gpus[2].faults.hang = 0;
  ASSERT_EQ(result.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(result.get(), NVML_SUCCESS);
  caller.join();
}

TEST_F(DriverTest, UnloadingTheDriverEndsAHang) {
  const nvmlDevice_t hanging = gpu_device(0);
  edit_machine()->gpus[0].faults.hang = 1;
  auto result = std::async(std::launch::async, [&] {
    unsigned power = 0;
    return nvmlDeviceGetPowerUsage(hanging, &power);
  });
  unload_driver(*edit_machine());
  ASSERT_EQ(result.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(result.get(), NVML_ERROR_DRIVER_NOT_LOADED);
}

TEST_F(DriverTest, AHangingDriverBlocksInit) {
  edit_machine()->driver.hang = 1;
  auto result = std::async(std::launch::async, [] { return nvmlInit_v2(); });
  EXPECT_EQ(result.wait_for(50ms), std::future_status::timeout);
  edit_machine()->driver.hang = 0;
  ASSERT_EQ(result.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(result.get(), NVML_SUCCESS);
}

TEST_F(DriverTest, ASlowGpuDelaysCalls) {
  const nvmlDevice_t slow = gpu_device(0);
  edit_machine()->gpus[0].faults.delay_us = 30'000;
  const auto before = std::chrono::steady_clock::now();
  unsigned power = 0;
  EXPECT_EQ(nvmlDeviceGetPowerUsage(slow, &power), NVML_SUCCESS);
  EXPECT_GE(std::chrono::steady_clock::now() - before, 30ms);
}

TEST_F(DriverTest, AReloadRequiresInit) {
  const nvmlDevice_t before = gpu_device(0);
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  edit_machine()->gpus[0].ecc[1][0].by_location[2] = 9;
  unload_driver(*edit_machine());
  unsigned value = 0;
  EXPECT_EQ(nvmlDeviceGetPowerUsage(before, &value), NVML_ERROR_DRIVER_NOT_LOADED);
  EXPECT_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
  load_driver(*edit_machine());
  EXPECT_EQ(nvmlDeviceGetPowerUsage(before, &value), NVML_ERROR_UNINITIALIZED);
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetPowerUsage(before, &value), NVML_ERROR_INVALID_ARGUMENT)
      << "a handle of the driver before";
  EXPECT_EQ(nvmlDeviceGetPowerUsage(gpu_device(0), &value), NVML_SUCCESS);
  unsigned long long errors = 1;
  EXPECT_EQ(nvmlDeviceGetTotalEccErrors(gpu_device(0), NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC,
                                        &errors),
            NVML_SUCCESS);
  EXPECT_EQ(errors, 0u);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED) << "users of the driver before do not count";
}

TEST_F(DriverTest, HoldsItsGpusWhileInitialised) {
  const auto is_held = [this](unsigned gpu) { return !check_unused(state_, *state_.lock_for_read(), gpu); };
  EXPECT_TRUE(is_held(0));
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  ASSERT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_TRUE(is_held(0)) << "of two users, one is left";
  ASSERT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_FALSE(is_held(0));

  ASSERT_EQ(nvmlInitWithFlags(NVML_INIT_FLAG_NO_ATTACH), NVML_SUCCESS);
  EXPECT_FALSE(is_held(0));
  EXPECT_FALSE(check_unused(state_, *state_.lock_for_read(), std::nullopt)) << "the module is in use";
  ASSERT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_TRUE(check_unused(state_, *state_.lock_for_read(), std::nullopt));

  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  unload_driver(*edit_machine());
  load_driver(*edit_machine());
  EXPECT_FALSE(is_held(0)) << "it has not initialised the new driver";
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_TRUE(is_held(0));
}

TEST_F(DriverTest, FindsANewMachineAtTheSamePath) {
  auto next = StateFile::create_state(state_.file_path(), *small_machine(2));
  ASSERT_TRUE(next) << next.error().full_message();
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_DRIVER_NOT_LOADED);
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
}

TEST_F(DriverTest, AReplacedCardHasAnotherIdentity) {
  const nvmlDevice_t old = gpu_device(1);
  char before[96];
  char after[96];
  ASSERT_EQ(nvmlDeviceGetUUID(old, before, sizeof(before)), NVML_SUCCESS);
  replace_gpu(*edit_machine(), 1);
  EXPECT_EQ(nvmlDeviceGetUUID(old, after, sizeof(after)), NVML_ERROR_GPU_IS_LOST);
  ASSERT_EQ(nvmlDeviceGetUUID(gpu_device(1), after, sizeof(after)), NVML_SUCCESS);
  EXPECT_STRNE(before, after);
  nvmlDevice_t found = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByUUID(before, &found), NVML_ERROR_NOT_FOUND);
}

TEST_F(DriverTest, InitReturnsTheInjectedError) {
  edit_machine()->driver.init_error = NVML_ERROR_LIB_RM_VERSION_MISMATCH;
  EXPECT_EQ(nvmlInit_v2(), NVML_ERROR_LIB_RM_VERSION_MISMATCH);
  edit_machine()->gpus[0].faults.error = NVML_ERROR_RESET_REQUIRED;
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_ERROR_RESET_REQUIRED);
}

TEST_F(DriverTest, ProcessesShareTheMachine) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    nvmlDevice_t device = nullptr;
    const bool done = nvmlDeviceGetHandleByIndex_v2(3, &device) == NVML_SUCCESS &&
                      nvmlDeviceSetPowerManagementLimit(device, 350'000) == NVML_SUCCESS;
    _exit(done ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  unsigned limit = 0;
  EXPECT_EQ(nvmlDeviceGetEnforcedPowerLimit(gpu_device(3), &limit), NVML_SUCCESS);
  EXPECT_EQ(limit, 350'000u);
}

TEST_F(DriverTest, SupportsManyThreads) {
  std::atomic<unsigned> failures{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 200; ++i) {
        if (nvmlInit_v2() != NVML_SUCCESS) ++failures;
        nvmlDevice_t device = nullptr;
        char name[96];
        if (nvmlDeviceGetHandleByIndex_v2(t, &device) != NVML_SUCCESS) ++failures;
        if (nvmlDeviceGetName(device, name, sizeof(name)) != NVML_SUCCESS) ++failures;
        if (nvmlDeviceSetPersistenceMode(device, NVML_FEATURE_ENABLED) != NVML_SUCCESS) ++failures;
        if (nvmlShutdown() != NVML_SUCCESS) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0u);
}

}  // namespace
}  // namespace gpulet::sim
