#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>

#include "sim/driver/driver_test.h"

namespace gpulet::sim {
namespace {

using namespace std::chrono_literals;

class EventTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_EQ(nvmlEventSetCreate(&set_), NVML_SUCCESS);
  }
  nvmlReturn_t wait_for_event(unsigned timeout_ms = 0) {
    data_ = {};
    return nvmlEventSetWait_v2(set_, &data_, timeout_ms);
  }
  nvmlEventSet_t set_ = nullptr;
  nvmlEventData_t data_{};
};

TEST_F(EventTest, DeliversByGpuAndMaskInOrder) {
  ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypeXidCriticalError, set_), NVML_SUCCESS);
  ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(2),
                                     nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError, set_),
            NVML_SUCCESS);
  {
    EditGuard machine = edit_machine();
    post_event(*machine, 1, kEventXid, 79);
    post_event(*machine, 0, kEventDoubleBitEcc, 0);
    post_event(*machine, 0, kEventXid, 48);
    post_event(*machine, 2, kEventDoubleBitEcc, 0, 1, 0);
  }
  ASSERT_EQ(wait_for_event(), NVML_SUCCESS);
  EXPECT_EQ(data_.device, gpu_device(0));
  EXPECT_EQ(data_.eventType, static_cast<unsigned long long>(nvmlEventTypeXidCriticalError));
  EXPECT_EQ(data_.eventData, 48u);
  EXPECT_EQ(data_.gpuInstanceId, 0xffffffffu);
  EXPECT_EQ(data_.computeInstanceId, 0xffffffffu);
  ASSERT_EQ(wait_for_event(), NVML_SUCCESS);
  EXPECT_EQ(data_.device, gpu_device(2));
  EXPECT_EQ(data_.gpuInstanceId, 1u);
  EXPECT_EQ(data_.computeInstanceId, 0u);
  EXPECT_EQ(wait_for_event(), NVML_ERROR_TIMEOUT);
}

TEST_F(EventTest, IgnoresEventsBeforeRegistration) {
  post_event(*edit_machine(), 0, kEventXid, 31);
  ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypeXidCriticalError, set_), NVML_SUCCESS);
  EXPECT_EQ(wait_for_event(), NVML_ERROR_TIMEOUT);
  post_event(*edit_machine(), 0, kEventXid, 32);
  ASSERT_EQ(wait_for_event(), NVML_SUCCESS);
  EXPECT_EQ(data_.eventData, 32u);
}

TEST_F(EventTest, EachSetGetsEachEvent) {
  nvmlEventSet_t other = nullptr;
  ASSERT_EQ(nvmlEventSetCreate(&other), NVML_SUCCESS);
  for (const nvmlEventSet_t set : {set_, other}) {
    ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypeXidCriticalError, set), NVML_SUCCESS);
  }
  post_event(*edit_machine(), 0, kEventXid, 43);
  EXPECT_EQ(wait_for_event(), NVML_SUCCESS);
  nvmlEventData_t data{};
  EXPECT_EQ(nvmlEventSetWait_v2(other, &data, 0), NVML_SUCCESS);
  EXPECT_EQ(data.eventData, 43u);
  EXPECT_EQ(nvmlEventSetFree(other), NVML_SUCCESS);
  EXPECT_EQ(nvmlEventSetFree(other), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlEventSetWait_v2(other, &data, 0), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(EventTest, WakesAWaiterFromAnotherProcess) {
  ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(3), nvmlEventTypeXidCriticalError, set_), NVML_SUCCESS);
  auto result = std::async(std::launch::async, [this] { return wait_for_event(20'000); });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    post_event(*state_.lock_for_edit(), 3, kEventXid, 94, 7, 0);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  ASSERT_EQ(result.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(result.get(), NVML_SUCCESS);
  EXPECT_EQ(data_.eventData, 94u);
  EXPECT_EQ(data_.gpuInstanceId, 7u);
}

TEST_F(EventTest, TimesOut) {
  ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypeXidCriticalError, set_), NVML_SUCCESS);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(wait_for_event(30), NVML_ERROR_TIMEOUT);
  EXPECT_GE(std::chrono::steady_clock::now() - before, 30ms);
}

TEST_F(EventTest, AReloadEndsTheWaitAndTheSet) {
  ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypeXidCriticalError, set_), NVML_SUCCESS);
  auto result = std::async(std::launch::async, [this] { return wait_for_event(20'000); });
  unload_driver(*edit_machine());
  ASSERT_EQ(result.wait_for(10s), std::future_status::ready);
  EXPECT_EQ(result.get(), NVML_ERROR_DRIVER_NOT_LOADED);
  load_driver(*edit_machine());
  EXPECT_EQ(wait_for_event(), NVML_ERROR_UNINITIALIZED);
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(wait_for_event(), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(EventTest, FailsPersistentlyOnAFault) {
  ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypeXidCriticalError, set_), NVML_SUCCESS);
  edit_machine()->driver.event_wait_error = NVML_ERROR_UNKNOWN;
  EXPECT_EQ(wait_for_event(5'000), NVML_ERROR_UNKNOWN);
  edit_machine()->driver.event_wait_error = 0;
  EXPECT_EQ(wait_for_event(), NVML_ERROR_TIMEOUT);
}

TEST_F(EventTest, RefusesUnsupportedEvents) {
  unsigned long long supported = 0;
  ASSERT_EQ(nvmlDeviceGetSupportedEventTypes(gpu_device(0), &supported), NVML_SUCCESS);
  EXPECT_NE(supported & nvmlEventTypeGpuRecoveryAction, 0u);
  EXPECT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypePowerSourceChange, set_),
            NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), 0, set_), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypeXidCriticalError, nullptr),
            NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(EventTest, Version1WritesNoInstances) {
  ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypeXidCriticalError, set_), NVML_SUCCESS);
  post_event(*edit_machine(), 0, kEventXid, 13);
  nvmlEventData_t data{};
  data.gpuInstanceId = 1234;
  ASSERT_EQ(nvmlEventSetWait(set_, &data, 0), NVML_SUCCESS);
  EXPECT_EQ(data.eventData, 13u);
  EXPECT_EQ(data.gpuInstanceId, 1234u);
}

TEST_F(EventTest, ALateWaiterMissesOnlyTheOldest) {
  ASSERT_EQ(nvmlDeviceRegisterEvents(gpu_device(0), nvmlEventTypeXidCriticalError, set_), NVML_SUCCESS);
  {
    EditGuard machine = edit_machine();
    for (std::uint64_t i = 0; i < kMaxEvents + 10; ++i) post_event(*machine, 0, kEventXid, i);
  }
  ASSERT_EQ(wait_for_event(), NVML_SUCCESS);
  EXPECT_EQ(data_.eventData, 10u);
}

}  // namespace
}  // namespace gpulet::sim
