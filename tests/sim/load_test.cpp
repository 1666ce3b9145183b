// Which GPUs containers get while others are in use: the agent's own samples, through the kubelet's protocol.
#include <algorithm>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;

constexpr const char* kQuarters =
    "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n";

class SimLoad : public NodeTest {
 protected:
  void start_shared(const std::string& load = "prefer") {
    bring_up_node();
    write_config(kQuarters);
    start_agent({.environment = {"CONFIG_FILE=" + config_path(), "GPULET_METRICS_INTERVAL=1s",
                                 "GPULET_PLACEMENT_LOAD=" + load}});
    ASSERT_TRUE(becomes_allocatable(32));
  }
  void use_gpu(std::uint32_t gpu) {
    ASSERT_TRUE(control::set_load(machine_state(), gpu, {.percent = 100, .memory_mib = 75'000}));
  }
  // The GPU of the Pod's only share.
  std::uint32_t gpu_of(const std::string& pod) {
    const auto ids = granted_ids(admit_pod(pod, 1));
    if (ids.size() != 1) return gpu_count();
    return gpu_index(ids.front().substr(0, ids.front().find("::")));
  }
  // Until the agent has sampled the load of that many GPUs.
  bool has_sampled_loads(std::size_t count) {
    return becomes_true([&] {
      const auto page = http_get(listener_port(), "/metrics").body;
      std::size_t busy = 0;
      for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu) {
        const auto at = page.find("\nDCGM_FI_DEV_GPU_UTIL{gpu=\"" + std::to_string(gpu) + "\"");
        busy += at != std::string::npos && page.substr(at, page.find('\n', at + 1) - at).ends_with(" 100");
      }
      return busy == count;
    });
  }
};

// One Pod on each of eight GPUs, three of which are busy and full: the next Pods go to the five others.
TEST_F(SimLoad, TheNextPodsGoToIdleGpus) {
  start_shared();
  std::set<std::uint32_t> first;
  for (int pod = 0; pod < 8; ++pod) first.insert(gpu_of("first-" + std::to_string(pod)));
  EXPECT_EQ(first.size(), 8u);
  for (std::uint32_t gpu = 0; gpu < 3; ++gpu) use_gpu(gpu);
  ASSERT_TRUE(has_sampled_loads(3));
  for (int pod = 0; pod < 15; ++pod) {
    const auto gpu = gpu_of("next-" + std::to_string(pod));
    EXPECT_GE(gpu, 3u);
    EXPECT_LT(gpu, 8u);
  }
  // Only the busy ones are left.
  EXPECT_LT(gpu_of("last"), 3u);
}

TEST_F(SimLoad, IsIgnoredByChoice) {
  start_shared("ignore");
  use_gpu(0);
  ASSERT_TRUE(has_sampled_loads(1));
  EXPECT_EQ(gpu_of("pod"), 0u);
}

TEST_F(SimLoad, PlaceReadsTheLoadItself) {
  start_shared();
  use_gpu(0);
  const auto placed = sim_node().run_gpulet({"place", "--size", "1", "--config-file", config_path()});
  ASSERT_TRUE(placed) << placed.error().full_message();
  EXPECT_NE(placed->find(gpu_uuid(1)), std::string::npos) << *placed;
  EXPECT_EQ(placed->find(gpu_uuid(0)), std::string::npos) << *placed;
}

}  // namespace
}  // namespace gpulet::tests
