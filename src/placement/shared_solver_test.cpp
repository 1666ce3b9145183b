#include "placement/shared_solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "placement/test_machines.h"

namespace gpulet::placement {
namespace {

using testing::ElementsAre;

// Four GPUs with four shares each and equal links; requests are given by the used shares of each GPU.
class Shares {
 public:
  explicit Shares(SharedPolicy policy, const topology::Topology& topology = machines::pcie(4, 4, false),
                  SharesOn where = SharesOn::kAnyGpu)
      : devices_(machines::devices(topology.size, 4)),
        chooser_(Chooser::build_chooser(
            topology, devices_, {.policy = Policy::kBestEffort, .shared = policy, .shares_on = where})) {}

  // The free shares if the first `in_use[gpu]` of each GPU are used.
  std::vector<DeviceId> free(const std::vector<std::size_t>& in_use) const {
    std::vector<DeviceId> list;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (i % 4 >= in_use[i / 4]) list.push_back(devices_[i].id);
    }
    return list;
  }

  // How many of each GPU.
  std::vector<std::size_t> choose(const std::vector<DeviceId>& available, std::size_t size,
                                  const std::vector<DeviceId>& required = {}) {
    const Result<Choice> choice = chooser_->choose_devices(available, required, size);
    EXPECT_TRUE(choice.has_value());
    choice_ = *choice;
    std::vector<std::size_t> counts(devices_.size() / 4);
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      if (std::count(choice_.devices.begin(), choice_.devices.end(), devices_[i].id) > 0) ++counts[i / 4];
    }
    EXPECT_EQ(choice_.devices.size(), size);
    return counts;
  }

  const Choice& last() const { return choice_; }
  DeviceId share(std::size_t gpu, std::size_t n) const { return devices_[gpu * 4 + n].id; }

 private:
  std::vector<Device> devices_;
  std::shared_ptr<const Chooser> chooser_;
  Choice choice_;
};

TEST(SharedPlacement, MigDevicesAreChosenByTheLowestSlice) {
  // As NVML lists seven 1g.10gb of an H100: those of the upper half first.
  std::vector<Device> devices;
  for (const unsigned slice : {4u, 5u, 6u, 0u, 1u, 2u, 3u}) {
    devices.push_back({DeviceId("MIG-" + std::to_string(slice)), 0, true, slice});
  }
  const auto topology = machines::pcie(1, 1, false);
  for (const auto policy : {SharedPolicy::kDistributed, SharedPolicy::kPacked}) {
    const auto chooser = Chooser::build_chooser(topology, devices, {Policy::kBestEffort, policy});
    std::vector<DeviceId> available;
    for (const auto& device : devices) available.push_back(device.id);
    for (unsigned slice = 0; slice < 7; ++slice) {
      const auto choice = chooser->choose_devices(available, {}, 1);
      ASSERT_TRUE(choice.has_value());
      EXPECT_THAT(choice->devices, ElementsAre(DeviceId("MIG-" + std::to_string(slice))));
      std::erase(available, choice->devices.front());
    }
  }
}

TEST(SharedPlacement, SharesAreWhereTheRuleSays) {
  struct Case {
    SharesOn where;
    SharedPolicy policy;
    std::vector<std::size_t> in_use;
    std::size_t size;
    std::vector<std::size_t> expected;
  };
  constexpr auto kDistributed = SharedPolicy::kDistributed, kPacked = SharedPolicy::kPacked;
  for (const auto& [where, policy, in_use, size, expected] : {
           Case{SharesOn::kOneGpu, kDistributed, {1, 0, 0, 0}, 2, {0, 2, 0, 0}},
           Case{SharesOn::kOneGpu, kDistributed, {3, 3, 2, 3}, 2, {0, 0, 2, 0}},
           Case{SharesOn::kOneGpu, kPacked, {3, 1, 2, 0}, 2, {0, 0, 2, 0}},
           Case{SharesOn::kOneGpu, kPacked, {3, 1, 2, 0}, 3, {0, 3, 0, 0}},
           Case{SharesOn::kOneGpu, kDistributed, {4, 4, 4, 0}, 4, {0, 0, 0, 4}},
           // It cannot be: as without the rule.
           Case{SharesOn::kOneGpu, kDistributed, {3, 3, 4, 4}, 2, {1, 1, 0, 0}},
           Case{SharesOn::kDifferentGpus, kPacked, {1, 0, 0, 2}, 2, {1, 0, 0, 1}},
           Case{SharesOn::kDifferentGpus, kPacked, {1, 0, 3, 2}, 4, {1, 1, 1, 1}},
           Case{SharesOn::kDifferentGpus, kDistributed, {1, 0, 4, 2}, 3, {1, 1, 0, 1}},
           Case{SharesOn::kDifferentGpus, kDistributed, {4, 4, 4, 2}, 2, {0, 0, 0, 2}},
           Case{SharesOn::kDifferentGpus, kDistributed, {0, 0, 0, 0}, 1, {1, 0, 0, 0}},
       }) {
    Shares shares(policy, machines::pcie(4, 4, false), where);
    EXPECT_EQ(shares.choose(shares.free(in_use), size), expected)
        << shares_on_name(where) << " " << size << " " << testing::PrintToString(in_use);
  }
  Shares one(kDistributed, machines::pcie(4, 4, false), SharesOn::kOneGpu);
  const auto all = one.free({0, 0, 0, 0});
  EXPECT_THAT(one.choose(all, 3, {one.share(2, 1)}), ElementsAre(0, 0, 3, 0)) << "where the required one is";
  Shares different(kPacked, machines::pcie(4, 4, false), SharesOn::kDifferentGpus);
  EXPECT_THAT(different.choose(all, 2, {different.share(0, 1)}), ElementsAre(1, 1, 0, 0));
}

