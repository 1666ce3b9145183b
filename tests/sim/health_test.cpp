// A GPU that breaks is withdrawn alone, its Pod is named, and it is offered again once it is well.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "base/file.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;

class SimHealth : public NodeTest {
 protected:
  // A GPU that sends no event is asked soon, and one that hangs is given up on soon.
  static cli::AgentOptions impatient() {
    return {.environment = {"GPULET_HEALTH_ALIVE_INTERVAL=1s", "GPULET_DRIVER_CALL_TIMEOUT=300ms"}};
  }
};

TEST_F(SimHealth, AnXidWithdrawsItsGpuAndNamesThePod) {
  serve();
  const std::string held = ids_of(admit("trainer", 1)).at(0);
  ASSERT_TRUE(control::xid(machine(), index_of(held), kFallenOffTheBus));
  ASSERT_TRUE(unhealthy({held}));
  const auto said_of_it = said("GPUUnhealthy");
  EXPECT_NE(said_of_it.find("default/trainer"), std::string::npos) << said_of_it;
  EXPECT_NE(said_of_it.find(held), std::string::npos) << said_of_it;
  admit("neighbour", 7);

  ASSERT_TRUE(control::heal(machine(), index_of(held)));
  EXPECT_TRUE(offered(8));
  EXPECT_NE(said("GPUHealthy", held), "");
  EXPECT_EQ(registrations(), 1u);
}

TEST_F(SimHealth, NoPodIsNamedWhereNoneHoldsTheGpu) {
  serve();
  const std::string held = ids_of(admit("trainer", 1)).at(0);
  const std::uint32_t other = index_of(held) == 0 ? 1 : 0;
  ASSERT_TRUE(control::xid(machine(), other, kFallenOffTheBus));
  ASSERT_TRUE(unhealthy({uuid(other)}));
  const auto said_of_it = said("GPUUnhealthy");
  EXPECT_EQ(said_of_it.find("trainer"), std::string::npos) << said_of_it;
}

TEST_F(SimHealth, AnApplicationsXidChangesNothing) {
  serve();
  ASSERT_TRUE(control::xid(machine(), 0, 13));
  // Events keep their order: when the second is seen, the first was.
  ASSERT_TRUE(control::xid(machine(), 5, kFallenOffTheBus));
  ASSERT_TRUE(unhealthy({uuid(5)}));
}

TEST_F(SimHealth, WhatTheOperatorLeavesAloneIsLeftAlone) {
  serve("hgx-h100", {.environment = {"DP_DISABLE_HEALTHCHECKS=79", "DP_ENABLE_HEALTHCHECKS=13"}});
  {
    // Of the first the driver wants nothing done: that alone would withdraw it.
    const auto edit = machine().edit();
    sim::post_event(*edit, 2, sim::kEventXid, kFallenOffTheBus);
    edit->gpus[4].recovery_action = 1;
    sim::post_event(*edit, 4, sim::kEventXid, 13);
  }
  ASSERT_TRUE(unhealthy({uuid(4)}));
}

TEST_F(SimHealth, EveryShareOfABrokenGpuIsWithdrawn) {
  up();
  write_config(
      "version: v1\n"
      "sharing:\n"
      "  timeSlicing:\n"
      "    resources:\n"
      "    - {name: nvidia.com/gpu, replicas: 4}\n");
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(offered(32));
  const std::string share = ids_of(admit("trainer", 1)).at(0);
  const std::string gpu = share.substr(0, share.find("::"));
  ASSERT_TRUE(control::xid(machine(), index_of(gpu), kFallenOffTheBus));
  EXPECT_TRUE(unhealthy({gpu + "::0", gpu + "::1", gpu + "::2", gpu + "::3"}));
  EXPECT_NE(said("GPUUnhealthy", "default/trainer"), "");
  ASSERT_TRUE(control::heal(machine(), std::nullopt));
  EXPECT_TRUE(offered(32));
}

TEST_F(SimHealth, AnXidOnAMigInstanceWithdrawsThatInstance) {
  up();
  const auto instances = cut_up(0, {"1g.10gb", "1g.10gb", "1g.10gb"});
  start_agent({.arguments = {"--mig-strategy=mixed"}, .environment = {"GPULET_HEALTH_HOLD=3s"}});
  ASSERT_TRUE(offered(3, "nvidia.com/mig-1g.10gb"));
  ASSERT_TRUE(offered(7));
  std::uint32_t gpu_instance = sim::kNoInstance;
  {
    const auto state = machine().read();
    for (const auto& instance : state->gpus[0].mig.instances) {
      if (instance.used && instances[1] == instance.compute[0].uuid) gpu_instance = instance.id;
    }
  }
  // Without a recovery action, which would be the whole GPU's.
  sim::post_event(*machine().edit(), 0, sim::kEventXid, 95, gpu_instance, 0);
  EXPECT_TRUE(unhealthy({instances[1]}, "nvidia.com/mig-1g.10gb"));
  EXPECT_TRUE(offered(7));
  EXPECT_TRUE(offered(3, "nvidia.com/mig-1g.10gb"));

  ASSERT_TRUE(control::xid(machine(), 0, kFallenOffTheBus));
  EXPECT_TRUE(unhealthy({instances.begin(), instances.end()}, "nvidia.com/mig-1g.10gb"));
  EXPECT_TRUE(offered(7));
}

TEST_F(SimHealth, AGpuLostWithoutAnEventIsFoundOut) {
  serve("hgx-h100", impatient());
  ASSERT_TRUE(control::lost(machine(), 3));
  ASSERT_TRUE(unhealthy({uuid(3)}));
  EXPECT_NE(said("GPUUnhealthy", uuid(3)), "");
  const auto ids = ids_of(admit("others", 7));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), uuid(3)), 0);
  ASSERT_TRUE(control::heal(machine(), 3));
  EXPECT_TRUE(offered(8));
}

