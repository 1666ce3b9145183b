// MIG layouts by rule, applied by the agent on the simulated driver: Pods keep their devices, other GPUs are
// not affected, and a killed agent resumes.
#include <signal.h>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kMiddle = "nvidia.com/mig-2g.20gb";

class SimMigLayout : public NodeTest {
 protected:
  void SetUp() override { bring_up_node(); }
  void serve_rules(const std::string& rules) {
    write_rules(rules);
    start_agent(rule_options());
  }
  void write_rules(const std::string& rules) { write_config("version: v1\ngpulet:\n  partition:\n" + rules); }
  // Lets a Pod hold the device of kSmall at that memory slice. Returns its ID.
  std::string block_at(std::uint32_t gpu, std::uint32_t start) {
    std::string wanted;
    for (const auto& instance : machine_state().lock_for_read()->gpus[gpu].mig.instances) {
      if (instance.used && instance.start == start) wanted = instance.compute[0].uuid;
    }
    for (int i = 0; i < 7; ++i) {
      const auto grant = admit_pod("holder-" + std::to_string(i), 1, kSmall);
      if (granted_ids(grant, kSmall).at(0) != wanted) others_.push_back(grant.uid);
    }
    for (const auto& uid : others_) EXPECT_TRUE(sim_kubelet().remove_pod(uid));
    EXPECT_EQ(sim_kubelet().kubelet_state().pods.size(), 1u);
    return wanted;
  }
  std::vector<std::string> others_;
  sim::AgentOptions rule_options() { return {.arguments = {"--config-file=" + config_path()}}; }
};

TEST_F(SimMigLayout, AppliesARule) {
  serve_rules("  - {devices: [7], mig: {layout: all-balanced}}\n");
  ASSERT_TRUE(becomes_allocatable(2, kSmall)) << agent_log();
  ASSERT_TRUE(becomes_allocatable(1, kMiddle));
  ASSERT_TRUE(becomes_allocatable(1, kLarge));
  ASSERT_TRUE(becomes_allocatable(7));
  EXPECT_NE(wait_for_log("MigApplied", "GPU 7"), "");
}

TEST_F(SimMigLayout, AppliesALayoutAroundAPod) {
  serve_rules("  - {devices: [7], mig: {layout: all-1g.10gb}}\n");
  ASSERT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
  ASSERT_TRUE(becomes_allocatable(7));
  const auto lists = sim_kubelet().kubelet_state().resources.at(kGpu).lists;
  // all-balanced fits a 1g.10gb at memory slice 2, but not one in the upper half.
  const auto held = block_at(7, 2);
  write_rules("  - {devices: [7], mig: {layout: all-balanced}}\n");
  ASSERT_TRUE(becomes_allocatable(1, kLarge)) << agent_log();
  ASSERT_TRUE(becomes_allocatable(2, kSmall));
  const auto ids = healthy_ids(*find_resource(sim_kubelet().kubelet_state(), kSmall));
  EXPECT_TRUE(ids.contains(held)) << "what the Pod holds is still there";
  EXPECT_EQ(sim_kubelet().kubelet_state().resources.at(kGpu).lists, lists)
      << "the whole GPUs heard nothing of it";
}

TEST_F(SimMigLayout, AppliesALayoutOnceThePodHasEnded) {
  serve_rules("  - {devices: [0-6], whole: {}}\n");
  ASSERT_TRUE(becomes_allocatable(8));
  const auto grant = admit_pod("holder", 8);
  write_rules("  - {devices: [7], mig: {layout: all-1g.10gb}}\n");
  EXPECT_NE(wait_for_log("MigBlocked", "default/holder"), "");
  EXPECT_EQ(machine_state().lock_for_read()->gpus[7].mig.current, 0u);
  ASSERT_TRUE(sim_kubelet().remove_pod(grant.uid));
  ASSERT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
}

TEST_F(SimMigLayout, ARestartedAgentResumes) {
  serve_rules("  - {devices: [4-7], mig: {layout: all-1g.10gb}}\n");
  ASSERT_TRUE(becomes_true([&] { return machine_state().lock_for_read()->gpus[4].mig.current == 1; }));
  sim_node().kill_agent();
  start_agent(rule_options());
  ASSERT_TRUE(becomes_allocatable(28, kSmall)) << agent_log();
  ASSERT_TRUE(becomes_allocatable(4));
}

TEST_F(SimMigLayout, RefusesAnImpossibleLayout) {
  serve_rules("  - {devices: [7], mig: {devices: {1g.10gb: 7, 2g.20gb: 1}}}\n");
  const auto why = wait_for_log("MigRefused");
  EXPECT_NE(why.find("the nearest"), std::string::npos) << why;
  EXPECT_EQ(machine_state().lock_for_read()->gpus[7].mig.current, 0u);
  ASSERT_TRUE(becomes_allocatable(7)) << "a GPU that is not what its rule says is not offered";
}

}  // namespace
}  // namespace gpulet::tests
