// Every machine is offered whole, and whatever the kubelet does the agent is registered with it again.
#include <unistd.h>

#include <filesystem>

#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class EveryMachine : public NodeTest, public testing::WithParamInterface<const char*> {};

TEST_P(EveryMachine, IsOfferedWholeWithItsNumaNodes) {
  serve(GetParam());
  const auto state = kubelet().state();
  const auto* resource = find(state, kGpu);
  ASSERT_NE(resource, nullptr);
  EXPECT_EQ(resource->registrations, 1u);
  EXPECT_EQ(resource->endpoint, "nvidia-gpu.sock");
  EXPECT_TRUE(resource->preferred_allocation_available);
  ASSERT_EQ(resource->devices.size(), gpu_count());
  for (std::uint32_t i = 0; i < gpu_count(); ++i) {
    const auto device = resource->devices.find(uuid(i));
    ASSERT_NE(device, resource->devices.end()) << "GPU " << i;
    const int node = machine().read()->gpus[i].numa_node;
    EXPECT_EQ(device->second.numa_nodes, node >= 0 ? std::set<int>{node} : std::set<int>{}) << "GPU " << i;
  }
  const auto grant = admit("all", gpu_count());
  EXPECT_EQ(ids_of(grant).size(), gpu_count());
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
  // A kubelet that is not there: its sockets are gone too.
  void take_kubelet_away() {
    kubelet().stop();
    std::filesystem::remove(kubelet().kubelet_socket());
    std::filesystem::remove(kubelet().pod_resources_socket());
  }
  bool registered_again(std::uint64_t before) {
    return wait_for([&](const sim::KubeletState& state) {
      const auto* resource = find(state, kGpu);
      return resource != nullptr && resource->registrations > before && resource->connected &&
             resource->allocatable() == 8;
    });
  }
};

TEST_F(SimRegistration, BothNumaNodesOfAnL40sNodeAreSent) {
  serve("l40s");
  std::set<int> nodes;
  const auto state = kubelet().state();
  for (const auto& [id, device] : state.resources.at(kGpu).devices) {
    nodes.insert(device.numa_nodes.begin(), device.numa_nodes.end());
  }
  EXPECT_EQ(nodes, (std::set<int>{0, 1}));
}

TEST_F(SimRegistration, AlignedToOneNumaNodeWhereThePolicyAsksForIt) {
  serve("l40s");
  kubelet().set_topology_policy(sim::TopologyPolicy::kRestricted);
  for (const char* pod : {"first", "second"}) {
    std::set<int> nodes;
    for (const auto& id : ids_of(admit(pod, 4))) {
      const auto gpu = index_of(id);
      nodes.insert(machine().read()->gpus[gpu].numa_node);
    }
    EXPECT_EQ(nodes.size(), 1u) << pod;
  }
}

TEST_F(SimRegistration, ComesBackWhenTheKubeletRestarts) {
  serve();
  const auto grant = admit("trainer", 2);
  for (int round = 0; round < 3; ++round) {
    const auto before = registrations();
    ASSERT_TRUE(kubelet().restart());
    ASSERT_TRUE(registered_again(before)) << "round " << round;
  }
  EXPECT_EQ(ids_of(kubelet().state().grants.at("trainer")), ids_of(grant));
  admit("rest", 6);
}

TEST_F(SimRegistration, ComesBackWhenTheKubeletWasKilledAndLeftItsSockets) {
  serve();
  const auto before = registrations();
  kubelet().stop();
  ASSERT_TRUE(std::filesystem::exists(kubelet().kubelet_socket()));
  ASSERT_TRUE(kubelet().start_again());
  EXPECT_TRUE(registered_again(before));
}

TEST_F(SimRegistration, ComesBackWhenItsOwnSocketIsDeleted) {
  serve();
  const std::string socket = kubelet().plugin_dir() + "/nvidia-gpu.sock";
  for (int round = 0; round < 3; ++round) {
    const auto before = registrations();
    ASSERT_EQ(::unlink(socket.c_str()), 0);
    ASSERT_TRUE(registered_again(before)) << "round " << round;
    EXPECT_TRUE(std::filesystem::is_socket(socket));
  }
  admit("all", 8);
}

TEST_F(SimRegistration, WaitsForAKubeletThatComesLater) {
  up();
  take_kubelet_away();
  start_agent();
  EXPECT_NE(said("RegistrationFailed"), "");
  ASSERT_TRUE(kubelet().start_again());
  EXPECT_TRUE(offered(8));
}

TEST_F(SimRegistration, WaitsForTheKubeletsFolder) {
  up();
  take_kubelet_away();
  std::filesystem::remove_all(node().folder() + "/kubelet");
  start_agent();
  EXPECT_NE(said("SocketFailed"), "");
  ASSERT_TRUE(kubelet().start_again());
  EXPECT_TRUE(offered(8));
}

TEST_F(SimRegistration, ComesBackWhenTheKubeletsFolderIsMadeAnew) {
  serve();
  const auto before = registrations();
  take_kubelet_away();
  std::filesystem::remove_all(node().folder() + "/kubelet");
  ASSERT_TRUE(kubelet().start_again());
  EXPECT_TRUE(registered_again(before));
}

TEST_F(SimRegistration, TriesAgainWhenTheKubeletRefuses) {
  up();
  kubelet().set_register_mood(sim::RegisterMood::kRefuses);
  start_agent();
  ASSERT_TRUE(wait_for([](const auto& state) { return state.refused_registrations >= 3; }));
  EXPECT_NE(said("RegistrationFailed", "refused"), "");
  kubelet().set_register_mood(sim::RegisterMood::kAnswers);
  EXPECT_TRUE(offered(8));
}

TEST_F(SimRegistration, TakesALateAnswer) {
  up();
  kubelet().set_register_mood(sim::RegisterMood::kLate);
  start_agent();
  EXPECT_TRUE(offered(8));
  EXPECT_EQ(registrations(), 1u);
}

TEST_F(SimRegistration, GivesUpOnAnAnswerThatNeverComesAndTriesAgain) {
  up();
  kubelet().set_register_mood(sim::RegisterMood::kNever);
  start_agent();
  EXPECT_NE(said("RegistrationFailed", "in time"), "");
  kubelet().set_register_mood(sim::RegisterMood::kAnswers);
  EXPECT_TRUE(offered(8));
}

}  // namespace
}  // namespace gpulet::tests
