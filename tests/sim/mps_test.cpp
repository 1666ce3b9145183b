// GPUs shared by MPS: the daemons that the agent runs, what a container is told of them, and what becomes of
// both when a daemon dies, the agent dies, or the config turns to something else.
#include <signal.h>

#include <filesystem>

#include "base/file.h"
#include "base/text.h"
#include "mps/shm.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimMps : public NodeTest {
 protected:
  void SetUp() override { up(); }
  std::string root() { return node().mps_root(); }
  std::string config(const std::string& sharing) {
    return "version: v1\nflags: {mpsRoot: " + root() + "}\n" + sharing;
  }
  std::string shared(unsigned replicas) {
    return config("sharing: {mps: {resources: [{name: gpu, devices: [0, 1], rename: gpu.shared, replicas: " +
                  std::to_string(replicas) + "}]}}\n");
  }
  void serve_with(const std::string& text) {
    write_config(text);
    start_agent({.arguments = {"--config-file=" + config_path()}});
  }
  // What the daemon answers to a command.
  std::string ask(const std::string& daemon, const std::string& command) {
    const auto said = cli::output_of(
        {"/bin/sh", "-c", "echo '" + command + "' | " + node().root() + "/usr/bin/nvidia-cuda-mps-control"},
        {"CUDA_MPS_PIPE_DIRECTORY=" + root() + "/" + daemon + "/pipe"});
    return said ? std::string(text::trim(*said)) : said.error().text();
  }
  pid_t daemon_id(const std::string& daemon) {
    const auto text = read_file(root() + "/" + daemon + "/pipe/nvidia-cuda-mps-control.pid");
    return text ? static_cast<pid_t>(std::stol(*text)) : 0;
  }
  unsigned compute_mode(std::uint32_t gpu) { return machine().read()->gpus[gpu].compute_mode; }
};

constexpr const char* kShared = "nvidia.com/gpu.shared";
constexpr unsigned kExclusiveProcess = 3;  // NVML_COMPUTEMODE_EXCLUSIVE_PROCESS

TEST_F(SimMps, ADaemonServesTheSharesWithTheirLimits) {
  serve_with(shared(4));
  ASSERT_TRUE(offered(8, kShared)) << log();
  ASSERT_TRUE(offered(6));
  EXPECT_EQ(ask(kShared, "get_default_active_thread_percentage"), "25.0");
  EXPECT_EQ(compute_mode(0), kExclusiveProcess);
  EXPECT_EQ(compute_mode(2), 0u);
  const auto grant = admit("client", 1, kShared);
  const auto& container = grant.containers.at(0);
  EXPECT_EQ(container.envs.at("CUDA_MPS_PIPE_DIRECTORY"), std::string("/mps/") + kShared + "/pipe");
  ASSERT_EQ(container.mounts.size(), 2u);
  EXPECT_EQ(container.mounts[0].host_path, root() + "/" + kShared + "/pipe");
  EXPECT_EQ(container.mounts[1].container_path, "/dev/shm");
}

TEST_F(SimMps, ADeadDaemonsSharesAreUnhealthyUntilItIsBack) {
  serve_with(shared(2));
  ASSERT_TRUE(offered(4, kShared)) << log();
  const pid_t first = daemon_id(kShared);
  ASSERT_GT(first, 0);
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(wait_for([](const auto& state) { return find(state, kShared)->allocatable() == 0; })) << log();
  EXPECT_NE(said("MpsDaemonUnhealthy", kShared), "");
  ASSERT_TRUE(offered(4, kShared));
  EXPECT_TRUE(offered(6));
  EXPECT_NE(daemon_id(kShared), first);
}

TEST_F(SimMps, AKilledAgentLeavesTheDaemonToTheNext) {
  serve_with(shared(2));
  ASSERT_TRUE(offered(4, kShared)) << log();
  const pid_t first = daemon_id(kShared);
  node().kill_agent();
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(offered(4, kShared)) << log();
  EXPECT_EQ(daemon_id(kShared), first);
}

