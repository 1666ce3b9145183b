// Config changes while the agent runs, and configs as NVIDIA's plugin accepts them.
#include <signal.h>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kPlain = "version: v1\n";

std::string sharing_config(const std::string& resource, unsigned replicas) {
  return "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: " + resource +
         "\n      replicas: " + std::to_string(replicas) + "\n";
}

class SimConfig : public NodeTest {
 protected:
  sim::AgentOptions with_file() { return {.arguments = {"--config-file=" + config_path()}}; }
  std::string read_metrics() { return http_get(listener_port(), "/metrics").body; }
  bool metric_value(const std::string& line) {
    return becomes_true([&] { return read_metrics().find(line + "\n") != std::string::npos; });
  }
};

TEST_F(SimConfig, AppliesANewFileWithoutARestart) {
  bring_up_node();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(becomes_allocatable(8));
  const auto agent = sim_node().agent_id();
  write_config(sharing_config(kGpu, 4));
  ASSERT_TRUE(becomes_allocatable(32));
  write_config(sharing_config(kGpu, 2));
  ASSERT_TRUE(becomes_allocatable(16));
  write_config(kPlain);
  ASSERT_TRUE(becomes_allocatable(8));
  EXPECT_EQ(registration_count(), 1u);
  EXPECT_EQ(sim_node().agent_id(), agent);
  EXPECT_TRUE(metric_value("gpulet_config_reloads_total 3"));
}

TEST_F(SimConfig, AChangeAffectsOnlyItsResources) {
  bring_up_node();
  create_mig_devices(0, {"1g.10gb", "1g.10gb"});
  write_config("version: v1\nflags: {migStrategy: mixed}\n");
  start_agent(with_file());
  const std::string mig = "nvidia.com/mig-1g.10gb";
  ASSERT_TRUE(becomes_allocatable(7));
  ASSERT_TRUE(becomes_allocatable(2, mig));
  const auto before = sim_kubelet().kubelet_state().resources.at(kGpu);
  write_config("flags: {migStrategy: mixed}\n" + sharing_config(mig, 3));
  ASSERT_TRUE(becomes_allocatable(6, mig));
  const auto after = sim_kubelet().kubelet_state().resources.at(kGpu);
  EXPECT_EQ(after.registrations, before.registrations);
  EXPECT_EQ(after.lists, before.lists);
  EXPECT_EQ(registration_count(mig), 1u);
}

TEST_F(SimConfig, ARenamedResourceReplacesTheOldOne) {
  bring_up_node();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(becomes_allocatable(8));
  write_config(
      "version: v1\nsharing:\n  timeSlicing:\n    renameByDefault: true\n    resources:\n"
      "    - {name: nvidia.com/gpu, replicas: 2}\n");
  EXPECT_TRUE(becomes_allocatable(16, "nvidia.com/gpu.shared"));
  EXPECT_TRUE(wait_for_kubelet([](const auto& state) { return !find_resource(state, kGpu)->connected; }));
}

