// The driver is unloaded, reloaded, late or missing; the agent is killed and restarted.
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;
namespace fs = std::filesystem;

class SimDriver : public NodeTest {
 protected:
  static sim::AgentOptions slow_probe_options() { return {.arguments = {"--fail-on-init-error=false"}}; }
  // Moves every libnvidia-ml below the driver root away, or back.
  void hide_library(bool hidden) {
    const fs::path hidden_away = sim_node().directory() + "/hidden";
    fs::create_directories(hidden_away);
    if (hidden) {
      for (const auto& entry : fs::recursive_directory_iterator(sim_node().driver_root())) {
        if (entry.path().filename().string().starts_with("libnvidia-ml.so")) moved_.push_back(entry.path());
      }
      ASSERT_FALSE(moved_.empty());
    }
    for (const auto& path : moved_) {
      const auto away = hidden_away / path.filename();
      hidden ? fs::rename(path, away) : fs::rename(away, path);
    }
  }
  std::set<std::string> allocated_devices() {
    std::set<std::string> all;
    std::size_t count = 0;
    const auto state = sim_kubelet().kubelet_state();
    for (const auto& [uid, grant] : state.grants) {
      for (const auto& id : granted_ids(grant)) {
        all.insert(id);
        ++count;
      }
    }
    EXPECT_EQ(all.size(), count) << "a device was given twice";
    return all;
  }

 private:
  std::vector<fs::path> moved_;
};

TEST_F(SimDriver, ReconnectsToAReloadedDriver) {
  start_node();
  const auto grant = admit_pod("trainer", 2);
  ASSERT_TRUE(control::unload_driver(machine_state()));
  ASSERT_TRUE(
      wait_for_kubelet([](const auto& state) { return find_resource(state, kGpu)->allocatable() == 0; }));
  EXPECT_NE(wait_for_log("DriverUnavailable"), "");
  ASSERT_TRUE(control::load_driver(machine_state(), "575.57.08"));
  ASSERT_TRUE(becomes_allocatable(8));
  // Nothing is registered again: the devices are the same, and the Pod keeps its own.
  EXPECT_EQ(registration_count(), 1u);
  EXPECT_EQ(granted_ids(sim_kubelet().kubelet_state().grants.at("trainer")), granted_ids(grant));
  // Its events are received too.
  ASSERT_TRUE(control::post_xid(machine_state(), 7, kFallenOffTheBus));
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(7)}));
}

TEST_F(SimDriver, WaitsForALaterLoad) {
  bring_up_node();
  ASSERT_TRUE(control::unload_driver(machine_state()));
  start_agent(slow_probe_options());
  EXPECT_NE(wait_for_log("DriverUnavailable"), "");
  EXPECT_EQ(registration_count(), 0u);
  ASSERT_TRUE(control::load_driver(machine_state()));
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimDriver, WaitsForALaterInstall) {
  bring_up_node();
  hide_library(true);
  start_agent(slow_probe_options());
  EXPECT_NE(wait_for_log("DriverUnavailable"), "");
  hide_library(false);
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimDriver, AMissingDriverEndsTheAgentWithFailOnInitError) {
  for (const bool installed : {true, false}) {
    bring_up_node();
    if (installed) {
      ASSERT_TRUE(control::unload_driver(machine_state()));
    } else {
      hide_library(true);
    }
    start_agent();
    allow_agent_exit();
    const auto exit = sim_node().wait_agent(kTestTimeout);
    ASSERT_TRUE(exit) << exit.error().full_message();
    EXPECT_EQ(exit->code, 1);
    std::vector<std::string> lines;
    for (const auto& line : text::split(agent_log(), '\n')) {
      if (line.find("driver") != std::string::npos) lines.push_back(line);
    }
    ASSERT_EQ(lines.size(), 1u) << agent_log();
    EXPECT_NE(lines[0].find("failOnInitError"), std::string::npos) << lines[0];
  }
}

TEST_F(SimDriver, RetriesAHangingInitialisation) {
  bring_up_node();
  ASSERT_TRUE(control::hang_calls(machine_state(), std::nullopt));
  start_agent(
      {.arguments = {"--fail-on-init-error=false"}, .environment = {"GPULET_DRIVER_CALL_TIMEOUT=300ms"}});
  EXPECT_NE(wait_for_log("DriverUnavailable"), "");
  ASSERT_TRUE(control::heal_faults(machine_state(), std::nullopt));
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimDriver, AKilledAgentResumesWithoutDoubleAllocation) {
  start_node();
  std::map<std::string, std::vector<std::string>> before;
  for (const auto& [pod, count] : {std::pair{"pair", 2u}, {"single", 1u}})
    before[pod] = granted_ids(admit_pod(pod, count));
  for (int round = 0; round < 3; ++round) {
    const auto registered = registration_count();
    sim_node().signal_agent(SIGKILL);
    ASSERT_TRUE(sim_node().wait_agent(kTestTimeout));
    start_agent();
    ASSERT_TRUE(wait_for_kubelet([&](const auto& state) {
      const auto* resource = find_resource(state, kGpu);
      return resource->registrations > registered && resource->connected && resource->allocatable() == 8;
    })) << "round "
        << round;
    admit_pod("more-" + std::to_string(round), 1);
    EXPECT_EQ(allocated_devices().size(), 4u + round);
  }
  for (const auto& [pod, ids] : before)
    EXPECT_EQ(granted_ids(sim_kubelet().kubelet_state().grants.at(pod)), ids);
  admit_pod("last", 2);
  EXPECT_EQ(allocated_devices().size(), 8u);
  const auto ninth =
      sim_kubelet().admit_pod({.name = "ninth", .uid = "ninth", .containers = {{"main", {{kGpu, 1}}}}});
  EXPECT_FALSE(ninth);
}

TEST_F(SimDriver, FindsAFaultOfBeforeItsStart) {
  start_node();
  sim_node().signal_agent(SIGKILL);
  ASSERT_TRUE(sim_node().wait_agent(kTestTimeout));
  ASSERT_TRUE(control::lose_gpu(machine_state(), 4));
  start_agent();
  EXPECT_TRUE(becomes_allocatable(7));
  admit_pod("others", 7);
}

}  // namespace
}  // namespace gpulet::tests
