// Test fixture with an open driver root and its first GPU.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "nvml/session.h"
#include "nvml/test_sim_root.h"

namespace gpulet::nvml {

// Expects that the driver lacks `function`, or the GPU the reading.
template <class T>
void expect_unsupported(const Result<T>& reading, const std::string& function) {
  ASSERT_FALSE(reading) << function;
  EXPECT_EQ(reading.error().code(), Code::kUnsupported) << reading.error().full_message();
  EXPECT_EQ(reading.error().message().rfind(function + ": ", 0), 0u) << reading.error().full_message();
}

class DriverTest : public testing::Test {
 protected:
  // Arguments are those of SimRoot.
  template <class... Root>
  explicit DriverTest(Root&&... root) : root_(std::forward<Root>(root)...) {}
  void SetUp() override {
    auto opened = Session::open_session(root_.sim_root());
    ASSERT_TRUE(opened) << opened.error().full_message();
    session_ = *opened;
    gpu_ = *session_->device(0);
  }

  SimRoot root_;
  std::shared_ptr<const Session> session_;
  Device gpu_;
};

}  // namespace gpulet::nvml
