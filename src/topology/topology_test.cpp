#include "topology/topology.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace gpulet::topology {
namespace {

using inventory::Gpu;
using inventory::NvLink;
using inventory::NvLinkRemote;
using inventory::PciAddress;
using inventory::PcieDistance;
using inventory::Snapshot;

PciAddress address(std::size_t gpu) { return {0, static_cast<std::uint32_t>(0x10 + gpu), 0, 0}; }

// `count` GPUs, the first half on one NUMA node, with PCIe distances to match.
Snapshot snapshot_of_gpus(std::size_t count) {
  Snapshot snapshot;
  snapshot.gpus.resize(count);
  snapshot.pcie.resize(count * count);
  for (std::size_t a = 0; a < count; ++a) {
    snapshot.gpus[a].index = static_cast<unsigned>(a);
    snapshot.gpus[a].pci = address(a);
    snapshot.gpus[a].numa_node = a < count / 2 ? 0 : 1;
    for (std::size_t b = 0; b < count; ++b) {
      const bool near = (a < count / 2) == (b < count / 2);
      auto& distance = snapshot.pcie[a * count + b];
      distance = a == b ? PcieDistance::kInternal : near ? PcieDistance::kNode : PcieDistance::kSystem;
    }
  }
  return snapshot;
}

void add_link(Gpu& from, unsigned count, NvLinkRemote kind, PciAddress remote) {
  for (unsigned i = 0; i < count; ++i) {
    from.nvlinks.push_back({static_cast<unsigned>(from.nvlinks.size()), kind, remote});
  }
}

// NVIDIA's DGX-1 V100: two fully meshed quads of single and double links, and a link or two between them.
constexpr unsigned kCubeMesh[8][8] = {
    {0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
    {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1}, {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0},
};

Snapshot cube_mesh() {
  Snapshot snapshot = snapshot_of_gpus(8);
  for (std::size_t a = 0; a < 8; ++a) {
    for (std::size_t b = 0; b < 8; ++b)
      add_link(snapshot.gpus[a], kCubeMesh[a][b], NvLinkRemote::kGpu, address(b));
  }
  return snapshot;
}

TEST(Topology, CubeMesh) {
  const auto topology = build_topology(cube_mesh());
  ASSERT_EQ(topology.size, 8u);
  for (std::size_t a = 0; a < 8; ++a) {
    for (std::size_t b = 0; b < 8; ++b) {
      if (a == b) continue;
      EXPECT_EQ(topology.pair_between(a, b).direct_nvlinks, kCubeMesh[a][b]);
      EXPECT_EQ(topology.pair_between(a, b).switched_nvlinks, 0u);
    }
  }
  EXPECT_EQ(pair_label(topology.pair_between(0, 3)), "NV2");
  EXPECT_EQ(pair_score(topology.pair_between(0, 3)), 220);
  EXPECT_EQ(pair_score(topology.pair_between(0, 4)), 210) << "two links and across the sockets";
  EXPECT_EQ(pair_label(topology.pair_between(0, 5)), "SYS");
  EXPECT_EQ(pair_score(topology.pair_between(0, 5)), 10);
  EXPECT_EQ(topology.numa_nodes[0], std::optional(0));
  EXPECT_EQ(topology.numa_nodes[7], std::optional(1));
}

TEST(Topology, ThroughNvSwitchEveryPairHasAllLinks) {
  Snapshot snapshot = snapshot_of_gpus(8);
  for (auto& gpu : snapshot.gpus) add_link(gpu, 18, NvLinkRemote::kSwitch, {0, 7, 0, 0});
  snapshot.gpus[5].nvlinks.resize(12);  // some of its links are down
  const auto topology = build_topology(snapshot);
  EXPECT_EQ(pair_label(topology.pair_between(0, 7)), "NV18");
  EXPECT_EQ(pair_score(topology.pair_between(0, 7)), 1810);
  EXPECT_EQ(topology.pair_between(0, 7).direct_nvlinks, 0u);
  EXPECT_EQ(pair_label(topology.pair_between(0, 5)), "NV12") << "the smaller of the two";
}

TEST(Topology, SwitchesOfOtherFabricsDoNotConnect) {
  Snapshot snapshot = snapshot_of_gpus(4);
  for (std::size_t i = 0; i < 4; ++i) {
    add_link(snapshot.gpus[i], 18, NvLinkRemote::kSwitch, {0, 7, 0, 0});
    snapshot.gpus[i].fabric = inventory::Fabric{"c", i < 2 ? 1u : 2u};
  }
  const auto topology = build_topology(snapshot);
  EXPECT_EQ(topology.pair_between(0, 1).nvlinks(), 18u);
  EXPECT_EQ(topology.pair_between(2, 3).nvlinks(), 18u);
  EXPECT_EQ(topology.pair_between(1, 2).nvlinks(), 0u);
  EXPECT_EQ(topology.fabrics[3], (inventory::Fabric{"c", 2}));
}

TEST(Topology, TheSmallerLinkCountWinsIfTheEndsDisagree) {
  Snapshot snapshot = snapshot_of_gpus(2);
  add_link(snapshot.gpus[0], 4, NvLinkRemote::kGpu, address(1));
  add_link(snapshot.gpus[1], 3, NvLinkRemote::kGpu, address(0));
  EXPECT_EQ(build_topology(snapshot).pair_between(0, 1).direct_nvlinks, 3u);
  snapshot.gpus[1].nvlinks.clear();
  EXPECT_EQ(build_topology(snapshot).pair_between(0, 1).direct_nvlinks, 0u);
}

TEST(Topology, AnUnreadableGpuKeepsItsLinks) {
  Snapshot before = cube_mesh();
  Snapshot after = before;
  after.gpus[3].unreadable = Error(Code::kDeviceLost, "lost");
  // The links of the others to it are down.
  for (auto& gpu : after.gpus) {
    if (gpu.index != 3)
      std::erase_if(gpu.nvlinks, [](const NvLink& one) { return one.remote == address(3); });
  }
  EXPECT_EQ(build_topology(after), build_topology(before));
}

TEST(Topology, AnOldDriverReportsOnlyTheRemoteAddress) {
  Snapshot snapshot = snapshot_of_gpus(2);
  for (std::size_t i = 0; i < 2; ++i) add_link(snapshot.gpus[i], 2, NvLinkRemote::kOther, address(1 - i));
  EXPECT_EQ(build_topology(snapshot).pair_between(0, 1).direct_nvlinks, 2u);
}

TEST(Topology, ZeroAndOneGpu) {
  EXPECT_EQ(build_topology({}).size, 0u);
  const auto one = build_topology(snapshot_of_gpus(1));
  EXPECT_EQ(one.size, 1u);
  EXPECT_EQ(pair_label(one.pair_between(0, 0)), "X");
}

TEST(Topology, PcieScoresAndLabels) {
  const struct {
    PcieDistance distance;
    std::int64_t score;
    const char* label;
  } rows[] = {
      {PcieDistance::kUnknown, 0, "N/A"},   {PcieDistance::kSystem, 10, "SYS"},
      {PcieDistance::kNode, 20, "NODE"},    {PcieDistance::kHostBridge, 30, "PHB"},
      {PcieDistance::kMultiple, 40, "PXB"}, {PcieDistance::kSingle, 50, "PIX"},
      {PcieDistance::kInternal, 60, "X"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(pair_score({row.distance, 0, 0}), row.score);
    EXPECT_EQ(pair_label({row.distance, 0, 0}), row.label);
    EXPECT_EQ(pair_score({row.distance, 2, 3}), row.score + 500);
    EXPECT_EQ(pair_label({row.distance, 2, 3}), "NV5");
  }
}

RC_GTEST_PROP(Topology, IsSymmetric, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(0, 10);
  Snapshot snapshot = snapshot_of_gpus(count);
  for (auto& gpu : snapshot.gpus) {
    const auto links = *rc::gen::inRange(0, 12);
    for (int i = 0; i < links; ++i) {
      const auto kind = *rc::gen::element(NvLinkRemote::kGpu, NvLinkRemote::kSwitch, NvLinkRemote::kOther);
      add_link(gpu, 1, kind, address(*rc::gen::inRange<std::size_t>(0, count)));
    }
    if (*rc::gen::inRange(0, 4) == 0) gpu.unreadable = Error(Code::kDeviceLost, "lost");
    if (*rc::gen::inRange(0, 3) == 0) gpu.fabric = inventory::Fabric{"c", *rc::gen::inRange(0u, 2u)};
  }
  for (auto& distance : snapshot.pcie) distance = static_cast<PcieDistance>(*rc::gen::inRange(0, 7));
  const auto topology = build_topology(snapshot);
  for (std::size_t a = 0; a < count; ++a) {
    for (std::size_t b = 0; b < count; ++b) {
      RC_ASSERT(topology.pair_between(a, b) == topology.pair_between(b, a));
      RC_ASSERT(pair_score(topology.pair_between(a, b)) >= 0);
    }
  }
}

}  // namespace
}  // namespace gpulet::topology