TEST_F(SimHealth, AGpuLostBeforeTheStartLeavesTheOthersWhole) {
  up();
  ASSERT_TRUE(control::lost(machine(), 3));
  start_agent(impatient());
  ASSERT_TRUE(wait_for([](const auto& state) {
    const auto* resource = find(state, kGpu);
    return resource != nullptr && resource->connected && resource->allocatable() == 7;
  }));
  admit("others", 7);
  ASSERT_TRUE(control::heal(machine(), 3));
  EXPECT_TRUE(offered(8));
}

TEST_F(SimHealth, AHangingGpuHoldsNothingElseUp) {
  serve("hgx-h100", impatient());
  ASSERT_TRUE(control::hang(machine(), 2));
  ASSERT_TRUE(unhealthy({uuid(2)}));
  admit("others", 7);
  // Another one breaks meanwhile.
  ASSERT_TRUE(control::xid(machine(), 6, kFallenOffTheBus));
  ASSERT_TRUE(unhealthy({uuid(2), uuid(6)}));
  ASSERT_TRUE(control::heal(machine(), 6));
  ASSERT_TRUE(unhealthy({uuid(2)}));
  ASSERT_TRUE(control::heal(machine(), 2));
  EXPECT_TRUE(offered(8));
}

TEST_F(SimHealth, AGpuThatHangsFromTheStartLeavesTheOthersWhole) {
  up();
  ASSERT_TRUE(control::hang(machine(), 2));
  start_agent(impatient());
  ASSERT_TRUE(wait_for([](const auto& state) {
    const auto* resource = find(state, kGpu);
    return resource != nullptr && resource->connected && resource->allocatable() == 7;
  }));
  admit("others", 7);
  ASSERT_TRUE(control::heal(machine(), 2));
  EXPECT_TRUE(offered(8));
}

TEST_F(SimHealth, ASlowDriverIsWaitedFor) {
  up();
  ASSERT_TRUE(control::slow(machine(), std::nullopt, 1000));
  start_agent();
  EXPECT_TRUE(offered(8));
  admit("all", 8);
}

TEST_F(SimHealth, AnotherCardInTheSlotTakesTheOldOnesPlace) {
  serve("hgx-h100", impatient());
  const std::string old = uuid(1);
  ASSERT_TRUE(control::replace(machine(), 1));
  const std::string fresh = uuid(1);
  ASSERT_NE(fresh, old);
  EXPECT_TRUE(wait_for([&](const auto& state) {
    const auto* resource = find(state, kGpu);
    return resource->devices.contains(fresh) && !resource->devices.contains(old) &&
           resource->allocatable() == 8;
  }));
  EXPECT_NE(said("GPUGone", old), "");
}

TEST_F(SimHealth, AFailingEventWaitIsSaidOnceAndLostGpusAreStillFound) {
  serve("hgx-h100", impatient());
  ASSERT_TRUE(control::fail_event_wait(machine(), 999));
  EXPECT_NE(said("DriverEventsUnavailable"), "");
  ASSERT_TRUE(control::lost(machine(), 3));
  ASSERT_TRUE(unhealthy({uuid(3)}));
  const auto text = log();
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = text.find("DriverEventsUnavailable", at)) != std::string::npos; ++at)
    ++lines;
  EXPECT_EQ(lines, 1u);
  ASSERT_TRUE(control::heal(machine(), std::nullopt));
  ASSERT_TRUE(offered(8));
  // Events flow again once the wait's backoff has ended; one that is posted before that is nobody's.
  EXPECT_TRUE(eventually([&] {
    EXPECT_TRUE(control::xid(machine(), 5, kFallenOffTheBus));
    const auto resource = node().kubelet().state().resources.at(kGpu);
    return unhealthy_ids(resource) == std::set<std::string>{uuid(5)};
  }));
}

TEST_F(SimHealth, WhatTheKernelsLogSaysWithdrawsItsGpu) {
  serve("hgx-h100", {.environment = {"GPULET_HEALTH_HOLD=5s"}});
  const FileDescriptor kernel(::open(node().kernel_log().c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(kernel.valid());
  const auto address = machine().read()->gpus[3].pci;
  char record[128];
  std::snprintf(record, sizeof record,
                "4,77,12345,-;NVRM: GPU at PCI:%04x:%02x:%02x: GPU has fallen off the bus.\n", address.domain,
                address.bus, address.device);
  const std::string_view text(record);
  ASSERT_EQ(::write(kernel.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_TRUE(unhealthy({uuid(3)}));
}

TEST_F(SimHealth, FaultsAreRememberedOverARestart) {
  serve("hgx-h100", {.environment = {"GPULET_HEALTH_HOLD=1h"}});
  // The driver wants nothing done: only the time of its checks is to pass.
  sim::post_event(*machine().edit(), 3, sim::kEventXid, 95);
  ASSERT_TRUE(unhealthy({uuid(3)}));
  ASSERT_TRUE(eventually([&] {
    const auto kept = read_file(node().state_dir() + "/health-state");
    return kept && kept->find("fault xid-reset 95 ") != std::string::npos;
  }));
  node().kill_agent();
  start_agent({.environment = {"GPULET_HEALTH_HOLD=1h"}});
  EXPECT_NE(said("GPUUnhealthy", uuid(3)), "");
  EXPECT_TRUE(unhealthy({uuid(3)}));
  start_agent({.environment = {"GPULET_HEALTH_HOLD=0s"}});
  EXPECT_TRUE(offered(8));
}

}  // namespace
}  // namespace gpulet::tests