TEST(SharedPlacement, PlacesOfSharesAreNamed) {
  EXPECT_EQ(parse_shares_on("oneGPU"), SharesOn::kOneGpu);
  EXPECT_EQ(parse_shares_on("differentGPUs"), SharesOn::kDifferentGpus);
  for (const char* other : {"", "onegpu", "any"}) EXPECT_EQ(parse_shares_on(other), std::nullopt) << other;
  using Gpus = std::vector<std::size_t>;
  EXPECT_TRUE(are_shares_placed(SharesOn::kAnyGpu, Gpus{0, 1, 1}));
  EXPECT_TRUE(are_shares_placed(SharesOn::kOneGpu, Gpus{1, 1}));
  EXPECT_FALSE(are_shares_placed(SharesOn::kOneGpu, Gpus{0, 1}));
  EXPECT_TRUE(are_shares_placed(SharesOn::kDifferentGpus, Gpus{0, 1}));
  EXPECT_FALSE(are_shares_placed(SharesOn::kDifferentGpus, Gpus{1, 0, 1}));
}

TEST(SharedPlacement, DistributedTakesTheLeastUsedFirst) {
  Shares shares(SharedPolicy::kDistributed);
  EXPECT_THAT(shares.choose(shares.free({0, 0, 0, 0}), 1), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(shares.choose(shares.free({1, 0, 2, 0}), 1), ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(shares.choose(shares.free({1, 0, 2, 0}), 4), ElementsAre(1, 2, 0, 1));
  EXPECT_THAT(shares.choose(shares.free({3, 3, 3, 3}), 4), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(shares.choose(shares.free({4, 4, 2, 4}), 2), ElementsAre(0, 0, 2, 0));
}

TEST(SharedPlacement, PackedTakesTheMostUsedFirst) {
  Shares shares(SharedPolicy::kPacked);
  EXPECT_THAT(shares.choose(shares.free({0, 0, 0, 0}), 5), ElementsAre(4, 1, 0, 0));
  EXPECT_THAT(shares.choose(shares.free({1, 0, 2, 0}), 3), ElementsAre(1, 0, 2, 0));
  EXPECT_THAT(shares.choose(shares.free({4, 3, 0, 0}), 2), ElementsAre(0, 1, 1, 0));
}

TEST(SharedPlacement, RequiredSharesCountAsUsed) {
  Shares distributed(SharedPolicy::kDistributed);
  const auto all = distributed.free({0, 0, 0, 0});
  EXPECT_THAT(distributed.choose(all, 4, {distributed.share(0, 2), distributed.share(2, 1)}),
              ElementsAre(1, 1, 1, 1));
  Shares packed(SharedPolicy::kPacked);
  EXPECT_THAT(packed.choose(all, 4, {packed.share(3, 1)}), ElementsAre(0, 0, 0, 4));
  EXPECT_THAT(packed.choose(all, 1, {packed.share(3, 1)}), ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(packed.last().devices.front(), packed.share(3, 1));
}

TEST(SharedPlacement, TiesGoToTheBestLinked) {
  Shares shares(SharedPolicy::kDistributed, machines::dgx1());
  // 0 has two links to 3 and 4, and shares a PCIe domain with 3.
  EXPECT_THAT(shares.choose(shares.free(std::vector<std::size_t>(8, 0)), 2),
              ElementsAre(1, 0, 0, 1, 0, 0, 0, 0));
  EXPECT_EQ(shares.last().score, 220);
}

TEST(SharedPlacement, ChoiceIsInResourceOrderWithAReason) {
  Shares shares(SharedPolicy::kDistributed);
  shares.choose(shares.free({1, 0, 2, 0}), 3);
  EXPECT_THAT(shares.last().devices, ElementsAre(shares.share(0, 1), shares.share(1, 0), shares.share(3, 0)));
  EXPECT_EQ(shares.last().method, Method::kShared);
  EXPECT_EQ(
      shares.last().reason,
      "1 share of GPU 0 (1 of 4 in use before), 1 share of GPU 1 (0 of 4 in use before) and 1 share of GPU 3 "
      "(0 of 4 in use before); distributed: the least used first");
}

// Seven MIG devices on each of two GPUs, two replicas each: first the GPU, then the MIG device that is used
// least.
TEST(SharedPlacement, ReplicasOfMigDevicesAreSpreadInsideTheirGpu) {
  std::vector<Device> devices;
  for (std::size_t gpu = 0; gpu < 2; ++gpu) {
    for (std::size_t mig = 0; mig < 7; ++mig) {
      for (std::size_t n = 0; n < 2; ++n) {
        devices.push_back(
            {DeviceId("MIG-" + std::to_string(gpu) + std::to_string(mig) + "::" + std::to_string(n)), gpu,
             true});
      }
    }
  }
  const auto all = machines::ids(devices);
  const auto spread = Chooser::build_chooser(machines::pcie(2, 2, false), devices, {});
  EXPECT_THAT(spread->choose_devices(all, {}, 4)->devices, ElementsAre(all[0], all[2], all[14], all[16]));
  const auto packed = Chooser::build_chooser(machines::pcie(2, 2, false), devices,
                                             {Policy::kBestEffort, SharedPolicy::kPacked});
  EXPECT_THAT(packed->choose_devices(all, {}, 4)->devices, ElementsAre(all[0], all[1], all[2], all[3]));
}

// A resource may hold whole GPUs and shares of others: the available devices decide, as in NVIDIA's plugin.
TEST(SharedPlacement, WholeGpusAmongSharesAreChosenByLinks) {
  std::vector<Device> devices = machines::devices(4);
  for (std::size_t n = 0; n < 2; ++n) {
    devices.push_back({DeviceId(machines::gpu_id(4) + "::" + std::to_string(n)), 4, true});
  }
  const auto chooser = Chooser::build_chooser(machines::pcie(5, 4, true), devices, {});
  const auto all = machines::ids(devices);
  const std::vector<DeviceId> whole = {all[1], all[2], all[3]};
  EXPECT_EQ(chooser->choose_devices(whole, {}, 2)->method, Method::kExactByClasses);
  EXPECT_THAT(chooser->choose_devices(whole, {}, 2)->devices, ElementsAre(all[2], all[3]));
  EXPECT_EQ(chooser->choose_devices(all, {}, 2)->method, Method::kShared);
}

// Share by share by the definition of the policy, over random loads, with as many shares as the kubelet
// allows.
TEST(SharedPlacement, AgreesWithChoosingShareByShare) {
  std::mt19937 random(41);
  for (int round = 0; round < 200; ++round) {
    const std::size_t gpus = 1 + random() % 6;
    const std::size_t replicas = 1 + random() % 5;
    const std::vector<Device> devices = machines::devices(gpus, replicas);
    const SharedPolicy policy = random() % 2 == 0 ? SharedPolicy::kDistributed : SharedPolicy::kPacked;
    const auto chooser =
        Chooser::build_chooser(machines::pcie(gpus, 8, false), devices, {Policy::kBestEffort, policy});
    std::vector<DeviceId> available;
    std::vector<std::size_t> allocated(gpus, 0);
    std::vector<std::size_t> free(gpus, 0);
    for (const Device& device : devices) {
      const bool taken = random() % 2 == 0;
      if (!taken) available.push_back(device.id);
      ++(taken ? allocated : free)[device.gpu];
    }
    if (available.empty()) continue;
    const std::size_t size = 1 + random() % available.size();
    std::vector<std::size_t> picked(gpus, 0);
    for (std::size_t i = 0; i < size; ++i) {
      std::size_t best = gpus;
      for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
        if (free[gpu] == 0) continue;
        const auto key = [&](std::size_t g) {
          const auto used = static_cast<long>(allocated[g]);
          return std::pair(policy == SharedPolicy::kDistributed ? used : -used, picked[g]);
        };
        if (best == gpus || key(gpu) < key(best)) best = gpu;
      }
      ++allocated[best];
      ++picked[best];
      --free[best];
    }
    std::vector<std::size_t> counts(gpus, 0);
    const Result<Choice> choice = chooser->choose_devices(available, {}, size);
    for (const DeviceId& id : choice->devices) {
      for (const Device& device : devices) counts[device.gpu] += device.id == id ? 1 : 0;
    }
    ASSERT_EQ(counts, picked);
  }
}

TEST(SharedPlacement, FourThousandShares) {
  const std::vector<Device> devices = machines::devices(16, 256);
  const auto chooser = Chooser::build_chooser(machines::nvswitch(16, 18), devices, {});
  const Result<Choice> choice = chooser->choose_devices(machines::ids(devices), {}, 4000);
  ASSERT_TRUE(choice.has_value());
  std::map<std::string, int> by_gpu;
  for (const DeviceId& id : choice->devices) ++by_gpu[id.str().substr(0, id.str().find("::"))];
  for (const auto& [gpu, count] : by_gpu) EXPECT_EQ(count, 250) << gpu;
}

}  // namespace
}  // namespace gpulet::placement
