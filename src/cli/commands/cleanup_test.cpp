#include "cli/commands/cleanup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/health/operator_interface.h"
#include "base/file.h"
#include "base/process.h"

namespace gpulet::cli {
namespace {

using testing::HasSubstr;

// On a node without a cluster.
class CleanupCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("KUBECONFIG");
    ::unsetenv("KUBERNETES_SERVICE_HOST");
    std::string path = testing::TempDir() + "cleanup.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
    options_.directories = {root_ + "/cdi", root_ + "/lib", root_ + "/lib", root_ + "/run", ""};
    options_.kubelet_dir = root_ + "/kubelet";
    ASSERT_TRUE(write_file_atomic(root_ + "/run/health.json", "{}"));
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  int run_and_capture() {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = run_cleanup(options_);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }
  bool report_exists() const { return std::filesystem::exists(root_ + "/run/health.json"); }

  std::string root_, out_, err_;
  CleanupOptions options_;
};

TEST_F(CleanupCommandTest, PrintsWhatItRemoved) {
  EXPECT_EQ(run_and_capture(), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("removed " + root_ + "/run/health.json\n"));
  EXPECT_THAT(out_, HasSubstr("no cluster is configured"));
  EXPECT_FALSE(report_exists());
  EXPECT_FALSE(std::filesystem::exists(agent::presence_path(root_ + "/lib")));
}

TEST_F(CleanupCommandTest, TouchesNothingWhileAnAgentRuns) {
  const auto agent = ProcessLock::acquire_lock(agent::presence_path(root_ + "/lib"));
  ASSERT_TRUE(agent);
  options_.limit = "50ms";
  EXPECT_EQ(run_and_capture(), 1);
  EXPECT_THAT(err_, HasSubstr("timed out after 50ms while waiting for the agent to exit"));
  EXPECT_TRUE(report_exists());
}

TEST_F(CleanupCommandTest, RejectsInvalidArguments) {
  options_.limit = "soon";
  EXPECT_EQ(run_and_capture(), 2);
  EXPECT_THAT(err_, HasSubstr("'soon'"));
  EXPECT_TRUE(report_exists());

  testing::internal::CaptureStderr();
  for (const char* name : {"gpulet-cleanup", "a/", "/b", "a/b/c"})
    EXPECT_EQ(wait_for_daemon_set(name, "1s"), 2) << name;
  EXPECT_EQ(wait_for_daemon_set("a/b", "1s"), 1) << "no cluster";
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace gpulet::cli
