// Choices by load: the cases of operators, and random states against a plain reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "placement/test_machines.h"

namespace gpulet::placement {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr unsigned kAll = 100;

std::vector<Device> shares_of(std::size_t gpus, unsigned replicas) {
  auto devices = machines::devices(gpus, replicas);
  for (auto& device : devices) device.memory_percent = kAll / replicas;
  return devices;
}

// A node of GPUs with shares, of which some are allocated.
class SharedNode {
 public:
  SharedNode(std::size_t gpus, unsigned replicas, Rules rules = {},
             const topology::Topology* topology = nullptr)
      : replicas_(replicas),
        devices_(shares_of(gpus, replicas)),
        allocated_(gpus),
        loads(gpus),
        chooser_(Chooser::build_chooser(topology != nullptr ? *topology : machines::pcie(gpus, gpus, false),
                                        devices_, rules)) {}

  // Allocates `size` shares, and returns the GPU of each.
  std::vector<std::size_t> allocate(std::size_t size) {
    std::vector<DeviceId> available;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (!taken_.contains(i)) available.push_back(devices_[i].id);
    }
    const auto choice = chooser_->choose_devices(available, {}, size, loads);
    EXPECT_TRUE(choice.has_value());
    std::vector<std::size_t> gpus;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (std::ranges::count(choice->devices, devices_[i].id) == 0) continue;
      take(i);
      gpus.push_back(devices_[i].gpu);
    }
    reason = choice->reason;
    return gpus;
  }
  void allocate_on(std::size_t gpu, std::size_t count = 1) {
    for (std::size_t i = gpu * replicas_; count > 0; ++i) {
      if (taken_.contains(i)) continue;
      take(i);
      --count;
    }
  }
  std::size_t allocated(std::size_t gpu) const { return allocated_[gpu]; }
  std::size_t free(std::size_t gpu) const { return replicas_ - allocated_[gpu]; }

 private:
  void take(std::size_t position) {
    taken_.insert(position);
    ++allocated_[devices_[position].gpu];
  }

  unsigned replicas_;
  std::vector<Device> devices_;
  std::set<std::size_t> taken_;
  std::vector<std::size_t> allocated_;

 public:
  std::vector<GpuLoad> loads;
  std::string reason;

 private:
  std::shared_ptr<const Chooser> chooser_;
};

TEST(Load, StepsAreCoarse) {
  EXPECT_EQ(make_gpu_load(0, 0, false), GpuLoad{});
  EXPECT_EQ(make_gpu_load(94.9, 94.9, true), (GpuLoad{90, 90, true}));
  EXPECT_EQ(make_gpu_load(95, 95, false), (GpuLoad{100, 95, false}));
  EXPECT_EQ(make_gpu_load(4.9, 4.9, false), GpuLoad{});
  EXPECT_EQ(make_gpu_load(1e9, 101, false), (GpuLoad{100, 100, false}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(make_gpu_load(nan, -3, false), GpuLoad{});
}

// Eight GPUs in four shares each, one Pod on each, three of them full and busy.
TEST(Load, ABusyGpuComesAfterIdleOnesWithAsManyShares) {
  SharedNode node(8, 4);
  for (std::size_t gpu = 0; gpu < 8; ++gpu) node.allocate_on(gpu);
  for (std::size_t gpu = 0; gpu < 3; ++gpu) node.loads[gpu] = make_gpu_load(100, 92, false);
  std::map<std::size_t, int> next;
  for (int pod = 0; pod < 15; ++pod) {
    for (const auto gpu : node.allocate(1)) ++next[gpu];
  }
  // All free shares of the five others go first, because the full ones lack the memory for another share.
  EXPECT_EQ(next, (std::map<std::size_t, int>{{3, 3}, {4, 3}, {5, 3}, {6, 3}, {7, 3}}));
  EXPECT_THAT(node.allocate(1), ElementsAre(0));
  EXPECT_THAT(node.reason, HasSubstr("100 % busy, 90 % of its memory in use: too little is free"));
}

TEST(Load, IgnoredByRule) {
  SharedNode node(2, 4, {.load = LoadPolicy::kIgnore});
  node.loads[0] = make_gpu_load(100, 100, true);
  EXPECT_THAT(node.allocate(1), ElementsAre(0));
}

TEST(Load, SharesComeBeforeBusyTime) {
  SharedNode node(2, 4);
  node.allocate_on(1);
  node.loads[0] = make_gpu_load(100, 0, false);
  EXPECT_THAT(node.allocate(1), ElementsAre(0));
  SharedNode packed(2, 4, {.shared = SharedPolicy::kPacked});
  packed.allocate_on(1);
  packed.loads[1] = make_gpu_load(100, 50, false);
  EXPECT_THAT(packed.allocate(1), ElementsAre(1));
  packed.loads[1] = make_gpu_load(0, 80, false);
  EXPECT_THAT(packed.allocate(1), ElementsAre(0)) << "the memory of a share is not free";
}

TEST(Load, EachShareOfARequestNeedsItsMemory) {
  SharedNode node(2, 4, {.shared = SharedPolicy::kPacked});
  node.loads[0] = make_gpu_load(0, 50, false);
  EXPECT_THAT(node.allocate(3), ElementsAre(1, 1, 1)) << "the least memory in use, and room for all";
  SharedNode both(2, 4, {.shared = SharedPolicy::kPacked});
  both.loads[0] = both.loads[1] = make_gpu_load(0, 50, false);
  EXPECT_THAT(both.allocate(3), ElementsAre(0, 0, 1));
}

TEST(Load, WhatTheDriverReservesDoesNotCount) {
  SharedNode node(2, 10);
  node.allocate_on(0, 9);
  node.allocate_on(1, 9);
  node.loads[0] = make_gpu_load(0, 91, false);
  EXPECT_THAT(node.allocate(1), ElementsAre(1));
  EXPECT_THAT(node.allocate(1), ElementsAre(0));
  EXPECT_THAT(node.reason, testing::Not(HasSubstr("too little")));
}

TEST(Load, UnknownLoadsChangeNothing) {
  SharedNode node(4, 2);
  node.loads.clear();
  EXPECT_THAT(node.allocate(3), ElementsAre(0, 1, 2));
  node.loads.resize(2);
  EXPECT_THAT(node.allocate(1), ElementsAre(3));
}

// One share at a time, by the order that docs/placement.md gives.
TEST(Load, RandomStatesAgreeWithAPlainReference) {
  std::mt19937 random(20);
  for (int state = 0; state < 1000; ++state) {
    const std::size_t gpus = 1 + random() % 16;
    const unsigned replicas = 1 + random() % 10;
    Rules rules{.shared = random() % 2 == 0 ? SharedPolicy::kDistributed : SharedPolicy::kPacked};
    SharedNode node(gpus, replicas, rules);
    if (replicas == 1) continue;
    std::size_t left = 0;
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
      node.allocate_on(gpu, random() % (replicas + 1));
      left += node.free(gpu);
      node.loads[gpu] =
          make_gpu_load(static_cast<double>(random() % 101), static_cast<double>(random() % 101), false);
    }
    for (; left > 0; --left) {
      using Rank = std::tuple<bool, std::size_t, unsigned, unsigned, std::size_t>;
      std::optional<Rank> best;
      for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
        if (node.free(gpu) == 0) continue;
        const auto& load = node.loads[gpu];
        const std::size_t used =
            rules.shared == SharedPolicy::kDistributed ? node.allocated(gpu) : replicas - node.allocated(gpu);
        const Rank rank{load.memory_percent + kAll / replicas > kAll, used, load.busy_percent,
                        load.memory_percent, gpu};
        if (!best || rank < *best) best = rank;
      }
      ASSERT_TRUE(best.has_value());
      ASSERT_THAT(node.allocate(1), ElementsAre(std::get<4>(*best))) << "state " << state;
    }
  }
}

