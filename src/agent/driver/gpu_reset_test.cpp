#include "agent/driver/gpu_reset.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/file.h"

namespace gpulet::agent {
namespace {

TEST(GpuReset, NamesTheCauseOfAFailure) {
  const std::pair<const char*, const char*> rows[] = {
      {"", ""},
      {"\n", ""},
      {"Insufficient Permissions\n", "Insufficient Permissions"},
      {"The following GPUs could not be reset:\n  GPU 00000000:1B:00.0: In use by another client\n\n1 device "
       "is "
       "currently being used by one or more other processes\n",
       "GPU 00000000:1B:00.0: In use by another client"},
      {"The following GPUs could not be reset:\n", "The following GPUs could not be reset:"},
      {"\x1b[31mno\n", "?[31mno"},
  };
  for (const auto& [output, expected] : rows) EXPECT_EQ(reset_failure(output), expected) << output;
  EXPECT_EQ(reset_failure(std::string(2000, 'x')).size(), 512u);
}

class GpuResetTest : public testing::Test {
 protected:
  GpuResetTest() {
    char name[] = "/tmp/gpulet-reset-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  ~GpuResetTest() override { std::filesystem::remove_all(root_); }
  void install_program(const std::string& script) {
    const auto path = root_ + "/usr/bin/nvidia-smi";
    ASSERT_TRUE(write_file_atomic(path, "#!/bin/sh\n" + script, 0755));
  }
  Status reset(Duration limit = std::chrono::seconds(30)) {
    return reset_gpus(root_, {DeviceUuid("GPU-a"), DeviceUuid("GPU-b")}, limit);
  }
  std::string root_;
};

TEST_F(GpuResetTest, RunsTheDriversProgramOnceForAllGpus) {
  install_program("echo \"$@\" > " + root_ + "/said\n");
  const auto done = reset();
  EXPECT_TRUE(done) << done.error().full_message();
  EXPECT_EQ(read_file(root_ + "/said").value_or(""), "--gpu-reset -i GPU-a,GPU-b\n");
}

TEST_F(GpuResetTest, SaysWhyItFailed) {
  install_program("echo 'GPU 1 could not be reset: in use'\nexit 19\n");
  const auto failed = reset();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(failed.error().message(), "nvidia-smi: GPU 1 could not be reset: in use (exit code 19)");
}

TEST_F(GpuResetTest, AProgramThatCannotStartIsNoRefusal) {
  install_program("exit 0\n");
  ASSERT_EQ(::chmod((root_ + "/usr/bin/nvidia-smi").c_str(), 0644), 0);
  const auto failed = reset();
  ASSERT_FALSE(failed);
  EXPECT_TRUE(failed.error().code() == Code::kPermissionDenied || failed.error().code() == Code::kNotFound)
      << failed.error().full_message();
}

TEST_F(GpuResetTest, EndsAProgramThatHangs) {
  install_program("kill -STOP $$\n");
  const auto failed = reset(std::chrono::seconds(1));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(failed.error().message(), "nvidia-smi did not end in 1 s");
}

}  // namespace
}  // namespace gpulet::agent
