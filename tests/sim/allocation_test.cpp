// What containers get through the kubelet's protocol: responses of every strategy, and the chosen devices.
#include <algorithm>
#include <filesystem>

#include "device_plugin/list_delay.h"
#include "sim/state/mig.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

using Devices = std::set<std::string>;
constexpr const char* kVisible = "NVIDIA_VISIBLE_DEVICES";

Devices container_paths(const sim::ContainerGrant& grant) {
  Devices paths;
  for (const auto& device : grant.device_specs) paths.insert(device.container_path);
  return paths;
}

class SimAllocation : public NodeTest {
 protected:
  sim::ContainerGrant allocated_beside(const std::string& strategy) {
    start_node("hgx-h100", {.arguments = {"--device-list-strategy=" + strategy}});
    const auto grant = admit_pod("trainer", 2);
    if (grant.containers.empty()) return {};
    ids_ = granted_ids(grant);
    return grant.containers.at(0);
  }
  std::string allocate_by_list() const { return ids_.at(0) + "," + ids_.at(1); }
  // Accepts these GPUs in any order.
  static Devices split_list(const std::string& text) {
    Devices all;
    for (std::size_t at = 0; at <= text.size();) {
      const auto end = std::min(text.find(',', at), text.size());
      all.insert(text.substr(at, end - at));
      at = end + 1;
    }
    return all;
  }
  Devices given_devices() const { return {ids_.begin(), ids_.end()}; }
  // /dev/nvidiactl and other control nodes that exist on this node.
  Devices control_nodes() {
    Devices nodes;
    for (const char* name : {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"}) {
      const std::string path = std::string("/dev/") + name;
      if (std::filesystem::exists(sim_node().driver_root() + path)) nodes.insert(path);
    }
    return nodes;
  }
  std::string device_node_path(std::uint32_t gpu) const {
    return "/dev/nvidia" + std::to_string(machine_state().lock_for_read()->gpus[gpu].minor);
  }
  unsigned nvlinks(std::uint32_t a, std::uint32_t b) const {
    const auto state = machine_state().lock_for_read();
    const auto& pci = state->gpus[b].pci;
    unsigned count = 0;
    for (const auto& link : state->gpus[a].links) {
      count += link.present && link.active && link.remote == sim::kRemoteGpu &&
               link.remote_pci.bus == pci.bus && link.remote_pci.domain == pci.domain &&
               link.remote_pci.device == pci.device;
    }
    return count;
  }

  std::vector<std::string> ids_;
};

TEST_F(SimAllocation, EnvvarWithDeviceNodes) {
  const auto container = allocated_beside("envvar");
  EXPECT_EQ(split_list(container.envs.at(kVisible)), given_devices());
  EXPECT_TRUE(container.cdi_devices.empty());
  EXPECT_TRUE(container.annotations.empty());
  EXPECT_TRUE(container.mounts.empty());
  auto expected = control_nodes();
  for (const auto& id : ids_) expected.insert(device_node_path(gpu_index(id)));
  EXPECT_EQ(container_paths(container), expected);
  for (const auto& device : container.device_specs) {
    EXPECT_EQ(device.host_path, sim_node().driver_root() + device.container_path);
    EXPECT_EQ(device.permissions, "rw");
  }
}

TEST_F(SimAllocation, VolumeMounts) {
  const auto container = allocated_beside("volume-mounts");
  const std::string directory = "/var/run/nvidia-container-devices";
  EXPECT_EQ(container.envs.at(kVisible), directory);
  Devices mounted;
  for (const auto& mount : container.mounts) {
    EXPECT_EQ(mount.host_path, "/dev/null");
    mounted.insert(mount.container_path);
  }
  EXPECT_EQ(mounted, (Devices{directory + "/" + ids_.at(0), directory + "/" + ids_.at(1)}));
}

TEST_F(SimAllocation, CdiAnnotations) {
  const auto container = allocated_beside("cdi-annotations");
  ASSERT_EQ(container.annotations.size(), 1u);
  const auto& [key, value] = *container.annotations.begin();
  EXPECT_TRUE(key.starts_with("cdi.k8s.io/nvidia-device-plugin_")) << key;
  Devices expected;
  for (const auto& id : ids_) expected.insert("k8s.device-plugin.nvidia.com/gpu=" + id);
  EXPECT_EQ(split_list(value), expected);
  EXPECT_TRUE(container.device_specs.empty());
  EXPECT_FALSE(container.envs.contains(kVisible));
}

TEST_F(SimAllocation, CdiNames) {
  const auto container = allocated_beside("cdi-cri");
  Devices names(container.cdi_devices.begin(), container.cdi_devices.end()), expected;
  for (const auto& id : ids_) expected.insert("k8s.device-plugin.nvidia.com/gpu=" + id);
  EXPECT_EQ(names, expected);
  EXPECT_TRUE(container.device_specs.empty());
  EXPECT_TRUE(container.annotations.empty());
}

TEST_F(SimAllocation, DevicesByIndexAndGpuDirectStorage) {
  start_node("hgx-h100", {.arguments = {"--device-id-strategy=index", "--gds-enabled", "--mofed-enabled"}});
  const auto grant = admit_pod("trainer", 3);
  Devices indices;
  for (const auto& id : granted_ids(grant)) indices.insert(std::to_string(gpu_index(id)));
  const auto& envs = grant.containers.at(0).envs;
  EXPECT_EQ(split_list(envs.at(kVisible)), indices);
  EXPECT_EQ(envs.at("NVIDIA_GDS"), "enabled");
  EXPECT_EQ(envs.at("NVIDIA_MOFED"), "enabled");
  EXPECT_FALSE(envs.contains("NVIDIA_GDRCOPY"));
}

TEST_F(SimAllocation, MigDevicesHaveTheirCapabilities) {
  bring_up_node();
  const auto instances = create_mig_devices(1, {"1g.10gb", "3g.40gb"});
  start_agent({.arguments = {"--mig-strategy=mixed"}});
  const std::string resource = "nvidia.com/mig-3g.40gb";
  ASSERT_TRUE(becomes_allocatable(1, resource));
  const auto grant = admit_pod("trainer", 1, resource);
  EXPECT_EQ(granted_ids(grant, resource), std::vector<std::string>{instances[1]});
  const auto& container = grant.containers.at(0);
  EXPECT_EQ(container.envs.at(kVisible), instances[1]);
  auto expected = control_nodes();
  {
    const auto state = machine_state().lock_for_read();
    const auto& gpu = state->gpus[1];
    for (const auto& instance : gpu.mig.instances) {
      if (!instance.used || instances[1] != instance.compute[0].uuid) continue;
      const std::string cap = "/dev/nvidia-caps/nvidia-cap";
      expected.insert(cap + std::to_string(sim::gpu_instance_minor(gpu.minor, instance.id)));
      expected.insert(
          cap + std::to_string(sim::compute_instance_minor(gpu.minor, instance.id, instance.compute[0].id)));
    }
  }
  expected.insert(device_node_path(1));
  EXPECT_EQ(expected.size(), control_nodes().size() + 3);
  EXPECT_EQ(container_paths(container), expected);
}

TEST_F(SimAllocation, PairsOfTheCubeMeshHaveDoubleLinks) {
  start_node("dgx1-v100");
  Devices all;
  for (int pod = 0; pod < 4; ++pod) {
    const auto pair = granted_ids(admit_pod("pair-" + std::to_string(pod), 2));
    ASSERT_EQ(pair.size(), 2u);
    EXPECT_EQ(nvlinks(gpu_index(pair[0]), gpu_index(pair[1])), 2u) << "Pod " << pod;
    all.insert(pair.begin(), pair.end());
  }
  EXPECT_EQ(all.size(), 8u);
}

TEST_F(SimAllocation, EverySizeOnSixteenGpus) {
  start_node("dgx2-v100");
  sim_kubelet().clear_latencies();
  for (unsigned size = 1; size <= 16; ++size) {
    const std::string pod = "size-" + std::to_string(size);
    const auto ids = granted_ids(admit_pod(pod, size));
    EXPECT_EQ(Devices(ids.begin(), ids.end()).size(), size);
    ASSERT_TRUE(sim_kubelet().remove_pod(pod));
  }
  const auto state = sim_kubelet().kubelet_state();
  for (const auto& call : state.latencies) {
    EXPECT_TRUE(call.ok) << call.call;
    EXPECT_LT(call.took, 5s) << call.call;  // NVIDIA's plugin takes 29 s for 3 of 16
  }
}

// Devices that a container may hold make a call of the kubelet ask for its List, which must not wait for the
// end of the same call. One that does waits kMaxListDelay each time, however fast the machine is.
TEST_F(SimAllocation, ItsOwnListDoesNotWaitForACall) {
  start_node("hgx-h100");
  constexpr unsigned kPods = 8;
  const auto hold_all = [&](unsigned pod) {
    const auto name = "all-" + std::to_string(pod);
    EXPECT_EQ(granted_ids(admit_pod(name, 8)).size(), 8u);
    EXPECT_TRUE(sim_kubelet().remove_pod(name));
  };
  hold_all(0);
  sim_kubelet().clear_latencies();
  for (unsigned pod = 1; pod <= kPods; ++pod) hold_all(pod);
  std::chrono::nanoseconds took{};
  unsigned allocations = 0;
  for (const auto& call : sim_kubelet().kubelet_state().latencies) {
    allocations += call.call == "Allocate" ? 1 : 0;
    took += call.took;
  }
  EXPECT_EQ(allocations, kPods);
  EXPECT_LT(took, kPods * device_plugin::kMaxListDelay / 2);
}

TEST_F(SimAllocation, SpreadsSharesOverGpus) {
  bring_up_node();
  write_config(
      "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 48}\n");
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(384));
  Devices gpus;
  for (const auto& id : granted_ids(admit_pod("spread", 8))) gpus.insert(id.substr(0, id.find("::")));
  EXPECT_EQ(gpus.size(), 8u);
  EXPECT_EQ(granted_ids(admit_pod("rest", 376)).size(), 376u);
}

