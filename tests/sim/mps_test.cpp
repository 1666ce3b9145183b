// GPUs shared by MPS: the agent's daemons, the containers' environment, and the death of a daemon, the death
// of the agent, or another config.
#include <signal.h>

#include <filesystem>
#include <set>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "mps/plan.h"
#include "mps/shared_memory.h"
#include "sim/mps/daemon.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimMps : public NodeTest {
 protected:
  void SetUp() override { bring_up_node(); }
  std::string mps_root() { return sim_node().mps_root(); }
  std::string mps_config(const std::string& sharing) {
    return "version: v1\nflags: {mpsRoot: " + mps_root() + "}\n" + sharing;
  }
  std::string shared_config(unsigned replicas) {
    return mps_config(
        "sharing: {mps: {resources: [{name: gpu, devices: [0, 1], rename: gpu.shared, replicas: " +
        std::to_string(replicas) + "}]}}\n");
  }
  void serve_with(const std::string& text) {
    write_config(text);
    start_agent({.arguments = {"--config-file=" + config_path()}});
  }
  // Returns the daemon's response to a command.
  std::string send_mps_command(const std::string& daemon, const std::string& command) {
    const auto said = sim::program_output(
        {"/bin/sh", "-c",
         "echo '" + command + "' | " + sim_node().driver_root() + "/usr/bin/nvidia-cuda-mps-control"},
        {"CUDA_MPS_PIPE_DIRECTORY=" + mps_root() + "/" + daemon + "/pipe"});
    return said ? std::string(text::trim(*said)) : said.error().full_message();
  }
  pid_t daemon_id(const std::string& daemon) {
    const auto text = read_file(mps_root() + "/" + daemon + "/pipe/nvidia-cuda-mps-control.pid");
    return text ? static_cast<pid_t>(std::stol(*text)) : 0;
  }
  unsigned compute_mode(std::uint32_t gpu) { return machine_state().lock_for_read()->gpus[gpu].compute_mode; }
};

constexpr const char* kShared = "nvidia.com/gpu.shared";
constexpr unsigned kExclusiveProcess = 3;  // NVML_COMPUTEMODE_EXCLUSIVE_PROCESS

TEST_F(SimMps, ADaemonServesSharesWithLimits) {
  serve_with(shared_config(4));
  ASSERT_TRUE(becomes_allocatable(8, kShared)) << agent_log();
  ASSERT_TRUE(becomes_allocatable(6));
  EXPECT_EQ(send_mps_command(kShared, "get_default_active_thread_percentage"), "25.0");
  EXPECT_EQ(compute_mode(0), kExclusiveProcess);
  EXPECT_EQ(compute_mode(2), 0u);
  const auto grant = admit_pod("client", 1, kShared);
  const auto& container = grant.containers.at(0);
  EXPECT_EQ(container.envs.at("CUDA_MPS_PIPE_DIRECTORY"), std::string("/mps/") + kShared + "/pipe");
  ASSERT_EQ(container.mounts.size(), 2u);
  EXPECT_EQ(container.mounts[0].host_path, mps_root() + "/" + kShared + "/pipe");
  EXPECT_EQ(container.mounts[1].container_path, "/dev/shm");
}

TEST_F(SimMps, SharesOfADeadDaemonAreUnhealthy) {
  serve_with(shared_config(2));
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  const pid_t first = daemon_id(kShared);
  ASSERT_GT(first, 0);
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  ASSERT_TRUE(wait_for_kubelet([](const auto& state) {
    return find_resource(state, kShared)->allocatable() == 0;
  })) << agent_log();
  EXPECT_NE(wait_for_log("MpsDaemonUnhealthy", kShared), "");
  ASSERT_TRUE(becomes_allocatable(4, kShared));
  EXPECT_TRUE(becomes_allocatable(6));
  EXPECT_NE(daemon_id(kShared), first);
}

TEST_F(SimMps, ARestartedAgentAdoptsTheDaemon) {
  serve_with(shared_config(2));
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  const pid_t first = daemon_id(kShared);
  sim_node().kill_agent();
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  EXPECT_EQ(daemon_id(kShared), first);
}

TEST_F(SimMps, AConfigWithoutMpsRestoresTheNode) {
  serve_with(shared_config(2));
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  const pid_t daemon = daemon_id(kShared);
  write_config(mps_config(""));
  ASSERT_TRUE(becomes_allocatable(8));
  EXPECT_TRUE(
      becomes_true([&] { return ::kill(daemon, 0) != 0 && compute_mode(0) == 0 && compute_mode(1) == 0; }));
  EXPECT_FALSE(mps::shm_is_mounted(mps::shm_directory(mps_root())));
  write_config(shared_config(2));
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  EXPECT_EQ(mps::shm_is_mounted(mps::shm_directory(mps_root())), ::geteuid() == 0);
}

TEST_F(SimMps, AnAgentWithoutMpsStopsLeftoverDaemons) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount";
  serve_with(shared_config(2));
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  const pid_t daemon = daemon_id(kShared);
  sim_node().kill_agent();
  write_config(mps_config(""));
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(8));
  EXPECT_TRUE(
      becomes_true([&] { return ::kill(daemon, 0) != 0 && compute_mode(0) == 0 && compute_mode(1) == 0; }));
  EXPECT_FALSE(mps::shm_is_mounted(mps::shm_directory(mps_root())));
}

