#include "dra/gpu_groups.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "dra/test_machines.h"
#include "placement/test_machines.h"

namespace gpulet::dra {
namespace {

using namespace test;
namespace machines = placement::machines;
using inventory::PcieDistance;
using topology::Topology;
using Set = std::vector<std::size_t>;  // of indices

std::vector<GroupedGpu> gpus_of(const Topology& topology) {
  std::vector<GroupedGpu> gpus;
  for (std::size_t i = 0; i < topology.size; ++i) {
    const auto bus = static_cast<std::uint32_t>(0x10 + i);
    gpus.push_back({DeviceUuid("GPU-" + std::to_string(i)), {.bus = bus}, i});
  }
  return gpus;
}

// Machines of NVIDIA's boards, and one with NVLink bridges on pairs of PCIe boards.
Topology bridged() {
  Topology topology = machines::pcie(8, 4, true);
  for (std::size_t a = 0; a < 4; ++a) {
    machines::set_pair(topology, a, a + 4, {PcieDistance::kSystem, 4, 0});
  }
  return topology;
}

std::vector<Topology> known_machines() {
  return {machines::nvswitch(8, 18),
          machines::dgx1(),
          machines::pcie(8, 4, true),
          machines::pcie(8, 8, false),
          bridged(),
          machines::nvswitch(16, 6),
          machines::pcie(7, 4, true),
          machines::nvswitch(2, 4, true),
          machines::pcie(1, 1, true)};
}

std::int64_t score_of(const Topology& topology, const Set& set) {
  std::int64_t score = 0;
  for (std::size_t i = 0; i < set.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) score += topology::pair_score(topology.pair_between(set[i], set[j]));
  }
  return score;
}

// The greatest total score of a partition of `members` into sets of `size` and one of what is left over: by
// trying them all.
std::int64_t best_total(const Topology& topology, const Set& members, std::size_t size) {
  std::vector<std::int64_t> best(std::size_t{1} << members.size(), -1);
  std::vector<std::int64_t> scores(best.size(), 0);
  for (std::size_t mask = 1; mask < best.size(); ++mask) {
    Set set;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if ((mask >> i & 1) != 0) set.push_back(members[i]);
    }
    scores[mask] = score_of(topology, set);
  }
  const std::function<std::int64_t(std::size_t)> total = [&](std::size_t mask) -> std::int64_t {
    const auto count = static_cast<std::size_t>(std::popcount(mask));
    if (count <= size) return scores[mask];
    if (best[mask] >= 0) return best[mask];
    // What is left over is split off first; else one member is in some set.
    const std::size_t take = count % size == 0 ? size : count % size;
    const std::size_t forced = count % size == 0 ? mask & (~mask + 1) : 0;
    for (std::size_t set = mask; set != 0; set = (set - 1) & mask) {
      if (static_cast<std::size_t>(std::popcount(set)) != take || (set & forced) != forced) continue;
      best[mask] = std::max(best[mask], scores[set] + total(mask & ~set));
    }
    return best[mask];
  };
  return total(best.size() - 1);
}

// The sets of equal values of an attribute.
std::map<std::string, Set> sets_of(const GpuGroups& groups, const std::vector<GroupedGpu>& gpus,
                                   const std::string& name) {
  std::map<std::string, Set> sets;
  for (const auto& gpu : gpus) {
    const auto found = groups.attributes.find(gpu.uuid);
    if (found == groups.attributes.end() || !found->second.contains(name)) continue;
    sets[found->second.at(name)].push_back(gpu.gpu);
  }
  return sets;
}

