// A faulty GPU is withdrawn alone, its Pod is named, and the GPU is offered again once healthy.
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
  // Short probe interval and short timeout of hanging GPUs.
  static sim::AgentOptions fast_options() {
    return {.environment = {"GPULET_HEALTH_LIVENESS_INTERVAL=1s", "GPULET_DRIVER_CALL_TIMEOUT=300ms"}};
  }
};

TEST_F(SimHealth, AnXidWithdrawsItsGpuAndNamesThePod) {
  start_node();
  const std::string held = granted_ids(admit_pod("trainer", 1)).at(0);
  ASSERT_TRUE(control::post_xid(machine_state(), gpu_index(held), kFallenOffTheBus));
  ASSERT_TRUE(becomes_unhealthy({held}));
  const auto said_of_it = wait_for_log("GPUUnhealthy");
  EXPECT_NE(said_of_it.find("default/trainer"), std::string::npos) << said_of_it;
  EXPECT_NE(said_of_it.find(held), std::string::npos) << said_of_it;
  admit_pod("neighbour", 7);

  ASSERT_TRUE(control::heal_faults(machine_state(), gpu_index(held)));
  EXPECT_TRUE(becomes_allocatable(8));
  EXPECT_NE(wait_for_log("GPUHealthy", held), "");
  EXPECT_EQ(registration_count(), 1u);
}

TEST_F(SimHealth, NamesNoPodOfAFreeGpu) {
  start_node();
  const std::string held = granted_ids(admit_pod("trainer", 1)).at(0);
  const std::uint32_t other = gpu_index(held) == 0 ? 1 : 0;
  ASSERT_TRUE(control::post_xid(machine_state(), other, kFallenOffTheBus));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(other)}));
  const auto said_of_it = wait_for_log("GPUUnhealthy");
  EXPECT_EQ(said_of_it.find("trainer"), std::string::npos) << said_of_it;
}

TEST_F(SimHealth, IgnoresAnApplicationXid) {
  start_node();
  ASSERT_TRUE(control::post_xid(machine_state(), 0, 13));
  // Events are ordered: the second proves that the first was handled.
  ASSERT_TRUE(control::post_xid(machine_state(), 5, kFallenOffTheBus));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(5)}));
}

TEST_F(SimHealth, IgnoresConfiguredXids) {
  start_node("hgx-h100", {.environment = {"DP_DISABLE_HEALTHCHECKS=79", "DP_ENABLE_HEALTHCHECKS=13"}});
  {
    // The first has no recovery action, which alone would withdraw the GPU.
    const auto edit = machine_state().lock_for_edit();
    sim::post_event(*edit, 2, sim::kEventXid, kFallenOffTheBus);
    edit->gpus[4].recovery_action = 1;
    sim::post_event(*edit, 4, sim::kEventXid, 13);
  }
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(4)}));
}

TEST_F(SimHealth, WithdrawsEveryShareOfAFaultyGpu) {
  bring_up_node();
  write_config(
      "version: v1\n"
      "sharing:\n"
      "  timeSlicing:\n"
      "    resources:\n"
      "    - {name: nvidia.com/gpu, replicas: 4}\n");
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(32));
  const std::string share = granted_ids(admit_pod("trainer", 1)).at(0);
  const std::string gpu = share.substr(0, share.find("::"));
  ASSERT_TRUE(control::post_xid(machine_state(), gpu_index(gpu), kFallenOffTheBus));
  EXPECT_TRUE(becomes_unhealthy({gpu + "::0", gpu + "::1", gpu + "::2", gpu + "::3"}));
  EXPECT_NE(wait_for_log("GPUUnhealthy", "default/trainer"), "");
  ASSERT_TRUE(control::heal_faults(machine_state(), std::nullopt));
  EXPECT_TRUE(becomes_allocatable(32));
}

TEST_F(SimHealth, AnXidOnAMigInstanceWithdrawsThatInstance) {
  bring_up_node();
  const auto instances = create_mig_devices(0, {"1g.10gb", "1g.10gb", "1g.10gb"});
  start_agent({.arguments = {"--mig-strategy=mixed"}, .environment = {"GPULET_HEALTH_RECOVERY_HOLD=3s"}});
  ASSERT_TRUE(becomes_allocatable(3, "nvidia.com/mig-1g.10gb"));
  ASSERT_TRUE(becomes_allocatable(7));
  std::uint32_t gpu_instance = sim::kNoInstance;
  {
    const auto state = machine_state().lock_for_read();
    for (const auto& instance : state->gpus[0].mig.instances) {
      if (instance.used && instances[1] == instance.compute[0].uuid) gpu_instance = instance.id;
    }
  }
  // Without a recovery action, which would affect the whole GPU.
  sim::post_event(*machine_state().lock_for_edit(), 0, sim::kEventXid, 95, gpu_instance, 0);
  EXPECT_TRUE(becomes_unhealthy({instances[1]}, "nvidia.com/mig-1g.10gb"));
  EXPECT_TRUE(becomes_allocatable(7));
  EXPECT_TRUE(becomes_allocatable(3, "nvidia.com/mig-1g.10gb"));

  ASSERT_TRUE(control::post_xid(machine_state(), 0, kFallenOffTheBus));
  EXPECT_TRUE(becomes_unhealthy({instances.begin(), instances.end()}, "nvidia.com/mig-1g.10gb"));
  EXPECT_TRUE(becomes_allocatable(7));
}