std::vector<DeviceId> ids_at(const std::vector<Device>& devices, std::initializer_list<std::size_t> at) {
  std::vector<DeviceId> ids;
  for (const auto i : at) ids.push_back(devices[i].id);
  return ids;
}

TEST(Load, AWholeGpuHeldOutsidePodsComesLast) {
  const auto topology = machines::dgx1();
  const auto devices = machines::devices(8);
  const auto all = machines::ids(devices);
  const auto chooser = Chooser::build_chooser(topology, devices, {});
  std::vector<GpuLoad> loads(8);
  loads[0].held_outside_pods = loads[3].held_outside_pods = true;
  EXPECT_EQ(chooser->choose_devices(all, {}, 4)->devices, ids_at(devices, {0, 1, 2, 3}));
  EXPECT_EQ(chooser->choose_devices(all, {}, 4, loads)->devices, ids_at(devices, {4, 5, 6, 7}));
  const auto one = chooser->choose_devices(all, {}, 1, loads);
  EXPECT_THAT(one->reason, HasSubstr("not among 2 whose memory a process of no Pod holds"));
  // All six others, and one of the two.
  const auto seven = chooser->choose_devices(all, {}, 7, loads);
  ASSERT_TRUE(seven.has_value());
  for (const std::size_t gpu : {1U, 2U, 4U, 5U, 6U, 7U})
    EXPECT_EQ(std::ranges::count(seven->devices, devices[gpu].id), 1) << gpu;
  EXPECT_THAT(seven->reason, HasSubstr("the memory of 1 is held by a process of no Pod"));
  // A required one is taken.
  EXPECT_EQ(chooser->choose_devices(ids_at(devices, {0, 1, 2}), ids_at(devices, {0}), 1, loads)->devices,
            ids_at(devices, {0}));
}

// With random machines: as few held GPUs as possible, and the best set of those that remain.
TEST(Load, HeldGpusAreAsFewAsPossible) {
  std::mt19937 random(21);
  for (int state = 0; state < 1000; ++state) {
    const std::size_t gpus = 1 + random() % 8;
    const auto topology = machines::random(gpus, 6, random);
    const auto devices = machines::devices(gpus);
    const auto all = machines::ids(devices);
    const auto chooser = Chooser::build_chooser(topology, devices, {});
    std::vector<GpuLoad> loads(gpus);
    std::vector<DeviceId> others;
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
      loads[gpu].held_outside_pods = random() % 3 == 0;
      if (!loads[gpu].held_outside_pods) others.push_back(devices[gpu].id);
    }
    const std::size_t size = 1 + random() % gpus;
    const auto choice = chooser->choose_devices(all, {}, size, loads);
    ASSERT_TRUE(choice.has_value());
    if (others.size() >= size) {
      ASSERT_EQ(choice->devices, chooser->choose_devices(others, {}, size)->devices) << state;
    } else {
      ASSERT_EQ(choice->devices, chooser->choose_devices(all, others, size)->devices) << state;
    }
  }
}

}  // namespace
}  // namespace gpulet::placement
