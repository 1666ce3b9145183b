// Settings that change while the agent runs, and settings as NVIDIA's plugin takes them.
#include <signal.h>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kPlain = "version: v1\n";

std::string shared(const std::string& resource, unsigned replicas) {
  return "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: " + resource +
         "\n      replicas: " + std::to_string(replicas) + "\n";
}

class SimConfig : public NodeTest {
 protected:
  cli::AgentOptions with_file() { return {.arguments = {"--config-file=" + config_path()}}; }
  std::string metrics() { return http_get(port(), "/metrics").body; }
  bool metric(const std::string& line) {
    return eventually([&] { return metrics().find(line + "\n") != std::string::npos; });
  }
};

TEST_F(SimConfig, ANewFileIsInForceWithoutARestart) {
  up();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(offered(8));
  const auto agent = node().agent_id();
  write_config(shared(kGpu, 4));
  ASSERT_TRUE(offered(32));
  write_config(shared(kGpu, 2));
  ASSERT_TRUE(offered(16));
  write_config(kPlain);
  ASSERT_TRUE(offered(8));
  EXPECT_EQ(registrations(), 1u);
  EXPECT_EQ(node().agent_id(), agent);
  EXPECT_TRUE(metric("gpulet_config_reloads_total 3"));
}

TEST_F(SimConfig, WhatAChangeDoesNotConcernHearsNothingOfIt) {
  up();
  cut_up(0, {"1g.10gb", "1g.10gb"});
  write_config("version: v1\nflags: {migStrategy: mixed}\n");
  start_agent(with_file());
  const std::string mig = "nvidia.com/mig-1g.10gb";
  ASSERT_TRUE(offered(7));
  ASSERT_TRUE(offered(2, mig));
  const auto before = kubelet().state().resources.at(kGpu);
  write_config("flags: {migStrategy: mixed}\n" + shared(mig, 3));
  ASSERT_TRUE(offered(6, mig));
  const auto after = kubelet().state().resources.at(kGpu);
  EXPECT_EQ(after.registrations, before.registrations);
  EXPECT_EQ(after.lists, before.lists);
  EXPECT_EQ(registrations(mig), 1u);
}

TEST_F(SimConfig, ARenamedResourceTakesTheOldOnesPlace) {
  up();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(offered(8));
  write_config(
      "version: v1\nsharing:\n  timeSlicing:\n    renameByDefault: true\n    resources:\n"
      "    - {name: nvidia.com/gpu, replicas: 2}\n");
  EXPECT_TRUE(offered(16, "nvidia.com/gpu.shared"));
  EXPECT_TRUE(wait_for([](const auto& state) { return !find(state, kGpu)->connected; }));
}

TEST_F(SimConfig, ABadFileKeepsTheOldOneAndSaysSo) {
  up();
  write_config(shared(kGpu, 4));
  start_agent(with_file());
  ASSERT_TRUE(offered(32));
  EXPECT_TRUE(metric("gpulet_config_last_reload_successful 1"));

  write_config(shared(kGpu, 1));
  const auto why = said("ConfigInvalid");
  EXPECT_NE(why.find("config.yaml:6:"), std::string::npos) << why;
  EXPECT_NE(why.find("replicas"), std::string::npos) << why;
  EXPECT_TRUE(metric("gpulet_config_last_reload_successful 0"));
  EXPECT_TRUE(metric("gpulet_config_reload_failures_total 1"));
  const auto ready = http_get(port(), "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_NE(ready.body.find("config.yaml:6:"), std::string::npos) << ready.body;
  EXPECT_TRUE(offered(32));

  write_config("version: v1\nsharing: [not, a, map\n");
  EXPECT_TRUE(metric("gpulet_config_reload_failures_total 2"));
  EXPECT_TRUE(offered(32));

  write_config(shared(kGpu, 2));
  ASSERT_TRUE(offered(16));
  EXPECT_TRUE(metric("gpulet_config_last_reload_successful 1"));
  EXPECT_TRUE(eventually([&] { return http_get(port(), "/readyz").status == 200; }));
  EXPECT_EQ(registrations(), 1u);
}

TEST_F(SimConfig, TheSameFileAgainAfterABadOneIsWellAgain) {
  up();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(offered(8));
  write_config("nonsense: true\n");
  ASSERT_NE(said("ConfigInvalid", "nonsense"), "");
  write_config(kPlain);
  EXPECT_TRUE(eventually([&] { return http_get(port(), "/readyz").status == 200; }));
}

TEST_F(SimConfig, SighupReadsTheFileAgain) {
  up();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(offered(8));
  ASSERT_NE(port(), 0);
  node().signal_agent(SIGHUP);
  EXPECT_NE(said("ConfigReloaded"), "");
  EXPECT_EQ(registrations(), 1u);
  EXPECT_TRUE(offered(8));
}

TEST_F(SimConfig, TheDriversAndTheKubeletsPlacesMayChangeToo) {
  up();
  write_config(kPlain);
  start_agent(with_file());
  ASSERT_TRUE(offered(8));
  admit("trainer", 2);
  const auto before = registrations();
  write_config("version: v1\ngpulet: {kubeletSocket: " + kubelet().plugin_dir() + "/./kubelet.sock}\n");
  ASSERT_TRUE(wait_for([&](const auto& state) {
    const auto* resource = find(state, kGpu);
    return resource->registrations > before && resource->connected && resource->allocatable() == 8;
  }));
  admit("rest", 6);
}

TEST_F(SimConfig, AFileThatIsBadAtTheStartEndsTheAgentNamingTheLine) {
  up();
  write_config("version: v1\nflags:\n  migStrategie: mixed\n");
  start_agent(with_file());
  agent_may_end();
  const auto exit = node().wait_agent(kPatience);
  ASSERT_TRUE(exit) << exit.error().text();
  EXPECT_EQ(exit->code, 1);
  EXPECT_NE(log().find("config.yaml:3:3"), std::string::npos) << log();
  EXPECT_NE(log().find("migStrategy"), std::string::npos) << log();
}

TEST_F(SimConfig, CalledByNvidiasNameItTakesItsFlagsAndForgivesUnknownKeys) {
  up();
  cut_up(0, {"3g.40gb", "3g.40gb"});
  write_config("version: v1\nflags:\n  migStrategie: none\n  plugin: {deviceIDStrategy: index}\n");
  start_agent({.name = "nvidia-device-plugin",
               .arguments = {"-mig-strategy=mixed", "--device-list-strategy=cdi-cri,envvar", "-config-file",
                             config_path()},
               .environment = {"FAIL_ON_INIT_ERROR=false", "DEVICE_ID_STRATEGY=uuid"}});
  ASSERT_TRUE(offered(7));
  ASSERT_TRUE(offered(2, "nvidia.com/mig-3g.40gb"));
  EXPECT_NE(log().find("config.yaml:3:3"), std::string::npos) << log();
  const auto grant = admit("trainer", 1);
  const auto id = ids_of(grant).at(0);
  const auto& container = grant.containers.at(0);
  // The environment goes before the file, as with NVIDIA's.
  EXPECT_EQ(container.envs.at("NVIDIA_VISIBLE_DEVICES"), id);
  EXPECT_EQ(container.cdi_devices, std::vector<std::string>{"k8s.device-plugin.nvidia.com/gpu=" + id});
}

}  // namespace
}  // namespace gpulet::tests
