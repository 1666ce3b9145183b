#include "cli/commands/cleanup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

#include "agent/health/operator_interface.h"
#include "agent/remediation/repair_outputs.h"
#include "base/file.h"
#include "base/process.h"
#include "cdi/spec_files.h"

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

// Without the driver, which may come back.
TEST_F(CleanupCommandTest, KeepsTheRecordOfPowerLimitsThatItCannotRestore) {
  const std::string record = root_ + "/lib/power.json";
  ASSERT_TRUE(write_file_atomic(
      record, R"({"version":1,"gpus":{"GPU-a":{"beforeMilliwatts":700000,"setMilliwatts":[500000]}}})"));
  options_.driver_root = root_ + "/nowhere";
  EXPECT_EQ(run_and_capture(), 1);
  EXPECT_THAT(err_, HasSubstr("gpulet cleanup: cannot restore power limits: "));
  EXPECT_TRUE(std::filesystem::exists(record));
}

TEST_F(CleanupCommandTest, PrintsWhatItRemoved) {
  EXPECT_EQ(run_and_capture(), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("removed " + root_ + "/run/health.json\n"));
  EXPECT_THAT(out_, HasSubstr("no cluster is configured"));
  EXPECT_FALSE(report_exists());
  EXPECT_FALSE(std::filesystem::exists(agent::presence_path(root_ + "/lib")));
}

TEST_F(CleanupCommandTest, AnUnusableKubeconfigKeepsNothingOnTheNode) {
  ::setenv("KUBECONFIG", (root_ + "/none").c_str(), 1);
  EXPECT_EQ(run_and_capture(), 1);
  EXPECT_THAT(err_, HasSubstr(root_ + "/none: cannot open"));
  EXPECT_FALSE(report_exists());
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

namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class FileCleanupTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "node_files.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
    directories_ = {.spec_dir = root_ + "/cdi",
                    .hook_dir = root_ + "/lib",
                    .state_dir = root_ + "/lib",
                    .run_dir = root_ + "/run",
                    .device_plugin_dir = root_ + "/plugins",
                    .plugins_dir = root_ + "/claims",
                    .plugin_registry_dir = root_ + "/registry"};
    for (const char* directory : {"lib", "run", "plugins"})
      ASSERT_TRUE(make_directories(root_ + "/" + directory));
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void put_file(const std::string& path) { ASSERT_TRUE(write_file_atomic(root_ + "/" + path, "x")) << path; }
  // Files below the root, without directories.
  std::vector<std::string> remaining_files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root_)) {
      if (!entry.is_directory()) names.push_back(entry.path().string().substr(root_.size() + 1));
    }
    return names;
  }

  std::string root_;
  NodeDirectories directories_;
};

cdi::Spec spec_of(const std::string& kind) {
  cdi::Spec spec;
  spec.kind = kind;
  spec.devices.push_back({.name = "0", .edits = {.env = {"A=b"}}});
  return spec;
}

