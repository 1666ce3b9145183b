// MIG layouts that a rule asks for, made by the agent on the simulated driver: Pods that hold something stay,
// the other GPUs are never disturbed, and a killed agent goes on where it was.
#include <signal.h>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kMiddle = "nvidia.com/mig-2g.20gb";

class SimMigLayout : public NodeTest {
 protected:
  void SetUp() override { up(); }
  void serve_rules(const std::string& rules) {
    write_rules(rules);
    start_agent(options());
  }
  void write_rules(const std::string& rules) { write_config("version: v1\ngpulet:\n  partition:\n" + rules); }
  // Has a Pod hold the one device of kSmall at that memory slice; returns its ID.
  std::string hold_at(std::uint32_t gpu, std::uint32_t start) {
    std::string wanted;
    for (const auto& instance : machine().read()->gpus[gpu].mig.instances) {
      if (instance.used && instance.start == start) wanted = instance.compute[0].uuid;
    }
    for (int i = 0; i < 7; ++i) {
      const auto grant = admit("holder-" + std::to_string(i), 1, kSmall);
      if (ids_of(grant, kSmall).at(0) != wanted) others_.push_back(grant.uid);
    }
    for (const auto& uid : others_) EXPECT_TRUE(kubelet().remove(uid));
    EXPECT_EQ(kubelet().state().pods.size(), 1u);
    return wanted;
  }
  std::vector<std::string> others_;
  cli::AgentOptions options() { return {.arguments = {"--config-file=" + config_path()}}; }
};

TEST_F(SimMigLayout, ARuleIsMadeTrue) {
  serve_rules("  - {devices: [7], mig: {layout: all-balanced}}\n");
  ASSERT_TRUE(offered(2, kSmall)) << log();
  ASSERT_TRUE(offered(1, kMiddle));
  ASSERT_TRUE(offered(1, kLarge));
  ASSERT_TRUE(offered(7));
  EXPECT_NE(said("MigApplied", "GPU 7"), "");
}

TEST_F(SimMigLayout, AnotherLayoutGoesAroundWhatAPodHolds) {
  serve_rules("  - {devices: [7], mig: {layout: all-1g.10gb}}\n");
  ASSERT_TRUE(offered(7, kSmall)) << log();
  ASSERT_TRUE(offered(7));
  const auto lists = kubelet().state().resources.at(kGpu).lists;
  // All-balanced has room for a 1g.10gb at memory slice 2, and none for one in the upper half.
  const auto held = hold_at(7, 2);
  write_rules("  - {devices: [7], mig: {layout: all-balanced}}\n");
  ASSERT_TRUE(offered(1, kLarge)) << log();
  ASSERT_TRUE(offered(2, kSmall));
  const auto ids = healthy_ids(*find(kubelet().state(), kSmall));
  EXPECT_TRUE(ids.contains(held)) << "what the Pod holds is still there";
  EXPECT_EQ(kubelet().state().resources.at(kGpu).lists, lists) << "the whole GPUs heard nothing of it";
}

TEST_F(SimMigLayout, AGpuThatAPodHoldsIsMadeWhenThePodHasGone) {
  serve_rules("  - {devices: [0-6], whole: {}}\n");
  ASSERT_TRUE(offered(8));
  const auto grant = admit("holder", 8);
  write_rules("  - {devices: [7], mig: {layout: all-1g.10gb}}\n");
  EXPECT_NE(said("MigBlocked", "default/holder"), "");
  EXPECT_EQ(machine().read()->gpus[7].mig.current, 0u);
  ASSERT_TRUE(kubelet().remove(grant.uid));
  ASSERT_TRUE(offered(7, kSmall)) << log();
}

TEST_F(SimMigLayout, AKilledAgentIsFollowedByOneThatGoesOn) {
  serve_rules("  - {devices: [4-7], mig: {layout: all-1g.10gb}}\n");
  ASSERT_TRUE(eventually([&] { return machine().read()->gpus[4].mig.current == 1; }));
  node().kill_agent();
  start_agent(options());
  ASSERT_TRUE(offered(28, kSmall)) << log();
  ASSERT_TRUE(offered(4));
}

TEST_F(SimMigLayout, AnImpossibleLayoutIsRefusedAndNothingChanges) {
  serve_rules("  - {devices: [7], mig: {devices: {1g.10gb: 7, 2g.20gb: 1}}}\n");
  const auto why = said("MigRefused");
  EXPECT_NE(why.find("the nearest"), std::string::npos) << why;
  EXPECT_EQ(machine().read()->gpus[7].mig.current, 0u);
  ASSERT_TRUE(offered(7)) << "a GPU that is not what its rule says is not offered";
}

}  // namespace
}  // namespace gpulet::tests