void expect_best_sets(const Topology& topology, const std::vector<GroupedGpu>& gpus, const GpuGroups& groups,
                      const std::string& name, std::size_t size) {
  const auto sets = sets_of(groups, gpus, name);
  EXPECT_EQ(sets.size(), topology.size / size);
  std::set<std::size_t> left;
  for (const auto& gpu : gpus) left.insert(gpu.gpu);
  std::int64_t total = 0;
  for (const auto& [value, set] : sets) {
    EXPECT_EQ(set.size(), size) << name << " " << value;
    EXPECT_LE(value.size(), kMaxAttributeBytes);
    inventory::PciAddress lowest{.domain = ~0u};
    for (const auto member : set) {
      EXPECT_EQ(left.erase(member), 1U);
      for (const auto& gpu : gpus) {
        if (gpu.gpu == member) lowest = std::min(lowest, gpu.pci);
      }
    }
    EXPECT_EQ(value, lowest.sysfs_text());
    total += score_of(topology, set);
  }
  total += score_of(topology, Set(left.begin(), left.end()));
  Set all;
  for (const auto& gpu : gpus) all.push_back(gpu.gpu);
  EXPECT_EQ(total, best_total(topology, all, size)) << name;
}

// Sets of `size` in the order are the best partition of `members`, and so on in each of them.
void expect_best_order(const Topology& topology, const Set& members, std::size_t size) {
  if (size < 2) return;
  std::int64_t total = 0;
  for (std::size_t at = 0; at < members.size(); at += size) {
    const auto end = std::min(members.size(), at + size);
    const Set set(members.begin() + static_cast<std::ptrdiff_t>(at),
                  members.begin() + static_cast<std::ptrdiff_t>(end));
    total += score_of(topology, set);
    expect_best_order(topology, set, size / 2);
  }
  EXPECT_EQ(total, best_total(topology, members, size)) << members.size() << " in sets of " << size;
}

Set order_of(const GpuGroups& groups, const std::vector<GroupedGpu>& gpus) {
  Set order;
  for (const auto& uuid : groups.order) {
    order.push_back(std::ranges::find(gpus, uuid, &GroupedGpu::uuid)->gpu);
  }
  return order;
}

void expect_best_groups(const Topology& topology) {
  const auto gpus = gpus_of(topology);
  const auto groups = make_gpu_groups(topology, gpus);
  expect_best_sets(topology, gpus, groups, kBestPairAttribute, 2);
  expect_best_sets(topology, gpus, groups, kBestQuadAttribute, 4);
  const auto order = order_of(groups, gpus);
  ASSERT_EQ(std::set(order.begin(), order.end()).size(), topology.size);
  expect_best_order(topology, order, 8);
}

std::string island_text(const Topology& topology) {
  const auto gpus = gpus_of(topology);
  std::string text;
  for (const auto& [value, set] : sets_of(make_gpu_groups(topology, gpus), gpus, kNvLinkIslandAttribute)) {
    text += value + ":";
    for (const auto member : set) text += " " + std::to_string(member);
    text += "\n";
  }
  return text;
}

// What NVML would return of such a machine.
inventory::SnapshotPtr snapshot_of(const Topology& topology) {
  std::vector<inventory::Gpu> gpus;
  for (unsigned i = 0; i < topology.size; ++i) {
    gpus.push_back(make_gpu(i));
    gpus.back().numa_node = topology.numa_nodes[i];
  }
  std::vector<PcieDistance> distances;
  for (std::size_t a = 0; a < topology.size; ++a) {
    for (std::size_t b = 0; b < topology.size; ++b) {
      const auto& pair = topology.pair_between(a, b);
      distances.push_back(pair.pcie);
      if (a == b) continue;
      gpus[a].nvlinks.insert(gpus[a].nvlinks.end(), pair.direct_nvlinks,
                             {.kind = inventory::NvLinkRemote::kGpu, .remote = gpus[b].pci});
    }
    const auto switched =
        topology.size > 1 ? topology.pair_between(a, (a + 1) % topology.size) : topology::Pair{};
    gpus[a].nvlinks.insert(gpus[a].nvlinks.end(), switched.switched_nvlinks,
                           {.kind = inventory::NvLinkRemote::kSwitch, .remote = {}});
  }
  auto snapshot = std::make_shared<inventory::Snapshot>(*make_snapshot(std::move(gpus)));
  snapshot->pcie = std::move(distances);
  return snapshot;
}

