// For tests: what a command writes, and its exit code.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace gpulet::cli {

struct Said {
  int code;
  std::string out, error;
};

// Runs it with the process' standard output and standard error caught.
inline Said said_by(const std::function<int()>& command) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = command();
  return {code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

}  // namespace gpulet::cli
