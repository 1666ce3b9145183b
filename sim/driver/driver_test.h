// A machine of its own for each test, and the library in this process turned to it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "sim/driver/abi.h"
#include "sim/state/small_machine.h"

// The old calls are what old clients make.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace gpulet::sim {

class DriverTest : public testing::Test {
 protected:
  static constexpr unsigned kGpus = 4;

  void SetUp() override {
    char folder[] = "/tmp/gpulet-sim-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    auto made = StateFile::create(folder_ + "/state", *small_machine(kGpus));
    ASSERT_TRUE(made) << made.error().text();
    state_ = std::move(*made);
    setenv("GPULET_SIM_STATE", state_.path().c_str(), 1);
    ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  }

  void TearDown() override {
    while (nvmlShutdown() == NVML_SUCCESS) {
    }
    unsetenv("GPULET_SIM_STATE");
    std::filesystem::remove_all(folder_);
  }

  EditGuard edit() { return state_.edit(); }

  nvmlDevice_t gpu(unsigned index) {
    nvmlDevice_t device = nullptr;
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(index, &device), NVML_SUCCESS);
    return device;
  }

  StateFile state_;
  std::string folder_;
};

}  // namespace gpulet::sim
