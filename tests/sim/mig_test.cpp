// GPUs with MIG: resources of each strategy, and layouts that change while the agent runs.
#include "tests/sim/node_fixture.h"
#include "tests/sim/running_command.h"

namespace gpulet::tests {
namespace {

class SimMig : public NodeTest {
 protected:
  static sim::AgentOptions strategy_options(const std::string& name) {
    return {.arguments = {"--mig-strategy=" + name}, .environment = {"GPULET_HEALTH_LIVENESS_INTERVAL=1s"}};
  }
  bool has_resource(const std::string& resource) {
    return find_resource(sim_kubelet().kubelet_state(), resource) != nullptr;
  }
};

TEST_F(SimMig, MixedOffersEachProfile) {
  bring_up_node();
  create_mig_devices(0, {"1g.10gb", "1g.10gb", "3g.40gb"});
  create_mig_devices(1, {"1g.10gb+me"});
  start_agent(strategy_options("mixed"));
  EXPECT_TRUE(becomes_allocatable(2, kSmall));
  EXPECT_TRUE(becomes_allocatable(1, kLarge));
  EXPECT_TRUE(becomes_allocatable(1, "nvidia.com/mig-1g.10gb.me"));
  EXPECT_TRUE(becomes_allocatable(6));
}

// By the environment and the flags of the agent, as `gpulet labels` does.
TEST_F(SimMig, PlaceFollowsTheStrategy) {
  bring_up_node();
  create_mig_devices(0, {"1g.10gb", "1g.10gb"});
  const auto place = [&](std::vector<std::string> arguments, std::vector<std::string> environment) {
    arguments.insert(arguments.begin(), {"place", "--size", "1", "--resource", kSmall});
    environment.push_back("DRIVER_ROOT_CTR_PATH=" + sim_node().driver_root());
    RunningCommand running(std::move(arguments), std::move(environment));
    return std::pair(running.exit_code(), running.output_text());
  };
  const auto [refused, why] = place({}, {});
  EXPECT_EQ(refused, 1);
  EXPECT_NE(why.find("no resource " + std::string(kSmall)), std::string::npos) << why;
  EXPECT_EQ(place({}, {"MIG_STRATEGY=mixed"}).first, 0);
  EXPECT_EQ(place({"--mig-strategy", "mixed"}, {"MIG_STRATEGY=none"}).first, 0);
  write_config("version: v1\nflags: {migStrategy: mixed}\n");
  EXPECT_EQ(place({}, {"CONFIG_FILE=" + config_path()}).first, 0);
}

TEST_F(SimMig, SingleOffersInstancesAsGpus) {
  bring_up_node("dgx-a100");
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) create_mig_devices(gpu, {"3g.40gb", "3g.40gb"});
  start_agent(strategy_options("single"));
  EXPECT_TRUE(becomes_allocatable(16));
  EXPECT_FALSE(has_resource(kLarge));
}

TEST_F(SimMig, AnA100Of40GbHasItsOwnProfiles) {
  bring_up_node("dgx-a100-40gb");
  create_mig_devices(0, {"4g.20gb", "3g.20gb"});
  create_mig_devices(1, {"1g.5gb", "1g.10gb", "2g.10gb"});
  start_agent(strategy_options("mixed"));
  for (const char* profile : {"4g.20gb", "3g.20gb", "1g.5gb", "1g.10gb", "2g.10gb"})
    EXPECT_TRUE(becomes_allocatable(1, "nvidia.com/mig-" + std::string(profile))) << profile;
  EXPECT_TRUE(becomes_allocatable(6));
}

TEST_F(SimMig, NoneOffersTheWholeGpus) {
  bring_up_node();
  create_mig_devices(0, {"1g.10gb", "1g.10gb"});
  start_agent(strategy_options("none"));
  EXPECT_TRUE(becomes_allocatable(8));
  EXPECT_FALSE(has_resource(kSmall));
}

TEST_F(SimMig, OffersAChangedLayoutWithoutARestart) {
  start_node("hgx-h100", strategy_options("mixed"));
  create_mig_devices(3, {"1g.10gb", "1g.10gb", "1g.10gb"});
  ASSERT_TRUE(becomes_allocatable(3, kSmall));
  ASSERT_TRUE(becomes_allocatable(7));
  create_mig_devices(3, {"3g.40gb"});
  ASSERT_TRUE(becomes_allocatable(1, kLarge));
  EXPECT_TRUE(becomes_allocatable(3, kSmall));
  remove_mig_devices(3);
  ASSERT_TRUE(becomes_allocatable(8));
  EXPECT_TRUE(wait_for_kubelet([](const auto& state) {
    return !find_resource(state, kSmall)->connected && !find_resource(state, kLarge)->connected;
  }));
  EXPECT_EQ(registration_count(), 1u);
  EXPECT_NE(wait_for_log("ResourceWithdrawn", kSmall), "");
}

TEST_F(SimMig, FollowsTheDriversMigEvent) {
  // The next poll without an event is too late for this test.
  start_node("hgx-h100",
             {.arguments = {"--mig-strategy=mixed"}, .environment = {"GPULET_HEALTH_LIVENESS_INTERVAL=10m"}});
  // An XID proves that the agent waits for events.
  ASSERT_TRUE(sim::control::post_xid(machine_state(), 0, kFallenOffTheBus));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(0)}));
  create_mig_devices(3, {"1g.10gb"});
  sim::post_event(*machine_state().lock_for_edit(), 3, sim::kEventMigConfig, 0);
  EXPECT_TRUE(becomes_allocatable(1, kSmall));
}

}  // namespace
}  // namespace gpulet::tests
