// For tests: a driver root of the test's own, opened, and its first GPU.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "nvml/session.h"
#include "nvml/test_sim_root.h"

namespace gpulet::nvml {

// Of what this driver has no function for, or says that the GPU has not.
template <class T>
void expect_absent(const Result<T>& reading, const std::string& function) {
  ASSERT_FALSE(reading) << function;
  EXPECT_EQ(reading.error().code(), Code::kUnsupported) << reading.error().text();
  EXPECT_EQ(reading.error().message().rfind(function + ": ", 0), 0u) << reading.error().text();
}

class OnDriver : public testing::Test {
 protected:
  // As SimRoot's.
  template <class... Root>
  explicit OnDriver(Root&&... root) : root_(std::forward<Root>(root)...) {}
  void SetUp() override {
    auto opened = Session::open(root_.path());
    ASSERT_TRUE(opened) << opened.error().text();
    session_ = *opened;
    gpu_ = *session_->device(0);
  }

  SimRoot root_;
  std::shared_ptr<const Session> session_;
  Device gpu_;
};

}  // namespace gpulet::nvml