TEST_F(SimHealth, FindsALostGpuWithoutAnEvent) {
  start_node("hgx-h100", fast_options());
  ASSERT_TRUE(control::lose_gpu(machine_state(), 3));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(3)}));
  EXPECT_NE(wait_for_log("GPUUnhealthy", gpu_uuid(3)), "");
  const auto ids = granted_ids(admit_pod("others", 7));
  EXPECT_EQ(std::count(ids.begin(), ids.end(), gpu_uuid(3)), 0);
  ASSERT_TRUE(control::heal_faults(machine_state(), 3));
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimHealth, AGpuLostBeforeTheStartDoesNotAffectOthers) {
  bring_up_node();
  ASSERT_TRUE(control::lose_gpu(machine_state(), 3));
  start_agent(fast_options());
  ASSERT_TRUE(wait_for_kubelet([](const auto& state) {
    const auto* resource = find_resource(state, kGpu);
    return resource != nullptr && resource->connected && resource->allocatable() == 7;
  }));
  admit_pod("others", 7);
  ASSERT_TRUE(control::heal_faults(machine_state(), 3));
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimHealth, AHangingGpuBlocksNothingElse) {
  start_node("hgx-h100", fast_options());
  ASSERT_TRUE(control::hang_calls(machine_state(), 2));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(2)}));
  admit_pod("others", 7);
  // Another GPU fails meanwhile.
  ASSERT_TRUE(control::post_xid(machine_state(), 6, kFallenOffTheBus));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(2), gpu_uuid(6)}));
  ASSERT_TRUE(control::heal_faults(machine_state(), 6));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(2)}));
  ASSERT_TRUE(control::heal_faults(machine_state(), 2));
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimHealth, AGpuThatHangsAtTheStartDoesNotAffectOthers) {
  bring_up_node();
  ASSERT_TRUE(control::hang_calls(machine_state(), 2));
  start_agent(fast_options());
  ASSERT_TRUE(wait_for_kubelet([](const auto& state) {
    const auto* resource = find_resource(state, kGpu);
    return resource != nullptr && resource->connected && resource->allocatable() == 7;
  }));
  admit_pod("others", 7);
  ASSERT_TRUE(control::heal_faults(machine_state(), 2));
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimHealth, WaitsForASlowDriver) {
  bring_up_node();
  ASSERT_TRUE(control::slow_calls(machine_state(), std::nullopt, 1000));
  start_agent();
  EXPECT_TRUE(becomes_allocatable(8));
  admit_pod("all", 8);
}

TEST_F(SimHealth, AReplacedCardReplacesTheDevice) {
  start_node("hgx-h100", fast_options());
  const std::string old = gpu_uuid(1);
  ASSERT_TRUE(control::replace_gpu(machine_state(), 1));
  const std::string fresh = gpu_uuid(1);
  ASSERT_NE(fresh, old);
  EXPECT_TRUE(wait_for_kubelet([&](const auto& state) {
    const auto* resource = find_resource(state, kGpu);
    return resource->devices.contains(fresh) && !resource->devices.contains(old) &&
           resource->allocatable() == 8;
  }));
  EXPECT_NE(wait_for_log("GPUGone", old), "");
}

TEST_F(SimHealth, FindsLostGpusWhileEventWaitsFail) {
  start_node("hgx-h100", fast_options());
  ASSERT_TRUE(control::fail_event_wait(machine_state(), 999));
  EXPECT_NE(wait_for_log("DriverEventsUnavailable"), "");
  ASSERT_TRUE(control::lose_gpu(machine_state(), 3));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(3)}));
  const auto text = agent_log();
  std::size_t lines = 0;
  for (std::size_t at = 0; (at = text.find("DriverEventsUnavailable", at)) != std::string::npos; ++at)
    ++lines;
  EXPECT_EQ(lines, 1u);
  ASSERT_TRUE(control::heal_faults(machine_state(), std::nullopt));
  ASSERT_TRUE(becomes_allocatable(8));
  // Events are received again after the wait's backoff; earlier ones are lost.
  EXPECT_TRUE(becomes_true([&] {
    EXPECT_TRUE(control::post_xid(machine_state(), 5, kFallenOffTheBus));
    const auto resource = sim_node().kubelet().kubelet_state().resources.at(kGpu);
    return unhealthy_ids(resource) == std::set<std::string>{gpu_uuid(5)};
  }));
}

TEST_F(SimHealth, AnXidInTheKernelLogWithdrawsItsGpu) {
  start_node("hgx-h100", {.environment = {"GPULET_HEALTH_RECOVERY_HOLD=5s"}});
  const FileDescriptor kernel(::open(sim_node().kernel_log().c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(kernel.is_open());
  const auto address = machine_state().lock_for_read()->gpus[3].pci;
  char record[128];
  std::snprintf(record, sizeof record,
                "4,77,12345,-;NVRM: GPU at PCI:%04x:%02x:%02x: GPU has fallen off the bus.\n", address.domain,
                address.bus, address.device);
  const std::string_view text(record);
  ASSERT_EQ(::write(kernel.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(3)}));
}

TEST_F(SimHealth, FaultsPersistOverARestart) {
  start_node("hgx-h100", {.environment = {"GPULET_HEALTH_RECOVERY_HOLD=1h"}});
  // No recovery action: only the hold time must pass.
  sim::post_event(*machine_state().lock_for_edit(), 3, sim::kEventXid, 95);
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(3)}));
  ASSERT_TRUE(becomes_true([&] {
    const auto kept = read_file(sim_node().state_dir() + "/health-state");
    return kept && kept->find("fault xid-reset 95 ") != std::string::npos;
  }));
  sim_node().kill_agent();
  start_agent({.environment = {"GPULET_HEALTH_RECOVERY_HOLD=1h"}});
  EXPECT_NE(wait_for_log("GPUUnhealthy", gpu_uuid(3)), "");
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(3)}));
  start_agent({.environment = {"GPULET_HEALTH_RECOVERY_HOLD=0s"}});
  EXPECT_TRUE(becomes_allocatable(8));
}

}  // namespace
}  // namespace gpulet::tests
