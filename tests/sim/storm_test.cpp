// Many faults at once, then recovery: nothing leaks and nothing is left behind.
#include <unistd.h>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr int kXids = 200;
// Allowed growth of resident memory. AddressSanitizer quarantines up to 256 MiB.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kMaxGrowthBytes = 512u << 20;
#else
constexpr std::size_t kMaxGrowthBytes = 32u << 20;
#endif
constexpr std::size_t kMaxExtra = 4;  // transient descriptors: a connection, a pipe

class SimStorm : public NodeTest {
 protected:
  bool all_healthy() {
    return wait_for_kubelet([&](const sim::KubeletState& state) {
      const auto* resource = find_resource(state, kGpu);
      return resource != nullptr && resource->connected && resource->allocatable() == 8;
    });
  }
  void send_xid_storm() {
    const std::string socket = sim_kubelet().plugin_dir() + "/nvidia-gpu.sock";
    for (int i = 0; i < kXids; ++i) {
      const auto gpu = static_cast<std::uint32_t>(i % 8);
      ASSERT_TRUE(sim::control::post_xid(machine_state(), gpu, i % 3 == 0 ? 13 : kFallenOffTheBus));
      if (i % 40 == 20) ::unlink(socket.c_str());
      if (i % 50 == 30) {
        ASSERT_TRUE(sim_kubelet().restart_kubelet());
      }
    }
    ASSERT_TRUE(sim::control::heal_faults(machine_state(), std::nullopt));
  }
};

TEST_F(SimStorm, OfXidsLostSocketsAndRestartedKubelets) {
  start_node("hgx-h100", {.environment = {"GPULET_HEALTH_LIVENESS_INTERVAL=1s"}});
  ASSERT_NE(listener_port(), 0);
  // The first round may allocate permanently.
  send_xid_storm();
  ASSERT_TRUE(all_healthy());
  ASSERT_TRUE(becomes_true([&] { return http_get(listener_port(), "/readyz").status == 200; }));
  const auto descriptors = agent_descriptors(), threads = agent_threads();
  const auto resident = sim_node().agent_resident_bytes();
  for (int round = 0; round < 3; ++round) {
    send_xid_storm();
    ASSERT_TRUE(all_healthy()) << "round " << round;
  }
  ASSERT_TRUE(becomes_true([&] { return http_get(listener_port(), "/readyz").status == 200; }));
  EXPECT_TRUE(becomes_true([&] { return agent_descriptors() <= descriptors + kMaxExtra; }))
      << descriptors << " before, " << agent_descriptors() << " after";
  EXPECT_TRUE(becomes_true([&] { return agent_threads() <= threads + kMaxExtra; }))
      << threads << " before, " << agent_threads() << " after";
  EXPECT_LT(sim_node().agent_resident_bytes(), resident + kMaxGrowthBytes);
  // The last fault has just ended: a driver call may still be running on a busy machine.
  EXPECT_TRUE(becomes_true([&] {
    const auto grant =
        sim_kubelet().admit_pod({.name = "all", .uid = "all", .containers = {{"main", {{kGpu, 8}}}}});
    return grant && granted_ids(*grant).size() == 8;
  }));
}

TEST_F(SimStorm, OfDriverReloadsAndConfigChanges) {
  bring_up_node();
  const auto sharing = [](unsigned replicas) {
    return "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: " +
           std::to_string(replicas) + "}\n";
  };
  write_config(sharing(2));
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(16));
  const auto descriptors = agent_descriptors();
  for (unsigned round = 0; round < 5; ++round) {
    ASSERT_TRUE(sim::control::unload_driver(machine_state()));
    write_config(sharing(3 + round));
    ASSERT_TRUE(sim::control::load_driver(machine_state()));
    ASSERT_TRUE(becomes_allocatable(8 * (3 + round))) << "round " << round;
  }
  EXPECT_TRUE(becomes_true([&] { return agent_descriptors() <= descriptors + kMaxExtra; }))
      << descriptors << " before, " << agent_descriptors() << " after";
}

}  // namespace
}  // namespace gpulet::tests