TEST_F(SimMps, AConfigWithoutItPutsEverythingBack) {
  serve_with(shared(2));
  ASSERT_TRUE(offered(4, kShared)) << log();
  const pid_t daemon = daemon_id(kShared);
  write_config(config(""));
  ASSERT_TRUE(offered(8));
  EXPECT_TRUE(
      eventually([&] { return ::kill(daemon, 0) != 0 && compute_mode(0) == 0 && compute_mode(1) == 0; }));
  EXPECT_FALSE(mps::shm_is_mounted(root()));
  write_config(shared(2));
  ASSERT_TRUE(offered(4, kShared)) << log();
  EXPECT_EQ(mps::shm_is_mounted(root()), ::geteuid() == 0);
}

TEST_F(SimMps, AnAgentThatIsStartedWithoutItEndsWhatTheLastOneLeft) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount";
  serve_with(shared(2));
  ASSERT_TRUE(offered(4, kShared)) << log();
  const pid_t daemon = daemon_id(kShared);
  node().kill_agent();
  write_config(config(""));
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(offered(8));
  EXPECT_TRUE(
      eventually([&] { return ::kill(daemon, 0) != 0 && compute_mode(0) == 0 && compute_mode(1) == 0; }));
  EXPECT_FALSE(mps::shm_is_mounted(root()));
}

TEST_F(SimMps, TheFirstProcessOfAContainerEndsItsDaemonsWithItself) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, for a pid namespace";
  write_config(shared(2));
  start_agent({.arguments = {"--config-file=" + config_path()},
               .launcher = {"/usr/bin/unshare", "--pid", "--fork", "--kill-child=TERM"}});
  ASSERT_TRUE(offered(4, kShared)) << log();
  EXPECT_EQ(compute_mode(0), kExclusiveProcess);
  agent_may_end();
  node().kill_agent();  // unshare, with which the agent is told to end
  EXPECT_TRUE(eventually([&] { return compute_mode(0) == 0 && compute_mode(1) == 0; })) << log();
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(root() + "/" + kShared + "/.started"); }));
  EXPECT_TRUE(eventually([&] { return !mps::shm_is_mounted(root()); }));
}

TEST_F(SimMps, AnAgentOfAPodEndsItsDaemonsInOrder) {
  write_config(shared(2));
  start_agent({.arguments = {"--config-file=" + config_path()},
               .environment = {"KUBERNETES_SERVICE_HOST=127.0.0.1", "NODE_NAME=node-1"}});
  ASSERT_TRUE(offered(4, kShared)) << log();
  const pid_t daemon = daemon_id(kShared);
  agent_may_end();
  ASSERT_TRUE(node().stop_agent()) << log();
  EXPECT_TRUE(eventually([&] { return ::kill(daemon, 0) != 0; }));  // once whoever inherits it has seen it
  EXPECT_EQ(compute_mode(0), 0);
  EXPECT_FALSE(std::filesystem::exists(root() + "/" + kShared + "/.started"));
  EXPECT_FALSE(mps::shm_is_mounted(root()));
}

TEST_F(SimMps, UnequalSharesOfOneGpuHaveTheirLimitsInTheContainer) {
  serve_with(config("gpulet: {partition: [{devices: [6], mps: {shares: [60, 40]}}]}\n"));
  ASSERT_TRUE(offered(1, "nvidia.com/gpu.mps-60")) << log();
  ASSERT_TRUE(offered(1, "nvidia.com/gpu.mps-40"));
  ASSERT_TRUE(offered(7));
  const auto large = admit("large", 1, "nvidia.com/gpu.mps-60").containers.at(0);
  const auto small = admit("small", 1, "nvidia.com/gpu.mps-40").containers.at(0);
  EXPECT_EQ(large.envs.at("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "60");
  EXPECT_EQ(small.envs.at("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "40");
  EXPECT_EQ(large.envs.at("CUDA_MPS_PIPE_DIRECTORY"), small.envs.at("CUDA_MPS_PIPE_DIRECTORY"));
  EXPECT_NE(large.envs.at("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
            small.envs.at("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
}

}  // namespace
}  // namespace gpulet::tests
