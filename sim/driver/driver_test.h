// For tests: a machine for each test, used by the library in this process.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "sim/driver/call.h"
#include "sim/state/test_machine.h"

// Old clients use deprecated calls.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace gpulet::sim {

class DriverTest : public testing::Test {
 protected:
  static constexpr unsigned kGpus = 4;

  void SetUp() override {
    char directory[] = "/tmp/gpulet-sim-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    auto made = StateFile::create_state(directory_ + "/state", *small_machine(kGpus));
    ASSERT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
    setenv("GPULET_SIM_STATE", state_.file_path().c_str(), 1);
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  }

  void TearDown() override {
    while (nvmlShutdown() == NVML_SUCCESS) {
    }
    unsetenv("GPULET_SIM_STATE");
    std::filesystem::remove_all(directory_);
  }

  EditGuard edit_machine() { return state_.lock_for_edit(); }

  nvmlDevice_t gpu_device(unsigned index) {
    nvmlDevice_t device = nullptr;
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(index, &device), NVML_SUCCESS);
    return device;
  }

  StateFile state_;
  std::string directory_;
};

}  // namespace gpulet::sim