TEST_F(SimAllocation, PacksSharesIfConfigured) {
  bring_up_node();
  write_config(
      "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: nvidia.com/gpu, replicas: 4}\n");
  start_agent({.arguments = {"--config-file=" + config_path(), "--shared-devices-allocation-policy=packed"}});
  ASSERT_TRUE(becomes_allocatable(32));
  Devices gpus;
  for (int pod = 0; pod < 4; ++pod) {
    const auto id = granted_ids(admit_pod("share-" + std::to_string(pod), 1)).at(0);
    gpus.insert(id.substr(0, id.find("::")));
  }
  EXPECT_EQ(gpus.size(), 1u);
}

TEST_F(SimAllocation, RefusesSeveralSharesIfConfigured) {
  bring_up_node();
  write_config(
      "version: v1\nsharing:\n  timeSlicing:\n    failRequestsGreaterThanOne: true\n    resources:\n"
      "    - {name: nvidia.com/gpu, replicas: 4}\n");
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(32));
  const auto refused =
      sim_kubelet().admit_pod({.name = "two", .uid = "two", .containers = {{"main", {{kGpu, 2}}}}});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("maximum request size for shared resources is 1; found 2"),
            std::string::npos)
      << refused.error().full_message();
  admit_pod("one", 1);
}

}  // namespace
}  // namespace gpulet::tests
