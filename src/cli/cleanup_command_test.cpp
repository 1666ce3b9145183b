#include "cli/cleanup_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/cordon_care.h"
#include "base/file.h"
#include "base/presence.h"

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
    options_.folders = {root_ + "/cdi", root_ + "/lib", root_ + "/lib", root_ + "/run", ""};
    options_.kubelet_dir = root_ + "/kubelet";
    ASSERT_TRUE(write_file_atomic(root_ + "/run/health.json", "{}"));
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  int run() {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = cleanup(options_);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }
  bool report_is_there() const { return std::filesystem::exists(root_ + "/run/health.json"); }

  std::string root_, out_, err_;
  CleanupOptions options_;
};

TEST_F(CleanupCommandTest, SaysWhatItHasRemoved) {
  EXPECT_EQ(run(), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("removed " + root_ + "/run/health.json\n"));
  EXPECT_THAT(out_, HasSubstr("no cluster is known here"));
  EXPECT_FALSE(report_is_there());
  EXPECT_FALSE(std::filesystem::exists(agent::presence_file(root_ + "/lib")));
}

TEST_F(CleanupCommandTest, TouchesNothingWhileAnAgentRuns) {
  const auto agent = Presence::hold(agent::presence_file(root_ + "/lib"));
  ASSERT_TRUE(agent);
  options_.limit = "50ms";
  EXPECT_EQ(run(), 1);
  EXPECT_THAT(err_, HasSubstr("not within 50ms: the end of the agent of this node"));
  EXPECT_TRUE(report_is_there());
}

TEST_F(CleanupCommandTest, WhatCannotBeIsRefused) {
  options_.limit = "soon";
  EXPECT_EQ(run(), 2);
  EXPECT_THAT(err_, HasSubstr("'soon'"));
  EXPECT_TRUE(report_is_there());

  testing::internal::CaptureStderr();
  for (const char* name : {"gpulet-cleanup", "a/", "/b", "a/b/c"})
    EXPECT_EQ(await_daemon_set(name, "1s"), 2) << name;
  EXPECT_EQ(await_daemon_set("a/b", "1s"), 1) << "no cluster";
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace gpulet::cli