DevicePool arranged(const inventory::SnapshotPtr& snapshot) {
  auto pool = make_device_pool({.snapshot = snapshot});
  DeviceArranger().arrange_devices(*snapshot, pool);
  return pool;
}

std::string text_of(const DevicePool& pool, const std::string& device, const std::string& attribute) {
  const auto& attributes = pool.find(device)->device.attributes;
  const auto found = attributes.find(attribute);
  return found == attributes.end() ? "" : std::get<std::string>(found->second);
}

TEST(GpuGroups, AreTheBestByTryingAll) {
  auto all = known_machines();
  all.push_back(machines::direct16());
  for (const auto& topology : all) {
    SCOPED_TRACE(std::to_string(topology.size) + " GPUs");
    expect_best_groups(topology);
  }
}

RC_GTEST_PROP(GpuGroups, AreTheBestOfRandomMachines, ()) {
  std::mt19937 random(*rc::gen::arbitrary<unsigned>());
  const auto gpus = *rc::gen::inRange<std::size_t>(1, 10);
  expect_best_groups(machines::random(gpus, *rc::gen::inRange(1u, 60u), random));
  RC_ASSERT(!testing::Test::HasFailure());
}

TEST(GpuGroups, AnIslandIsWhatNvLinksReach) {
  EXPECT_EQ(island_text(machines::nvswitch(8, 18)), "0000:10:00.0: 0 1 2 3 4 5 6 7\n");
  EXPECT_EQ(island_text(machines::dgx1()), "0000:10:00.0: 0 1 2 3 4 5 6 7\n");
  EXPECT_EQ(island_text(bridged()),
            "0000:10:00.0: 0 4\n0000:11:00.0: 1 5\n0000:12:00.0: 2 6\n0000:13:00.0: 3 7\n");
  EXPECT_EQ(island_text(machines::pcie(8, 4, true)), "");
}

TEST(GpuGroups, LeavesOutWhatIsUnknown) {
  const auto unknown = machines::blank(8);
  const auto none = make_gpu_groups(unknown, gpus_of(unknown));
  EXPECT_TRUE(none.attributes.empty());
  EXPECT_EQ(order_of(none, gpus_of(unknown)), (Set{0, 1, 2, 3, 4, 5, 6, 7}));
  // The distances of GPU 2 are unknown: its quad has no value, nor does the pair that it is in.
  auto partly = machines::pcie(8, 4, true);
  for (std::size_t other = 0; other < 8; ++other) {
    if (other != 2) machines::set_pair(partly, 2, other, {});
  }
  const auto gpus = gpus_of(partly);
  const auto groups = make_gpu_groups(partly, gpus);
  EXPECT_FALSE(groups.attributes.contains(DeviceUuid("GPU-2")));
  EXPECT_EQ(sets_of(groups, gpus, kBestPairAttribute),
            (std::map<std::string, Set>{
                {"0000:10:00.0", {0, 1}}, {"0000:14:00.0", {4, 5}}, {"0000:16:00.0", {6, 7}}}));
  EXPECT_EQ(sets_of(groups, gpus, kBestQuadAttribute),
            (std::map<std::string, Set>{{"0000:14:00.0", {4, 5, 6, 7}}}));
  EXPECT_EQ(groups.order.size(), 8U);
}

