// An operator on the node: `gpulet health`, `cordon` and `uncordon` as processes, while the agent runs, is
// stopped, and restarts.
#include <nlohmann/json.hpp>

#include "tests/sim/node_fixture.h"
#include "tests/sim/running_command.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;

class SimOperator : public NodeTest {
 protected:
  RunningCommand gpulet_command(std::vector<std::string> arguments) {
    std::vector<std::string> environment{"GPULET_STATE_DIR=" + sim_node().state_dir(),
                                         "GPULET_HEALTH_FILE=" + sim_node().health_file(),
                                         "DRIVER_ROOT_CTR_PATH=" + sim_node().driver_root()};
    return {std::move(arguments), std::move(environment)};
  }
  // Returns the whole output. The exit code must match.
  std::string run_gpulet(int code, std::vector<std::string> arguments) {
    auto running = gpulet_command(std::move(arguments));
    EXPECT_EQ(running.exit_code(), code) << running.output_text();
    return running.output_text();
  }
  // Runs `gpulet health GPU` until it exits so: the report is written after the kubelet's update.
  std::string health_with(int code, const std::string& gpu) {
    std::string text;
    EXPECT_TRUE(becomes_true([&] {
      auto running = gpulet_command({"health", gpu});
      const bool so = running.exit_code() == code;
      text = running.output_text();
      return so;
    })) << text;
    return text;
  }
};

TEST_F(SimOperator, ACordonPersistsUntilUncordon) {
  start_node();
  const auto grant = admit_pod("trainer", 1);
  const std::string held = granted_ids(grant).at(0);
  const std::string index = std::to_string(gpu_index(held));
  EXPECT_EQ(run_gpulet(0, {"cordon", index, "--reason", "new riser"}),
            "GPU " + index + " (" + held + ") cordoned: new riser\n");
  ASSERT_TRUE(becomes_unhealthy({held}));
  const auto told = health_with(3, index);
  EXPECT_NE(told.find("cordoned: new riser"), std::string::npos) << told;
  EXPECT_NE(told.find("gpulet uncordon " + index), std::string::npos) << told;
  EXPECT_NE(run_gpulet(0, {"cordon", held.substr(0, 20)}).find("is already cordoned"), std::string::npos);
  admit_pod("neighbour", 7);

  sim_node().kill_agent();
  EXPECT_NE(health_with(1, index).find("no agent is running on this node"), std::string::npos);
  start_agent();
  ASSERT_TRUE(becomes_unhealthy({held}));
  health_with(3, index);

  EXPECT_EQ(run_gpulet(0, {"uncordon", held}), "GPU " + index + " (" + held + ") uncordoned\n");
  ASSERT_TRUE(becomes_allocatable(8));
  const auto well = health_with(0, index);
  EXPECT_EQ(well.find("next"), std::string::npos) << well;
}

TEST_F(SimOperator, CommandsApplyAfterTheAgentStarts) {
  start_node();
  sim_node().kill_agent();
  EXPECT_EQ(run_gpulet(0, {"cordon", "2"}),
            "GPU 2 (" + gpu_uuid(2) + ") cordoned\nsaved; takes effect when the agent starts on this node\n");
  start_agent();
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(2)}));
  sim_node().kill_agent();
  run_gpulet(0, {"uncordon", gpu_uuid(2)});
  start_agent();
  ASSERT_TRUE(becomes_allocatable(8));
}

TEST_F(SimOperator, HealthShowsStateEvidenceAndNextStep) {
  start_node();
  EXPECT_EQ(run_gpulet(0, {"health"}).find("quarantined"), std::string::npos);
  ASSERT_TRUE(control::post_xid(machine_state(), 5, 95));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(5)}));
  const auto details = health_with(3, "5");
  for (const std::string part :
       {"quarantined, out of service", "XID 95", "xid-reset", "nvidia-smi --gpu-reset -i 5"}) {
    EXPECT_NE(details.find(part), std::string::npos) << part << "\n" << details;
  }
  const auto table = run_gpulet(3, {"health"});
  EXPECT_NE(table.find("GPU 5 (" + gpu_uuid(5) + "): End all workloads on it"), std::string::npos) << table;
  const auto json = nlohmann::json::parse(run_gpulet(3, {"health", "5", "-o", "json"}));
  EXPECT_EQ(json["devices"][0]["state"], "quarantined");
  EXPECT_EQ(json["devices"][0]["faults"][0]["code"], 95);
  EXPECT_NE(run_gpulet(1, {"health", "9"}).find("there is no device '9'"), std::string::npos);
  EXPECT_NE(run_gpulet(2, {"health", "--output", "xml"}), "");
}

// "GPU-5a1b2c3d", as tables have it.
constexpr std::size_t kShortUuid = 12;

TEST_F(SimOperator, HealthWatchFollowsTheNode) {
  start_node();
  auto watch = gpulet_command({"health", "-w"});
  const auto shows = [&](const std::string& part) {
    const bool shown =
        watch.wait_for_output([&](const auto& text) { return text.find(part) != std::string::npos; });
    const auto text = watch.output_text();
    watch.clear_output();
    return testing::AssertionResult(shown) << text;
  };
  ASSERT_TRUE(shows(gpu_uuid(7).substr(0, kShortUuid)));
  run_gpulet(0, {"cordon", "3", "--reason", "moved"});
  ASSERT_TRUE(shows("GPU 3 (" + gpu_uuid(3) + "): Run gpulet uncordon 3"));
  ASSERT_TRUE(control::lose_gpu(machine_state(), 4));
  ASSERT_TRUE(control::post_xid(machine_state(), 4, kFallenOffTheBus));
  ASSERT_TRUE(shows("lost"));
  sim_node().kill_agent();
  ASSERT_TRUE(shows("no agent is running on this node"));
  start_agent();
  ASSERT_TRUE(shows(gpu_uuid(7).substr(0, kShortUuid)));
}

TEST_F(SimOperator, CordonsAMigDeviceAlone) {
  bring_up_node();
  const auto instances = create_mig_devices(0, {"1g.10gb", "1g.10gb"});
  start_agent({.arguments = {"--mig-strategy=mixed"}});
  ASSERT_TRUE(becomes_allocatable(2, "nvidia.com/mig-1g.10gb"));
  ASSERT_TRUE(becomes_allocatable(7));
  run_gpulet(0, {"cordon", instances[1]});
  ASSERT_TRUE(becomes_unhealthy({instances[1]}, "nvidia.com/mig-1g.10gb"));
  EXPECT_TRUE(becomes_allocatable(7));
  run_gpulet(0, {"uncordon", "0"});
  EXPECT_TRUE(becomes_allocatable(2, "nvidia.com/mig-1g.10gb"));
}

}  // namespace
}  // namespace gpulet::tests
