// Everything at once, and then all is well: nothing leaks and nothing is left behind.
#include <unistd.h>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

constexpr int kXids = 200;
// What storms may add to the resident memory. AddressSanitizer keeps up to 256 MiB of what was freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kMoreBytes = 512u << 20;
#else
constexpr std::size_t kMoreBytes = 32u << 20;
#endif
constexpr std::size_t kFewMore = 4;  // descriptors that come and go: a connection, a pipe

class SimStorm : public NodeTest {
 protected:
  bool all_is_well() {
    return wait_for([&](const sim::KubeletState& state) {
      const auto* resource = find(state, kGpu);
      return resource != nullptr && resource->connected && resource->allocatable() == 8;
    });
  }
  void storm() {
    const std::string socket = kubelet().plugin_dir() + "/nvidia-gpu.sock";
    for (int i = 0; i < kXids; ++i) {
      const auto gpu = static_cast<std::uint32_t>(i % 8);
      ASSERT_TRUE(sim::control::xid(machine(), gpu, i % 3 == 0 ? 13 : kFallenOffTheBus));
      if (i % 40 == 20) ::unlink(socket.c_str());
      if (i % 50 == 30) {
        ASSERT_TRUE(kubelet().restart());
      }
    }
    ASSERT_TRUE(sim::control::heal(machine(), std::nullopt));
  }
};

TEST_F(SimStorm, OfXidsLostSocketsAndRestartedKubelets) {
  serve("hgx-h100", {.environment = {"GPULET_HEALTH_ALIVE_INTERVAL=1s"}});
  ASSERT_NE(port(), 0);
  // The first one may make what is kept for good.
  storm();
  ASSERT_TRUE(all_is_well());
  ASSERT_TRUE(eventually([&] { return http_get(port(), "/readyz").status == 200; }));
  const auto descriptors = agent_descriptors(), threads = agent_threads();
  const auto resident = node().agent_resident_bytes();
  for (int round = 0; round < 3; ++round) {
    storm();
    ASSERT_TRUE(all_is_well()) << "round " << round;
  }
  ASSERT_TRUE(eventually([&] { return http_get(port(), "/readyz").status == 200; }));
  EXPECT_TRUE(eventually([&] { return agent_descriptors() <= descriptors + kFewMore; }))
      << descriptors << " before, " << agent_descriptors() << " after";
  EXPECT_TRUE(eventually([&] { return agent_threads() <= threads + kFewMore; }))
      << threads << " before, " << agent_threads() << " after";
  EXPECT_LT(node().agent_resident_bytes(), resident + kMoreBytes);
  // The last fault ended a moment ago: on a busy machine the driver's last reading may still be under way.
  EXPECT_TRUE(eventually([&] {
    const auto grant = kubelet().admit({.name = "all", .uid = "all", .containers = {{"main", {{kGpu, 8}}}}});
    return grant && ids_of(*grant).size() == 8;
  }));
}

TEST_F(SimStorm, OfDriverReloadsAndConfigChanges) {
  up();
  const auto sharing = [](unsigned replicas) {
    return "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: " +
           std::to_string(replicas) + "}\n";
  };
  write_config(sharing(2));
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(offered(16));
  const auto descriptors = agent_descriptors();
  for (unsigned round = 0; round < 5; ++round) {
    ASSERT_TRUE(sim::control::unload_driver(machine()));
    write_config(sharing(3 + round));
    ASSERT_TRUE(sim::control::load_driver(machine()));
    ASSERT_TRUE(offered(8 * (3 + round))) << "round " << round;
  }
  EXPECT_TRUE(eventually([&] { return agent_descriptors() <= descriptors + kFewMore; }))
      << descriptors << " before, " << agent_descriptors() << " after";
}

}  // namespace
}  // namespace gpulet::tests
