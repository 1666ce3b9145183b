#include "device_plugin/held_devices.h"

#include <gtest/gtest.h>

#include <thread>

#include "device_plugin/pod_resources.h"
#include "device_plugin/test_node.h"
#include "sim/kubelet/rpc.h"

namespace gpulet::device_plugin {
namespace {

using namespace std::chrono_literals;

const ResourceName kGpus("nvidia.com/gpu"), kMig("nvidia.com/mig-1g.10gb");
const DeviceId kA("a"), kB("b");

ContainerDevices holder(const std::string& pod, std::map<ResourceName, std::vector<DeviceId>> devices) {
  return {{"default", pod}, "main", std::move(devices)};
}

class HeldDevicesTest : public testing::Test {
 protected:
  bool may_be_held(const ResourceName& resource, const DeviceId& id) const {
    return held_.may_be_held(resource, std::span(&id, 1));
  }
  void allocate(const DeviceId& id, HeldDevices::Time now) {
    held_.add_allocation(kGpus, std::span(&id, 1), now);
  }
  void list(const std::vector<ContainerDevices>& containers, HeldDevices::Time complete_until) {
    held_.replace_list(containers, complete_until + kAllocationRecorded, complete_until);
  }
  HeldDevices::Time now_ = HeldDevices::Time(1h);
  HeldDevices held_{now_};
};

TEST_F(HeldDevicesTest, EveryDeviceMayBeHeldBeforeTheFirstList) {
  EXPECT_TRUE(may_be_held(kGpus, kA));
  EXPECT_FALSE(held_.may_be_held(kGpus, {}));
  list({}, now_);
  EXPECT_FALSE(may_be_held(kGpus, kA));
}

TEST_F(HeldDevicesTest, TheNewestListCountsForItsResource) {
  list({holder("p", {{kGpus, {kA}}}), holder("q", {{kMig, {kB}}})}, now_);
  EXPECT_TRUE(may_be_held(kGpus, kA));
  EXPECT_FALSE(may_be_held(kMig, kA));
  EXPECT_FALSE(may_be_held(kGpus, kB));
  EXPECT_TRUE(may_be_held(kMig, kB));
  list({}, now_);
  EXPECT_FALSE(may_be_held(kGpus, kA));
}

TEST_F(HeldDevicesTest, AnAllocationCountsUntilAListThatMustShowIt) {
  list({}, now_);
  allocate(kA, now_);
  list({}, now_);  // the kubelet may not have recorded it
  EXPECT_TRUE(may_be_held(kGpus, kA));
  EXPECT_FALSE(may_be_held(kGpus, kB));
  list({}, now_ + 1ns);
  EXPECT_FALSE(may_be_held(kGpus, kA));
}

// Lists that were asked for `asked` after the start.
TEST_F(HeldDevicesTest, KnowsWhetherAListShowsEveryAllocation) {
  const auto list_at = [this](std::chrono::nanoseconds asked, std::vector<DeviceId> ids) {
    held_.replace_list({holder("p", {{kGpus, std::move(ids)}})}, now_ + asked,
                       now_ + asked - kAllocationRecorded);
  };
  EXPECT_FALSE(held_.shows_allocations());
  list_at(kAllocationRecorded - 1ns, {});
  EXPECT_FALSE(held_.shows_allocations()) << "an agent before this one may have allocated";
  list_at(kAllocationRecorded, {});
  EXPECT_TRUE(held_.shows_allocations());
  list_at(20s, {kA});
  allocate(kA, now_ + 21s);
  EXPECT_FALSE(held_.shows_allocations()) << "that List shows its holder before";
  list_at(21s, {kA});
  EXPECT_FALSE(held_.shows_allocations()) << "asked for before the answer";
  list_at(22s, {kB});
  EXPECT_FALSE(held_.shows_allocations());
  list_at(23s, {kA});
  EXPECT_TRUE(held_.shows_allocations());
  list_at(24s, {});
  EXPECT_TRUE(held_.shows_allocations()) << "it has ended";
  allocate(kB, now_ + 25s);
  list_at(25s + kAllocationRecorded, {});
  EXPECT_FALSE(held_.shows_allocations());
  list_at(25s + kAllocationRecorded + 1ns, {});
  EXPECT_TRUE(held_.shows_allocations()) << "its Pod was not admitted";
}

// Lists are answered in any order.
TEST_F(HeldDevicesTest, AnOlderListDoesNotReplaceANewerOne) {
  const std::vector containers{holder("p", {{kGpus, {kA}}})};
  allocate(kA, now_ + 1s);
  held_.replace_list(containers, now_ + 3s, now_ + 3s);
  held_.replace_list({}, now_ + 2s, now_ + 2s - kAllocationRecorded);
  EXPECT_TRUE(may_be_held(kGpus, kA));
  held_.replace_list({}, now_ + 4s, now_ + 4s - kAllocationRecorded);
  EXPECT_FALSE(may_be_held(kGpus, kA));
}

TEST_F(HeldDevicesTest, LastKnownIsWhatTheNewestListShowsAndWhatWasAllocatedSince) {
  EXPECT_TRUE(held_.last_known(kGpus).empty());
  list({holder("p", {{kGpus, {kA}}})}, now_);
  allocate(kB, now_ + 1s);
  EXPECT_EQ(held_.last_known(kGpus), (std::map<DeviceId, std::string>{{kA, "unknown"}, {kB, "unknown"}}));
  EXPECT_TRUE(held_.last_known(kMig).empty());
}

TEST_F(HeldDevicesTest, ManyAllocationsWithoutAListEndInEveryDevice) {
  list({}, now_);
  for (int i = 0; i <= 70'000; ++i) allocate(DeviceId(std::to_string(i)), now_);
  EXPECT_TRUE(may_be_held(kGpus, DeviceId("never allocated")));
}

TEST(PodsByDevice, OfOneResourceOrOfAll) {
  const std::vector containers{holder("p", {{kGpus, {kA, kB}}}), holder("q", {{kMig, {kA}}})};
  EXPECT_EQ(pods_by_device(containers, &kGpus),
            (std::map<DeviceId, std::string>{{kA, "default/p"}, {kB, "default/p"}}));
  EXPECT_EQ(pods_by_device(containers, &kMig), (std::map<DeviceId, std::string>{{kA, "default/q"}}));
  EXPECT_EQ(pods_by_device({containers.back()}), (std::map<DeviceId, std::string>{{kA, "default/q"}}));
}

// A Pod ends and somebody lists the containers' devices while an Allocate is in progress: the kubelet offers
// the devices of that Allocate again (kubernetes/kubernetes#137534).
class ListDuringAllocateTest : public testing::Test {
 protected:
  void start(std::size_t gpus, HolderSource holders) {
    sim::KubeletSettings racing;
    racing.dir = directory_.directory_path();
    racing.allocate_answered = [this](const auto&) {
      const auto ended = std::exchange(ending_, "");
      if (ended.empty()) return;
      EXPECT_TRUE(kubelet_->remove_pod(ended));
      EXPECT_TRUE(node_->list_containers());
    };
    kubelet_ = start_kubelet(racing);
    node_.emplace(directory_.directory_path(), "default", holders);
    ASSERT_TRUE(node_->serve_offer(offers::make_offer(kGpus.str(), gpus)));
    ASSERT_TRUE(kubelet_->wait_for_allocatable(kGpus.str(), gpus, kPatience));
  }
  Result<std::vector<std::string>> admit(const std::string& name, unsigned gpus = 1) {
    GPULET_TRY_ASSIGN(const auto grant,
                      kubelet_->admit_pod({"default", name, "", {{"main", {{kGpus.str(), gpus}}}}}));
    return grant.containers.at(0).devices.at(kGpus.str());
  }
  // Admits the Pod "first" while the Pod "ended" ends. It gets the best GPU, which the kubelet then offers
  // again.
  Result<std::vector<std::string>> admit_first() {
    GPULET_TRY(admit("before"));
    GPULET_TRY_ASSIGN(ended_, admit("ended"));
    GPULET_TRY(kubelet_->remove_pod("default/before"));
    ending_ = "default/ended";
    return admit("first");
  }
  int holder_requests() {
    int requests = 0;
    node_->wait_until([&] {
      requests = node_->holder_requests;
      return true;
    });
    return requests;
  }

  std::shared_ptr<sim::PluginClient> connect_client() {
    auto client =
        sim::PluginClient::connect_plugin(directory_.directory_path() + "/device-plugins/nvidia-gpu.sock");
    EXPECT_TRUE(client) << client.error().full_message();
    return client ? *client : nullptr;
  }

  TemporaryDirectory directory_;
  std::string ending_;              // uid
  std::vector<std::string> ended_;  // its GPUs
  std::unique_ptr<sim::Kubelet> kubelet_;
  std::optional<TestNode> node_;
};

TEST_F(ListDuringAllocateTest, GivesOneDeviceToTwoPodsIfNobodyAsks) {
  start(8, HolderSource::kNone);
  const auto first = admit_first();
  const auto second = admit("second");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*second, *first);
}

TEST_F(ListDuringAllocateTest, PrefersAnotherDevice) {
  start(8, HolderSource::kKubelet);
  const auto first = admit_first();
  const auto second = admit("second");
  ASSERT_TRUE(first && second);
  EXPECT_NE(*second, *first);
}

TEST_F(ListDuringAllocateTest, PrefersAnotherDeviceByWhatItKnowsIfTheKubeletDoesNotSay) {
  start(8, HolderSource::kKubelet);
  const auto first = admit_first();
  node_->holders = HolderSource::kFails;
  const auto second = admit("second");
  ASSERT_TRUE(first && second);
  EXPECT_NE(*second, *first);
}

TEST_F(ListDuringAllocateTest, RefusesTheDeviceWhereNoOtherIsFree) {
  start(2, HolderSource::kKubelet);
  const auto first = admit_first();
  ASSERT_TRUE(first);
  const auto second = admit("second", 2);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().message(),
            "UnexpectedAdmissionError: Allocate failed due to rpc error: code = FailedPrecondition desc = "
            "invalid allocation request for \"nvidia.com/gpu\": the Pod default/first holds " +
                first->at(0) +
                ", which the kubelet has allocated a second time (kubernetes/kubernetes#137534): create the "
                "Pod again, which is unexpected");
  // The refusal has corrected the kubelet.
  const auto third = admit("third");
  ASSERT_TRUE(third);
  EXPECT_EQ(*third, ended_);
}

TEST_F(ListDuringAllocateTest, AsksOnlyForADeviceThatMayBeHeld) {
  start(8, HolderSource::kKubelet);
  ASSERT_TRUE(node_->list_containers());
  ASSERT_TRUE(admit("first", 4));
  ASSERT_TRUE(admit("second", 4));
  EXPECT_EQ(holder_requests(), 0);
  ASSERT_TRUE(kubelet_->remove_pod("default/first"));
  ASSERT_TRUE(admit("third", 4));  // the answer to GetPreferredAllocation holds for Allocate
  EXPECT_EQ(holder_requests(), 1);
}

TEST_F(ListDuringAllocateTest, KnowsWhenTheLastCallWasAnswered) {
  start(8, HolderSource::kKubelet);
  EXPECT_FALSE(node_->allocation_calls().answered);
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(admit("first"));
  const auto calls = node_->allocation_calls();
  EXPECT_EQ(calls.open, 0u);
  ASSERT_TRUE(calls.answered);
  EXPECT_GT(*calls.answered, began);
  EXPECT_LT(*calls.answered, std::chrono::steady_clock::now());
}

TEST_F(ListDuringAllocateTest, AllocatesWhenTheKubeletDoesNotSay) {
  start(8, HolderSource::kSilent);
  const auto began = std::chrono::steady_clock::now();
  const auto client = connect_client();
  EXPECT_TRUE(client->call_allocate({offers::gpu_uuid(3)}));
  EXPECT_GE(std::chrono::steady_clock::now() - began, kHolderTimeout);
}

TEST_F(ListDuringAllocateTest, AnswersWaitingCallsAtTheEnd) {
  start(8, HolderSource::kSilent);
  const auto client = connect_client();
  AsyncResult<bool> answered;
  std::thread caller([&] { answered.set(client->call_allocate({offers::gpu_uuid(3)}).has_value()); });
  ASSERT_TRUE(node_->wait_until([&] { return node_->holder_requests > 0; }));
  EXPECT_EQ(node_->allocation_calls().open, 1u);
  EXPECT_LT(node_->stop_host(), kHolderTimeout);
  answered.get();
  caller.join();
}

}  // namespace
}  // namespace gpulet::device_plugin
