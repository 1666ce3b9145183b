// Every machine is offered completely, and the agent re-registers whatever the kubelet does.
#include <unistd.h>

#include <filesystem>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class EveryMachine : public NodeTest, public testing::WithParamInterface<const char*> {};

TEST_P(EveryMachine, IsOfferedWithItsNumaNodes) {
  start_node(GetParam());
  const auto state = sim_kubelet().kubelet_state();
  const auto* resource = find_resource(state, kGpu);
  ASSERT_NE(resource, nullptr);
  EXPECT_EQ(resource->registrations, 1u);
  EXPECT_EQ(resource->endpoint, "nvidia-gpu.sock");
  EXPECT_TRUE(resource->preferred_allocation_available);
  ASSERT_EQ(resource->devices.size(), gpu_count());
  for (std::uint32_t i = 0; i < gpu_count(); ++i) {
    const auto device = resource->devices.find(gpu_uuid(i));
    ASSERT_NE(device, resource->devices.end()) << "GPU " << i;
    const int node = machine_state().lock_for_read()->gpus[i].numa_node;
    EXPECT_EQ(device->second.numa_nodes, node >= 0 ? std::set<int>{node} : std::set<int>{}) << "GPU " << i;
  }
  const auto grant = admit_pod("all", gpu_count());
  EXPECT_EQ(granted_ids(grant).size(), gpu_count());
}

INSTANTIATE_TEST_SUITE_P(Sim, EveryMachine,
                         testing::Values("dgx1-v100", "dgx2-v100", "dgx-a100", "hgx-h100", "hgx-h200", "l40s",
                                         "t4", "gb200"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

class SimRegistration : public NodeTest {
 protected:
  // Removes the kubelet and its sockets.
  void stop_kubelet() {
    sim_kubelet().stop_kubelet();
    std::filesystem::remove(sim_kubelet().kubelet_socket());
    std::filesystem::remove(sim_kubelet().pod_resources_socket());
  }
  bool reregisters(std::uint64_t before) {
    return wait_for_kubelet([&](const sim::KubeletState& state) {
      const auto* resource = find_resource(state, kGpu);
      return resource != nullptr && resource->registrations > before && resource->connected &&
             resource->allocatable() == 8;
    });
  }
};

TEST_F(SimRegistration, SendsBothNumaNodesOfAnL40sNode) {
  start_node("l40s");
  std::set<int> nodes;
  const auto state = sim_kubelet().kubelet_state();
  for (const auto& [id, device] : state.resources.at(kGpu).devices) {
    nodes.insert(device.numa_nodes.begin(), device.numa_nodes.end());
  }
  EXPECT_EQ(nodes, (std::set<int>{0, 1}));
}

TEST_F(SimRegistration, AlignsToOneNumaNodeByPolicy) {
  start_node("l40s");
  sim_kubelet().set_topology_policy(sim::TopologyPolicy::kRestricted);
  for (const char* pod : {"first", "second"}) {
    std::set<int> nodes;
    for (const auto& id : granted_ids(admit_pod(pod, 4))) {
      const auto gpu = gpu_index(id);
      nodes.insert(machine_state().lock_for_read()->gpus[gpu].numa_node);
    }
    EXPECT_EQ(nodes.size(), 1u) << pod;
  }
}

TEST_F(SimRegistration, ReregistersAfterAKubeletRestart) {
  start_node();
  const auto grant = admit_pod("trainer", 2);
  for (int round = 0; round < 3; ++round) {
    const auto before = registration_count();
    ASSERT_TRUE(sim_kubelet().restart_kubelet());
    ASSERT_TRUE(reregisters(before)) << "round " << round;
  }
  EXPECT_EQ(granted_ids(sim_kubelet().kubelet_state().grants.at("trainer")), granted_ids(grant));
  admit_pod("rest", 6);
}

TEST_F(SimRegistration, ReregistersAfterAKubeletWasKilled) {
  start_node();
  const auto before = registration_count();
  sim_kubelet().stop_kubelet();
  ASSERT_TRUE(std::filesystem::exists(sim_kubelet().kubelet_socket()));
  ASSERT_TRUE(sim_kubelet().resume_kubelet());
  EXPECT_TRUE(reregisters(before));
}

TEST_F(SimRegistration, ReregistersAfterItsSocketIsDeleted) {
  start_node();
  const std::string socket = sim_kubelet().plugin_dir() + "/nvidia-gpu.sock";
  for (int round = 0; round < 3; ++round) {
    const auto before = registration_count();
    ASSERT_EQ(::unlink(socket.c_str()), 0);
    ASSERT_TRUE(reregisters(before)) << "round " << round;
    EXPECT_TRUE(std::filesystem::is_socket(socket));
  }
  admit_pod("all", 8);
}

TEST_F(SimRegistration, WaitsForALateKubelet) {
  bring_up_node();
  stop_kubelet();
  start_agent();
  EXPECT_NE(wait_for_log("RegistrationFailed"), "");
  ASSERT_TRUE(sim_kubelet().resume_kubelet());
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimRegistration, WaitsForTheKubeletsDirectory) {
  bring_up_node();
  stop_kubelet();
  std::filesystem::remove_all(sim_node().directory() + "/kubelet");
  start_agent();
  EXPECT_NE(wait_for_log("SocketFailed"), "");
  ASSERT_TRUE(sim_kubelet().resume_kubelet());
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimRegistration, ReregistersInARecreatedDirectory) {
  start_node();
  const auto before = registration_count();
  stop_kubelet();
  std::filesystem::remove_all(sim_node().directory() + "/kubelet");
  ASSERT_TRUE(sim_kubelet().resume_kubelet());
  EXPECT_TRUE(reregisters(before));
}

TEST_F(SimRegistration, RetriesAfterARefusal) {
  bring_up_node();
  sim_kubelet().set_register_behavior(sim::RegisterBehavior::kRefuse);
  start_agent();
  ASSERT_TRUE(wait_for_kubelet([](const auto& state) { return state.refused_registrations >= 3; }));
  EXPECT_NE(wait_for_log("RegistrationFailed", "refused"), "");
  sim_kubelet().set_register_behavior(sim::RegisterBehavior::kAccept);
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimRegistration, AcceptsALateResponse) {
  bring_up_node();
  sim_kubelet().set_register_behavior(sim::RegisterBehavior::kDelay);
  start_agent();
  EXPECT_TRUE(becomes_allocatable(8));
  EXPECT_EQ(registration_count(), 1u);
}

TEST_F(SimRegistration, RetriesAfterATimeout) {
  bring_up_node();
  sim_kubelet().set_register_behavior(sim::RegisterBehavior::kIgnore);
  start_agent();
  EXPECT_NE(wait_for_log("RegistrationFailed", "in time"), "");
  sim_kubelet().set_register_behavior(sim::RegisterBehavior::kAccept);
  EXPECT_TRUE(becomes_allocatable(8));
}

}  // namespace
}  // namespace gpulet::tests
