// For tests: captures what a command prints.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "cli/main/command.h"

namespace gpulet::cli {

// Runs it with the standard output and standard error of this process captured.
inline CommandOutput run_captured(const std::function<int()>& command) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = command();
  return {code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

}  // namespace gpulet::cli
