// Whole agents, each as a process of its own, on a simulated node without a cluster.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/node.h"
#include "agent/power/power_record.h"
#include "base/file.h"
#include "nvml/test_sim_root.h"

namespace gpulet::agent {
namespace {

constexpr std::chrono::seconds kPowerPatience{40};

class PowerNodeTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = sim::StateFile::open_state(path(std::string(sim::kStatePathInRoot)));
    ASSERT_TRUE(opened) << opened.error().full_message();
    state_ = std::move(*opened);
  }
  void TearDown() override {
    for (const pid_t agent : agents_) ::kill(agent, SIGKILL);
    for (const pid_t agent : agents_) ::waitpid(agent, nullptr, 0);
  }

  std::string path(const std::string& name) const { return root_.sim_root() + "/" + name; }
  void write_config(const std::string& power) {
    ASSERT_TRUE(write_file_atomic(path("config.yaml"), "version: v1\ngpulet: {power: " + power + "}\n"));
  }
  pid_t start_agent() {
    const pid_t agent = ::fork();
    if (agent == 0) run_agent();
    agents_.push_back(agent);
    return agent;
  }
  [[noreturn]] void run_agent() {
    config::Sources sources;
    sources.environment = {{"CONFIG_FILE", path("config.yaml")},
                           {"DRIVER_ROOT_CTR_PATH", root_.sim_root()},
                           {"GPULET_STATE_DIR", path("state")},
                           {"GPULET_KUBELET_DIR", path("kubelet")},
                           {"GPULET_SOCKET", ""},
                           {"GPULET_LISTEN", ""},
                           {"GPULET_HEALTH_FILE", ""},
                           {"GPULET_KERNEL_LOG", ""},
                           {"GPULET_CREATE_DEVICE_NODES", "false"}};
    auto with_file = sources;
    if (!config::read_config_file(with_file)) ::_exit(3);
    auto loaded = config::load(with_file);
    if (!loaded) {
      std::fprintf(stderr, "%s\n", loaded.error().full_message().c_str());
      ::_exit(4);
    }
    ::_exit(run_node(std::move(sources), std::move(*loaded), "test") ? 0 : 5);
  }
  // 0: it ended as it was told to.
  int end_agent(pid_t agent, int signal) {
    ::kill(agent, signal);
    int status = -1;
    ::waitpid(agent, &status, 0);
    std::erase(agents_, agent);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int watts() const { return state_.lock_for_read()->gpus[0].power_limit_mw / 1000; }
  // Waits for changes of the machine.
  bool becomes_watts(int expected) const {
    const auto end = std::chrono::steady_clock::now() + kPowerPatience;
    for (;;) {
      const auto seen = state_.change_count();
      if (watts() == expected) return true;
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0) return false;
      state_.wait_for_change(seen, left.count());
    }
  }
  bool has_record() const { return std::filesystem::exists(path(std::string("state/") + kPowerFile)); }

  nvml::SimRoot root_;
  sim::StateFile state_;
  std::vector<pid_t> agents_;
};

TEST_F(PowerNodeTest, FollowsTheConfigAndRestoresAtTheEnd) {
  write_config("{rules: [{limit: 500W}]}");
  const pid_t agent = start_agent();
  ASSERT_TRUE(becomes_watts(500));
  write_config("{rules: [{limit: 500W, schedule: [{limit: 60%}]}]}");
  ASSERT_TRUE(becomes_watts(420)) << "live, and every day has that period";
  {
    const auto machine = root_.edit_machine();
    sim::unload_driver(*machine);
    sim::load_driver(*machine);
  }
  ASSERT_TRUE(becomes_watts(420)) << "the driver was loaded again";
  write_config("{rules: []}");
  ASSERT_TRUE(becomes_watts(700));
  write_config("{rules: [{nodeLabel: pool, limit: 400W}, {limit: 500W}]}");
  ASSERT_TRUE(becomes_watts(500)) << "the labels are known: there are none";
  EXPECT_TRUE(has_record());
  EXPECT_EQ(end_agent(agent, SIGTERM), 0);
  EXPECT_EQ(watts(), 700);
  EXPECT_FALSE(has_record());
}

TEST_F(PowerNodeTest, AKilledAgentsLimitIsRestoredByTheNext) {
  write_config("{rules: [{limit: 500W}]}");
  const pid_t killed = start_agent();
  ASSERT_TRUE(becomes_watts(500));
  end_agent(killed, SIGKILL);
  EXPECT_EQ(watts(), 500);
  write_config("{rules: []}");
  start_agent();
  EXPECT_TRUE(becomes_watts(700));
}

}  // namespace
}  // namespace gpulet::agent
