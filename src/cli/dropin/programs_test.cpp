// The command as a process, on the simulated driver.
#include "cli/dropin/programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mps/test_mps_node.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

class MpsCommand : public testing::Test {
 protected:
  MpsCommand() {
    mps_node_.root.install_program("nvidia-smi", GPULET_SIM_SMI);
    install_driver();
    write_config(4);
    options_.root = mps_node_.root.mps_root();
    options_.sources.drop_in = true;
    options_.sources.flags["config-file"] = {config_file()};
    options_.sources.environment["CONTAINER_DRIVER_ROOT"] = mps_node_.root.driver_root();
  }
  ~MpsCommand() override {
    if (child_ > 0) stop_program(SIGKILL);
  }

  std::string library_path() const {
    return mps_node_.root.driver_root() + "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1";
  }
  void install_driver() const {
    std::filesystem::create_directories(std::filesystem::path(library_path()).parent_path());
    std::filesystem::copy_file(GPULET_SIM_LIBRARY, library_path(),
                               std::filesystem::copy_options::overwrite_existing);
  }
  std::string config_file() const { return mps_node_.root.driver_root() + "/../config.yaml"; }
  void write_config(unsigned replicas) const {
    const auto written = write_file_atomic(
        config_file(),
        "version: v1\nsharing:\n  mps:\n    resources:\n    - {name: nvidia.com/gpu, replicas: " +
            std::to_string(replicas) + "}\n");
    ASSERT_TRUE(written);
  }
  void start_program() {
    child_ = ::fork();
    if (child_ == 0) ::_exit(run_mps_control_daemon(options_));
  }
  int stop_program(int signal) {
    ::kill(child_, signal);
    int status = -1;
    ::waitpid(std::exchange(child_, -1), &status, 0);
    return status;
  }
  bool wait_until_ready() {
    return mps_node_.wait_until([&] { return std::filesystem::exists(mps::ready_file(options_.root)); });
  }

  mps::TestMpsNode mps_node_;
  MpsOptions options_;
  pid_t child_ = -1;
};

TEST_F(MpsCommand, RunsTheDaemonsOfTheConfigUntilASignal) {
  start_program();
  ASSERT_TRUE(wait_until_ready());
  EXPECT_EQ(mps_node_.send_command("get_default_active_thread_percentage"), "25.0\n");
  EXPECT_EQ(mps_node_.modes(), (std::vector<unsigned>{3, 3, 3, 3}));
  const auto daemon = mps_node_.pid();
  write_config(2);
  ASSERT_TRUE(mps_node_.wait_until(
      [&] { return mps_node_.send_command("get_default_active_thread_percentage") == "50.0\n"; }));
  EXPECT_EQ(mps_node_.pid(), daemon);
  ASSERT_TRUE(write_file_atomic(config_file(), "version: v1\nsharing: {mps: {resources: []}}\n"));
  ::kill(child_, SIGHUP);
  EXPECT_EQ(stop_program(SIGTERM), 0);
  EXPECT_EQ(mps_node_.send_command("get_server_list"), "gone");
  EXPECT_EQ(mps_node_.modes(), (std::vector<unsigned>{0, 0, 0, 0}));
  EXPECT_FALSE(std::filesystem::exists(mps::ready_file(options_.root)));
}

TEST_F(MpsCommand, ARestartAfterAKillAdoptsTheDaemon) {
  start_program();
  ASSERT_TRUE(wait_until_ready());
  const auto daemon = mps_node_.pid();
  EXPECT_TRUE(WIFSIGNALED(stop_program(SIGKILL)));
  EXPECT_EQ(mps_node_.pid(), daemon);
  std::filesystem::remove(mps::ready_file(options_.root));
  start_program();
  ASSERT_TRUE(wait_until_ready());
  EXPECT_EQ(mps_node_.pid(), daemon);
  EXPECT_EQ(stop_program(SIGTERM), 0);
}

TEST_F(MpsCommand, WaitsForADriver) {
  // One that is only being installed.
  ASSERT_TRUE(write_file_atomic(library_path(), ""));
  start_program();
  mps_node_.run_for(100ms);
  EXPECT_FALSE(std::filesystem::exists(mps::ready_file(options_.root)));
  install_driver();
  ASSERT_TRUE(wait_until_ready());
  EXPECT_EQ(stop_program(SIGTERM), 0);
}

TEST_F(MpsCommand, EndsWhenNoDaemonServes) {
  options_.serve_limit = 200ms;
  std::filesystem::remove(mps_node_.root.control_program());
  testing::internal::CaptureStderr();
  start_program();
  int status = -1;
  ::waitpid(std::exchange(child_, -1), &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, testing::HasSubstr("mps-control-daemon: no MPS control daemon serves: "));
  EXPECT_EQ(mps_node_.modes(), (std::vector<unsigned>{0, 0, 0, 0})) << "compute modes are restored";
}

TEST_F(MpsCommand, IdlesWithoutMpsSharing) {
  options_.serve_limit = 200ms;
  ASSERT_TRUE(write_file_atomic(config_file(), "version: v1\n"));
  start_program();
  mps_node_.run_for(1s);
  EXPECT_EQ(stop_program(SIGTERM), 0);
}

TEST_F(MpsCommand, InvalidSettingsFailTheStart) {
  ASSERT_TRUE(write_file_atomic(config_file(), "version: v1\nsharing: {mps: {resources: []}}\n"));
  EXPECT_EQ(run_mps_control_daemon(options_), 1);
}

TEST_F(MpsCommand, MountShmReportsTheError) {
  ASSERT_TRUE(write_file_atomic(options_.root, "a file"));
  EXPECT_EQ(mount_mps_shm(options_.root), 1);
}

}  // namespace
}  // namespace gpulet::cli