TEST(DeviceArranger, WholeGpusComeInTheirGroupsAndOthersAfter) {
  auto snapshot = std::make_shared<inventory::Snapshot>(*snapshot_of(bridged()));
  snapshot->gpus[1] = make_partitioned_gpu(1, 2);
  auto& failing = snapshot->gpus[2];  // its links were never returned
  failing.nvlinks.clear();
  failing.not_read.emplace(inventory::GpuValue::kNvLinks, Error(Code::kUnavailable, "try again"));
  const auto pool = arranged(snapshot);
  EXPECT_EQ(names(pool),
            "gpu-0 gpu-4 gpu-5 gpu-6 gpu-3 gpu-7 gpu-1-mig-1g10gb-19-0 gpu-1-mig-1g10gb-19-1 gpu-2");
  EXPECT_EQ(text_of(pool, "gpu-4", kBestPairAttribute), "0000:10:00.0");
  EXPECT_EQ(text_of(pool, "gpu-7", kNvLinkIslandAttribute), "0000:13:00.0");
  EXPECT_EQ(text_of(pool, "gpu-5", kNvLinkIslandAttribute), "");
  for (const char* const attribute : kGroupAttributes) {
    EXPECT_EQ(text_of(pool, "gpu-1-mig-1g10gb-19-0", attribute), "");
    EXPECT_EQ(text_of(pool, "gpu-2", attribute), "");
  }
}

TEST(DeviceArranger, APcieBoardHasNoLinksToRead) {
  auto snapshot = std::make_shared<inventory::Snapshot>(*snapshot_of(machines::pcie(4, 4, true)));
  for (auto& gpu : snapshot->gpus) {
    gpu.not_read.emplace(inventory::GpuValue::kNvLinks, Error(Code::kUnsupported, "not supported"));
  }
  EXPECT_EQ(text_of(arranged(snapshot), "gpu-3", kBestPairAttribute), "0000:12:00.0");
}

TEST(DeviceArranger, ALostGpuKeepsItsGroups) {
  const auto before = snapshot_of(machines::dgx1());
  auto after = std::make_shared<inventory::Snapshot>(*before);
  after->gpus[3].unreadable = Error(Code::kDeviceLost, "lost");
  for (auto& gpu : after->gpus) {
    std::erase_if(gpu.nvlinks,
                  [&](const auto& link) { return gpu.index != 3 && link.remote == after->gpus[3].pci; });
  }
  EXPECT_EQ(arranged(after).devices, arranged(before).devices);
}

TEST(DeviceArranger, FollowsTheTopologyOfALaterSnapshot) {
  DeviceArranger arranger;
  const auto arrange = [&](const Topology& topology) {
    const auto snapshot = snapshot_of(topology);
    auto pool = make_device_pool({.snapshot = snapshot});
    arranger.arrange_devices(*snapshot, pool);
    EXPECT_EQ(pool.devices, arranged(snapshot).devices);
    return names(pool);
  };
  const auto first = arrange(machines::pcie(8, 4, true));
  EXPECT_EQ(arrange(machines::pcie(8, 4, true)), first);
  EXPECT_NE(arrange(bridged()), first);
  EXPECT_EQ(arrange(machines::pcie(8, 4, true)), first);
}

// A restart that lists the GPUs in another order writes no slice.
RC_GTEST_PROP(DeviceArranger, IsIndependentOfNvmlsOrder, ()) {
  const auto known = known_machines();
  const auto before = snapshot_of(*rc::gen::elementOf(known));
  std::mt19937 random(*rc::gen::arbitrary<unsigned>());
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < before->gpus.size(); ++i) order.push_back(i);
  std::ranges::shuffle(order, random);
  auto after = std::make_shared<inventory::Snapshot>(*before);
  for (std::size_t a = 0; a < order.size(); ++a) {
    after->gpus[a] = before->gpus[order[a]];
    after->gpus[a].index = static_cast<unsigned>(a);
    for (std::size_t b = 0; b < order.size(); ++b) {
      after->pcie[a * order.size() + b] = before->pcie_between(order[a], order[b]);
    }
  }
  const auto pool = arranged(after);
  RC_ASSERT(pool.devices == arranged(before).devices);
  for (const auto& offered : pool.devices) {
    RC_ASSERT(offered.device.attributes.size() + offered.device.capacity.size() <= 32u);
  }
}

}  // namespace
}  // namespace gpulet::dra
