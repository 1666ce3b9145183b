#include "scheduler/core/cluster_state.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <random>

#include "scheduler/model/test_nodes.h"

namespace gpulet::scheduler {
namespace {

using Kind = ContainerRequest::Kind;

std::vector<std::size_t> units_of(const PodClaim& claim) {
  std::vector<std::size_t> units;
  for (const auto& part : claim.parts) units.push_back(part.unit);
  return units;
}

const PodClaim* claim_of(const ClusterNode* view, const std::string& pod) {
  const auto found = std::ranges::find(view->claims, pod, &PodClaim::pod);
  return found == view->claims.end() ? nullptr : &*found;
}

TEST(ClusterState, KubeletReportedDevicesAreHeld) {
  ClusterState view;
  GpuNode node = test_node(8, 4);
  hold_units(node, "default/a", {0, 1});
  view.set_node("n1", node);
  const auto* n1 = view.find_node("n1");
  ASSERT_NE(n1, nullptr);
  EXPECT_EQ(n1->free[0], (Shares{0, 0, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(n1->free_total[0], 6U);
  EXPECT_FALSE(n1->claims[0].assumed);
  EXPECT_EQ(view.find_node("n2"), nullptr);
}

TEST(ClusterState, AssumesBoundPodsWherePlacementPutsThem) {
  ClusterState view;
  GpuNode node = test_node(8, 4);
  hold_units(node, "default/a", {0});
  view.set_node("n1", node);
  view.set_pod(test_pod("b", 4, "n1"));
  const auto* n1 = view.find_node("n1");
  const auto* claim = claim_of(n1, "default/b");
  ASSERT_NE(claim, nullptr);
  EXPECT_TRUE(claim->assumed);
  EXPECT_EQ(units_of(*claim), (std::vector<std::size_t>{4, 5, 6, 7}));  // the intact group
  // Once the kubelet reports it, only that counts.
  hold_units(node, "default/b", {1, 2, 3, 4});
  view.set_node("n1", node);
  n1 = view.find_node("n1");
  EXPECT_EQ(n1->claims.size(), 2U);
  EXPECT_FALSE(claim_of(n1, "default/b")->assumed);
  EXPECT_EQ(n1->free_total[0], 3U);
}

TEST(ClusterState, IgnoresDeletedPodsInTheGpuNode) {
  ClusterState view;
  GpuNode node = test_node(4, 4);
  hold_units(node, "default/a", {0, 1});
  view.set_node("n1", node);
  EXPECT_EQ(view.find_node("n1")->free_total[0], 2U) << "not all Pods are known yet";
  view.set_pod(test_pod("a", 2, "n1"));
  view.mark_pods_synced();
  EXPECT_EQ(view.find_node("n1")->free_total[0], 2U);
  view.remove_pod("default", "a");
  EXPECT_EQ(view.find_node("n1")->free_total[0], 4U);
  // Also for an object that was written meanwhile.
  node.gpus[0].load = "000000000000000000";
  view.set_node("n1", node);
  EXPECT_EQ(view.find_node("n1")->free_total[0], 4U);
  // A new Pod with the same name, as from a StatefulSet, holds again; but not here if it is elsewhere.
  view.set_pod(test_pod("a", 2, "n1"));
  EXPECT_EQ(view.find_node("n1")->free_total[0], 2U);
  view.set_pod(test_pod("a", 2, "n2"));
  EXPECT_EQ(view.find_node("n1")->free_total[0], 4U);
}

TEST(ClusterState, ClaimsAreHeldWhereTheGpuNodeSays) {
  ClusterState view;
  view.set_pod(test_claim_pod("a", "n1"));
  view.set_pod(test_claim_pod("b", "n1"));
  view.mark_pods_synced();
  GpuNode node = test_claim_node(2, 2);
  view.set_node("n1", node);
  EXPECT_TRUE(view.find_node("n1")->claims.empty()) << "never assumed: a claim may be of another driver";
  for (const auto* const pod : {"default/a", "default/b", "default/gone"}) hold_units(node, pod, {1});
  view.set_node("n1", node);
  const auto* n1 = view.find_node("n1");
  EXPECT_EQ(n1->claims.size(), 2U);
  EXPECT_EQ(n1->held[0], (Shares{0, 1})) << "one claim of two Pods";
  EXPECT_EQ(n1->free[0], (Shares{1, 0}));
  EXPECT_EQ(view.node_table().state_of(n1->table_node).free_milli(), kWhole);
  view.remove_pod("default", "a");
  EXPECT_EQ(view.find_node("n1")->held[0], (Shares{0, 1}));
  auto finished = test_claim_pod("b", "n1");
  finished.finished = true;
  view.set_pod(finished);
  EXPECT_EQ(view.find_node("n1")->free_total[0], 2U);
}

TEST(ClusterState, FinishedPodsHoldNothing) {
  ClusterState view;
  view.set_node("n1", test_node(4, 4));
  auto pod = test_pod("a", 2, "n1");
  view.set_pod(pod);
  EXPECT_EQ(view.find_node("n1")->free_total[0], 2U);
  pod.finished = true;
  view.set_pod(pod);
  EXPECT_EQ(view.find_node("n1")->free_total[0], 4U);
  EXPECT_EQ(view.pod_count(), 0U);
}

TEST(ClusterState, AcceptsPodsBeforeTheirGpuNode) {
  ClusterState view;
  view.set_pod(test_pod("a", 2, "n1"));
  EXPECT_EQ(view.find_node("n1"), nullptr);
  view.set_node("n1", test_node(4, 4));
  EXPECT_EQ(view.find_node("n1")->free_total[0], 2U);
  view.remove_node("n1");
  EXPECT_EQ(view.find_node("n1"), nullptr);
  view.set_node("n1", test_node(4, 4));
  EXPECT_EQ(view.find_node("n1")->free_total[0], 2U);
}

TEST(ClusterState, ReusesDevicesOfInitContainers) {
  ClusterState view;
  view.set_node("n1", test_node(8, 4));
  auto pod = test_pod("a", 2, "n1");
  pod.containers.insert(pod.containers.begin(),
                        {.name = "init", .kind = Kind::kInit, .devices = {{kGpu, 4}}});
  view.set_pod(pod);
  const auto* n1 = view.find_node("n1");
  EXPECT_EQ(n1->free_total[0], 4U);
  EXPECT_EQ(units_of(*claim_of(n1, "default/a")), (std::vector<std::size_t>{0, 1, 2, 3}));
  // A sidecar keeps them.
  pod.containers[0].kind = Kind::kSidecar;
  view.set_pod(pod);
  EXPECT_EQ(view.find_node("n1")->free_total[0], 2U);
}

TEST(ClusterState, EqualTopologiesShareTables) {
  ClusterState view;
  for (int i = 0; i < 100; ++i) {
    GpuNode node = test_node(8, i % 2 == 0 ? 4 : 8);
    node.gpus[0].uuid = "GPU-of-" + std::to_string(i);
    view.set_node("n" + std::to_string(i), node);
  }
  EXPECT_EQ(view.pool_count(), 2U);
  EXPECT_EQ(view.node_table().kind_count(), 2U);
}

TEST(ClusterState, SharedGpuHasItsFreePart) {
  ClusterState view;
  GpuNode node = test_node(2, 2, 4);
  hold_units(node, "default/a", {0}, 1);
  view.set_node("n1", node);
  const auto& state = view.node_table().state_of(view.find_node("n1")->table_node);
  EXPECT_EQ(state.free[0], 750);
  EXPECT_EQ(state.free[1], 1000);
}

TEST(ClusterState, ReservesRequestedMemoryOfSharedGpus) {
  ClusterState view;
  view.set_node("n1", test_node(1, 1, 4));
  auto pod = test_pod("a", 1, "n1");
  pod.constraints.memory_mib = 30720;
  view.set_pod(pod);
  EXPECT_EQ(view.find_node("n1")->requested_mib[0][0], 30720U);
}

TEST(ClusterState, AssumptionsAreStable) {
  ClusterState view;
  view.set_node("n1", test_node(8, 4));
  const auto of = [&](const std::string& pod) {
    return units_of(*claim_of(view.find_node("n1"), "default/" + pod));
  };
  for (const char* name : {"a", "b", "c"}) {
    view.set_pod(test_pod(name, 1, "n1"));
    view.find_node("n1");
  }
  const auto b = of("b"), c = of("c");
  view.remove_pod("default", "a");
  EXPECT_EQ(of("b"), b);
  EXPECT_EQ(of("c"), c);
  // If the kubelet reports other devices, those count, and assumed Pods move elsewhere.
  GpuNode node = test_node(8, 4);
  hold_units(node, "default/d", {b[0]});
  view.set_node("n1", node);
  EXPECT_NE(of("b"), b);
  EXPECT_EQ(of("c"), c);
}

// A replica that lists ends with the same state in any order of objects: no leader is needed.
RC_GTEST_PROP(ClusterState, IsIndependentOfEventOrder, ()) {
  std::vector<PodRequest> pods;
  const auto count = *rc::gen::inRange<std::size_t>(1, 6);
  for (std::size_t i = 0; i < count; ++i) {
    pods.push_back(test_pod("p" + std::to_string(i), *rc::gen::inRange(1U, 4U), "n1"));
    pods.back().bound_at = "2026-01-31T12:00:0" + std::to_string(*rc::gen::inRange(0, 3)) + "Z";
  }
  GpuNode node = test_node(8, 4);
  if (*rc::gen::inRange(0, 2) == 0) hold_units(node, "default/p0", {2});
  if (*rc::gen::inRange(0, 2) == 0) quarantine_gpu(node, 5, "XID 79: GPU has fallen off the bus");
  std::vector<std::size_t> order(pods.size() + 1);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<PodClaim>> ends;
  for (int round = 0; round < 2; ++round) {
    ClusterState view;
    for (const auto which : order) {
      if (which == pods.size()) {
        view.set_node("n1", node);
      } else {
        view.set_pod(pods[which]);
      }
    }
    ends.push_back(view.find_node("n1")->claims);
    std::shuffle(order.begin(), order.end(), std::mt19937(*rc::gen::arbitrary<unsigned>()));
  }
  RC_ASSERT(ends[0] == ends[1]);
}

// Nodes of one topology share a pool: a load of one must not decide for the other.
TEST(ClusterState, AssumesByTheLoadOfEachNode) {
  ClusterState view;
  for (const char* name : {"n1", "n2"}) {
    GpuNode node = test_node(4, 4, 4);
    node.gpus[name == std::string("n1") ? 0 : 1].now = placement::make_gpu_load(100, 0, false);
    view.set_node(name, node);
    view.set_pod(test_pod(std::string("on-") + name, 1, name));
  }
  const auto unit_of = [&](const std::string& node) {
    return claim_of(view.find_node(node), "default/on-" + node)->parts.at(0).unit;
  };
  EXPECT_EQ(unit_of("n1"), 1U);
  EXPECT_EQ(unit_of("n2"), 0U);
  EXPECT_EQ(view.pool_count(), 1U);
}

// Memory in use now counts for the policies like forecast memory; busy time does so without a forecast.
TEST(ClusterState, PoliciesSeeThePresentLoad) {
  ClusterState view;
  GpuNode node = test_node(3, 1);
  node.gpus[0].load = "0a0a0a0a0a0a0a0a05";
  node.gpus[0].now = placement::make_gpu_load(90, 40, false);
  node.gpus[1].now = placement::make_gpu_load(60, 20, true);
  view.set_node("n1", node);
  const auto& state = view.node_table().state_of(view.find_node("n1")->table_node);
  EXPECT_EQ(state.load[0], flat_curve(10, 40));
  EXPECT_EQ(state.load[1], flat_curve(60, 20));
  EXPECT_EQ(state.load[2], LoadCurve{});
}

// Assumptions match the node's own GetPreferredAllocation for the remaining devices.
RC_GTEST_PROP(ClusterState, AssumptionsMatchPlacement, ()) {
  const auto size = *rc::gen::element<std::size_t>(2, 4, 8, 16);
  const unsigned shares = *rc::gen::inRange(1U, 4U);
  GpuNode node = test_node(size, *rc::gen::element<std::size_t>(2, 4, 8), shares);
  node.rules.policy = *rc::gen::element(placement::Policy::kBestEffort, placement::Policy::kTightest);
  node.rules.shared =
      *rc::gen::element(placement::SharedPolicy::kDistributed, placement::SharedPolicy::kPacked);
  std::vector<placement::Device> devices;
  std::vector<DeviceId> available;
  std::vector<placement::GpuLoad> loads;
  for (std::size_t gpu = 0; gpu < size; ++gpu) {
    const auto used = *rc::gen::inRange(0U, shares + 1);
    for (unsigned share = 0; share < shares; ++share) {
      devices.push_back({DeviceId(std::to_string(gpu) + "::" + std::to_string(share)), gpu, shares > 1, 0,
                         shares > 1 ? placement::equal_share_percent(shares) : 0});
      if (share >= used)
        available.push_back(devices.back().id);  // the remaining ones are the later ones here
    }
    if (used != 0) hold_units(node, "x/" + std::to_string(gpu), {gpu}, used);
    node.gpus[gpu].now = placement::make_gpu_load(*rc::gen::inRange(0, 101), *rc::gen::inRange(0, 101),
                                                  *rc::gen::inRange(0, 3) == 0);
    loads.push_back(node.gpus[gpu].now);
  }
  RC_PRE(!available.empty());
  const auto count = *rc::gen::inRange<unsigned>(1, static_cast<unsigned>(available.size()) + 1);
  ClusterState view;
  view.set_node("n1", node);
  view.set_pod(test_pod("a", count, "n1"));
  const auto choice = placement::Chooser::build_chooser(gpu_node_topology(node), devices, node.rules)
                          ->choose_devices(available, {}, count, loads);
  RC_ASSERT(choice.has_value());
  Shares expected(size), found(size);
  for (const auto& id : choice->devices) ++expected[std::stoul(id.str())];
  for (const auto& part : claim_of(view.find_node("n1"), "default/a")->parts) {
    found[part.unit] = static_cast<std::uint16_t>(part.shares);
  }
  RC_ASSERT(found == expected);
}

}  // namespace
}  // namespace gpulet::scheduler