TEST_F(FileCleanupTest, RemovesEverythingOfAnAgent) {
  ASSERT_TRUE(cdi::SpecDirectory(directories_.spec_dir)
                  .write_specs({spec_of("vendor.com/gpu"), spec_of("vendor.com/gds")}));
  for (const char* path :
       {"lib/gpulet-hook", "lib/health-state", "lib/gpu-preflight", "lib/usage", "lib/usage.broken",
        "lib/cordons", "lib/cordons.lock", "lib/agent-turn.lock", "lib/agent-standby.lock", "run/health.json",
        "run/agent.sock", "run/limits/agent.sock"})
    put_file(path);
  put_file("run/limits/" + std::string(64, 'a') + ".json");
  ASSERT_TRUE(
      write_file_atomic(root_ + "/run/reboot-required", std::string(agent::kSentinelHead) + "\nGPU 3\n"));
  ASSERT_TRUE(ProcessLock::acquire_lock(agent::presence_path(directories_.state_dir)));
  {
    const auto dead = bind_unix_socket(directories_.device_plugin_dir + "/nvidia-gpu.sock");
    ASSERT_TRUE(dead);
    ASSERT_TRUE(make_directories(root_ + "/claims/gpu.nvidia.com"));
    ASSERT_TRUE(make_directories(root_ + "/registry"));
    ASSERT_TRUE(bind_unix_socket(root_ + "/claims/gpu.nvidia.com/dra-1a2b3c4d.sock"));
    ASSERT_TRUE(bind_unix_socket(root_ + "/registry/gpu.nvidia.com-1a2b3c4d-reg.sock"));
  }

  const auto removed = remove_node_files(directories_);
  EXPECT_THAT(removed.errors, IsEmpty());
  EXPECT_EQ(removed.paths.size(), 20u);
  EXPECT_EQ(removed.paths.back(), agent::presence_path(directories_.state_dir))
      << "the lock keeps an agent away until then";
  EXPECT_THAT(remaining_files(), IsEmpty());

  const auto again = remove_node_files(directories_);
  EXPECT_THAT(again.paths, IsEmpty());
  EXPECT_THAT(again.errors, IsEmpty());
}

TEST_F(FileCleanupTest, KeepsFilesOfOthers) {
  ASSERT_TRUE(cdi::SpecDirectory(directories_.spec_dir)
                  .write_specs({spec_of("vendor.com/gpu"), spec_of("vendor.com/gds")}));
  put_file("cdi/vendor.com-gpu.json");  // changed by an operator
  put_file("cdi/other.json");
  put_file("lib/notes");
  put_file("run/other.sock");
  put_file("run/reboot-required");  // another program asks for a reboot
  put_file("run/limits/notes.json");
  put_file("plugins/kubelet_internal_checkpoint");
  const auto served = bind_unix_socket(directories_.device_plugin_dir + "/nvidia-gpu.sock");
  ASSERT_TRUE(served);
  ASSERT_TRUE(start_listening(*served, "nvidia-gpu.sock"));
  ASSERT_TRUE(make_directories(root_ + "/registry"));
  const auto registration = bind_unix_socket(root_ + "/registry/gpu.nvidia.com-reg.sock");
  ASSERT_TRUE(registration);
  ASSERT_TRUE(start_listening(*registration, "gpu.nvidia.com-reg.sock"));

  const auto removed = remove_node_files(directories_);
  EXPECT_THAT(removed.errors, IsEmpty());
  EXPECT_THAT(removed.paths, ElementsAre(root_ + "/cdi/vendor.com-gds.json"));
  EXPECT_THAT(remaining_files(),
              UnorderedElementsAre("cdi/vendor.com-gpu.json", "cdi/other.json", "lib/notes", "run/other.sock",
                                   "run/reboot-required", "run/limits/notes.json",
                                   "plugins/kubelet_internal_checkpoint", "plugins/nvidia-gpu.sock",
                                   "registry/gpu.nvidia.com-reg.sock"));
}

TEST_F(FileCleanupTest, CreatesNoMissingDirectories) {
  std::filesystem::remove_all(root_);
  const auto removed = remove_node_files(directories_);
  EXPECT_THAT(removed.paths, IsEmpty());
  EXPECT_THAT(removed.errors, IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(root_));
}

TEST_F(FileCleanupTest, ReportsWhatItCannotRemoveAndRemovesTheRest) {
  ASSERT_TRUE(make_directories(root_ + "/lib/gpulet-hook"));
  put_file("run/health.json");
  const auto removed = remove_node_files(directories_);
  ASSERT_EQ(removed.errors.size(), 1u);
  EXPECT_THAT(removed.errors[0].full_message(), testing::HasSubstr("gpulet-hook"));
  EXPECT_THAT(removed.paths, ElementsAre(root_ + "/run/health.json"));
}

}  // namespace

}  // namespace gpulet::cli
