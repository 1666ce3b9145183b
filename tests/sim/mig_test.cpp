// GPUs that are cut up: what each strategy offers, and layouts that change while the agent runs.
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimMig : public NodeTest {
 protected:
  static cli::AgentOptions strategy(const std::string& name) {
    return {.arguments = {"--mig-strategy=" + name}, .environment = {"GPULET_HEALTH_ALIVE_INTERVAL=1s"}};
  }
  bool knows(const std::string& resource) { return find(kubelet().state(), resource) != nullptr; }
};

TEST_F(SimMig, MixedOffersEachProfile) {
  up();
  cut_up(0, {"1g.10gb", "1g.10gb", "3g.40gb"});
  cut_up(1, {"1g.10gb+me"});
  start_agent(strategy("mixed"));
  EXPECT_TRUE(offered(2, kSmall));
  EXPECT_TRUE(offered(1, kLarge));
  EXPECT_TRUE(offered(1, "nvidia.com/mig-1g.10gb.me"));
  EXPECT_TRUE(offered(6));
}

TEST_F(SimMig, SingleOffersInstancesAsGpus) {
  up("dgx-a100");
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) cut_up(gpu, {"3g.40gb", "3g.40gb"});
  start_agent(strategy("single"));
  EXPECT_TRUE(offered(16));
  EXPECT_FALSE(knows(kLarge));
}

TEST_F(SimMig, NoneOffersTheWholeGpus) {
  up();
  cut_up(0, {"1g.10gb", "1g.10gb"});
  start_agent(strategy("none"));
  EXPECT_TRUE(offered(8));
  EXPECT_FALSE(knows(kSmall));
}

TEST_F(SimMig, ALayoutThatChangesIsOfferedAnewWithoutARestart) {
  serve("hgx-h100", strategy("mixed"));
  cut_up(3, {"1g.10gb", "1g.10gb", "1g.10gb"});
  ASSERT_TRUE(offered(3, kSmall));
  ASSERT_TRUE(offered(7));
  cut_up(3, {"3g.40gb"});
  ASSERT_TRUE(offered(1, kLarge));
  EXPECT_TRUE(offered(3, kSmall));
  make_whole(3);
  ASSERT_TRUE(offered(8));
  EXPECT_TRUE(wait_for(
      [](const auto& state) { return !find(state, kSmall)->connected && !find(state, kLarge)->connected; }));
  EXPECT_EQ(registrations(), 1u);
  EXPECT_NE(said("ResourceWithdrawn", kSmall), "");
}

TEST_F(SimMig, TheDriversEventTellsOfANewLayout) {
  // The next look without an event is too far away for this test.
  serve("hgx-h100",
        {.arguments = {"--mig-strategy=mixed"}, .environment = {"GPULET_HEALTH_ALIVE_INTERVAL=10m"}});
  // An XID proves that the wait for events has begun.
  ASSERT_TRUE(sim::control::xid(machine(), 0, kFallenOffTheBus));
  ASSERT_TRUE(unhealthy({uuid(0)}));
  cut_up(3, {"1g.10gb"});
  sim::post_event(*machine().edit(), 3, sim::kEventMigConfig, 0);
  EXPECT_TRUE(offered(1, kSmall));
}

}  // namespace
}  // namespace gpulet::tests