TEST_F(SimConfig, ABadFileKeepsTheOldConfig) {
  bring_up_node();
  write_config(sharing_config(kGpu, 4));
  start_agent(with_file());
  ASSERT_TRUE(becomes_allocatable(32));
  EXPECT_TRUE(metric_value("gpulet_config_last_reload_successful 1"));

  write_config(sharing_config(kGpu, 1));
  const auto why = wait_for_log("ConfigInvalid");
  EXPECT_NE(why.find("config.yaml:6:"), std::string::npos) << why;
  EXPECT_NE(why.find("replicas"), std::string::npos) << why;
  EXPECT_TRUE(metric_value("gpulet_config_last_reload_successful 0"));
  // At least one: a busy machine may report one replaced file as two changes.
  EXPECT_TRUE(becomes_true([&] {
    const auto page = http_get(listener_port(), "/metrics").body;
    return page.find("\ngpulet_config_reload_failures_total ") != std::string::npos &&
           page.find("\ngpulet_config_reload_failures_total 0\n") == std::string::npos;
  }));
  const auto ready = http_get(listener_port(), "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_NE(ready.body.find("config.yaml:6:"), std::string::npos) << ready.body;
  EXPECT_TRUE(becomes_allocatable(32));

  write_config("version: v1\nsharing: [not, a, map\n");
  EXPECT_NE(wait_for_log("ConfigInvalid", "config.yaml:3:1"), "");
  EXPECT_TRUE(becomes_allocatable(32));

  write_config(sharing_config(kGpu, 2));
  ASSERT_TRUE(becomes_allocatable(16));
  EXPECT_TRUE(metric_value("gpulet_config_last_reload_successful 1"));
  EXPECT_TRUE(becomes_true([&] { return http_get(listener_port(), "/readyz").status == 200; }));
  EXPECT_EQ(registration_count(), 1u);
}

TEST_F(SimConfig, RestoringTheFileEndsTheError) {
  bring_up_node();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(becomes_allocatable(8));
  write_config("nonsense: true\n");
  ASSERT_NE(wait_for_log("ConfigInvalid", "nonsense"), "");
  write_config(kPlain);
  EXPECT_TRUE(becomes_true([&] { return http_get(listener_port(), "/readyz").status == 200; }));
}

TEST_F(SimConfig, SighupReloadsTheFile) {
  bring_up_node();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(becomes_allocatable(8));
  ASSERT_NE(listener_port(), 0);
  sim_node().signal_agent(SIGHUP);
  EXPECT_NE(wait_for_log("ConfigReloaded"), "");
  EXPECT_EQ(registration_count(), 1u);
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimConfig, AppliesNewDriverAndKubeletPaths) {
  bring_up_node();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(becomes_allocatable(8));
  admit_pod("trainer", 2);
  const auto before = registration_count();
  write_config("version: v1\ngpulet: {kubeletSocket: " + sim_kubelet().plugin_dir() + "/./kubelet.sock}\n");
  ASSERT_TRUE(wait_for_kubelet([&](const auto& state) {
    const auto* resource = find_resource(state, kGpu);
    return resource->registrations > before && resource->connected && resource->allocatable() == 8;
  }));
  admit_pod("rest", 6);
}

TEST_F(SimConfig, ABadFileAtTheStartEndsTheAgent) {
  bring_up_node();
  write_config("version: v1\nflags:\n  migStrategie: mixed\n");
  start_agent(with_file());
  allow_agent_exit();
  const auto exit = sim_node().wait_agent(kTestTimeout);
  ASSERT_TRUE(exit) << exit.error().full_message();
  EXPECT_EQ(exit->code, 1);
  EXPECT_NE(agent_log().find("config.yaml:3:3"), std::string::npos) << agent_log();
  EXPECT_NE(agent_log().find("migStrategy"), std::string::npos) << agent_log();
}

TEST_F(SimConfig, UnderNvidiasNameItAcceptsFlagsAndUnknownKeys) {
  bring_up_node();
  create_mig_devices(0, {"3g.40gb", "3g.40gb"});
  write_config("version: v1\nflags:\n  migStrategie: none\n  plugin: {deviceIDStrategy: index}\n");
  start_agent({.name = "nvidia-device-plugin",
               .arguments = {"-mig-strategy=mixed", "--device-list-strategy=cdi-cri,envvar", "-config-file",
                             config_path()},
               .environment = {"FAIL_ON_INIT_ERROR=false", "DEVICE_ID_STRATEGY=uuid"}});
  ASSERT_TRUE(becomes_allocatable(7));
  ASSERT_TRUE(becomes_allocatable(2, "nvidia.com/mig-3g.40gb"));
  EXPECT_NE(agent_log().find("config.yaml:3:3"), std::string::npos) << agent_log();
  const auto grant = admit_pod("trainer", 1);
  const auto id = granted_ids(grant).at(0);
  const auto& container = grant.containers.at(0);
  // The environment overrides the file, as with NVIDIA's plugin.
  EXPECT_EQ(container.envs.at("NVIDIA_VISIBLE_DEVICES"), id);
  EXPECT_EQ(container.cdi_devices, std::vector<std::string>{"k8s.device-plugin.nvidia.com/gpu=" + id});
}

}  // namespace
}  // namespace gpulet::tests