TEST_F(SimMps, AContainersInitStopsItsDaemons) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, for a pid namespace";
  write_config(shared_config(2));
  start_agent({.arguments = {"--config-file=" + config_path()},
               .launcher = {"/usr/bin/unshare", "--pid", "--fork", "--kill-child=TERM"}});
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  EXPECT_EQ(compute_mode(0), kExclusiveProcess);
  allow_agent_exit();
  sim_node().kill_agent();  // unshare, which ends the agent
  EXPECT_TRUE(becomes_true([&] { return compute_mode(0) == 0 && compute_mode(1) == 0; })) << agent_log();
  EXPECT_TRUE(
      becomes_true([&] { return !std::filesystem::exists(mps_root() + "/" + kShared + "/.started"); }));
  EXPECT_TRUE(becomes_true([&] { return !mps::shm_is_mounted(mps::shm_directory(mps_root())); }));
}

TEST_F(SimMps, AnAgentInAPodStopsItsDaemonsInOrder) {
  write_config(shared_config(2));
  start_agent({.arguments = {"--config-file=" + config_path()},
               .environment = {"KUBERNETES_SERVICE_HOST=127.0.0.1", "NODE_NAME=node-1"}});
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  const pid_t daemon = daemon_id(kShared);
  allow_agent_exit();
  ASSERT_TRUE(sim_node().stop_agent()) << agent_log();
  EXPECT_TRUE(becomes_true([&] { return ::kill(daemon, 0) != 0; }));  // once its new parent has reaped it
  EXPECT_EQ(compute_mode(0), 0);
  EXPECT_FALSE(std::filesystem::exists(mps_root() + "/" + kShared + "/.started"));
  EXPECT_FALSE(mps::shm_is_mounted(mps::shm_directory(mps_root())));
}

TEST_F(SimMps, UnequalSharesHaveLimitsInTheContainer) {
  serve_with(mps_config("gpulet: {partition: [{devices: [6], mps: {shares: [60, 40]}}]}\n"));
  ASSERT_TRUE(becomes_allocatable(1, "nvidia.com/gpu.mps-60")) << agent_log();
  ASSERT_TRUE(becomes_allocatable(1, "nvidia.com/gpu.mps-40"));
  ASSERT_TRUE(becomes_allocatable(7));
  const auto large = admit_pod("large", 1, "nvidia.com/gpu.mps-60").containers.at(0);
  const auto small = admit_pod("small", 1, "nvidia.com/gpu.mps-40").containers.at(0);
  EXPECT_EQ(large.envs.at("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "60");
  EXPECT_EQ(small.envs.at("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "40");
  EXPECT_EQ(large.envs.at("CUDA_MPS_PIPE_DIRECTORY"), small.envs.at("CUDA_MPS_PIPE_DIRECTORY"));
  EXPECT_NE(large.envs.at("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
            small.envs.at("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
}

// Static SM partitions: each container has SMs of its own, and names them in its environment.
TEST_F(SimMps, SharesMayHaveSmsOfTheirOwn) {
  ASSERT_TRUE(sim_node().run_gpulet_sim({"driver-reload", "--version", "590.44.01"}));
  serve_with(
      mps_config("gpulet: {partition: [{devices: [0, 1], mps: {replicas: 2, smPartitions: true}}]}\n"));
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  std::set<std::string> partitions;
  std::vector<sim::mps::AttachedClient> clients;  // they stay connected
  for (const char* name : {"a", "b", "c"}) {
    const auto grant = admit_pod(name, 1, kShared);
    const auto& environment = grant.containers.at(0).envs;
    auto client = sim::mps::attach_client(mps_root() + "/" + kShared + "/pipe", "", "",
                                          environment.at("CUDA_MPS_SM_PARTITION"));
    ASSERT_TRUE(client) << client.error().full_message();
    EXPECT_TRUE(client->limits_text.ends_with("sms 64")) << client->limits_text;
    clients.push_back(std::move(*client));
    partitions.insert(environment.at("CUDA_MPS_SM_PARTITION"));
  }
  EXPECT_EQ(partitions.size(), 3u);
  const auto list = send_mps_command(kShared, "lspart");
  sim_node().kill_agent();
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  EXPECT_EQ(send_mps_command(kShared, "lspart"), list);
  const auto last = admit_pod("d", 1, kShared);
  EXPECT_FALSE(partitions.contains(last.containers.at(0).envs.at("CUDA_MPS_SM_PARTITION")));
}

TEST_F(SimMps, AnOldDriverOffersNoSharesWithSmsOfTheirOwn) {
  serve_with(mps_config("gpulet: {partition: [{devices: [0], mps: {replicas: 2, smPartitions: true}}]}\n"));
  EXPECT_TRUE(becomes_true([&] {
    return agent_log().find("does not start with static SM partitions") != std::string::npos;
  })) << agent_log();
  ASSERT_TRUE(becomes_allocatable(7));
  EXPECT_EQ(find_resource(sim_kubelet().kubelet_state(), kShared)->allocatable(), 0u);
}

}  // namespace
}  // namespace gpulet::tests
