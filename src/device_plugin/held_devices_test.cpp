#include "device_plugin/held_devices.h"

#include <gtest/gtest.h>

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
  HeldDevices held_;
  HeldDevices::Time now_ = HeldDevices::Time(1h);
};

TEST_F(HeldDevicesTest, EveryDeviceMayBeHeldBeforeTheFirstList) {
  EXPECT_TRUE(may_be_held(kGpus, kA));
  EXPECT_FALSE(held_.may_be_held(kGpus, {}));
  held_.replace_list({}, now_);
  EXPECT_FALSE(may_be_held(kGpus, kA));
}

TEST_F(HeldDevicesTest, TheNewestListCountsForItsResource) {
  held_.replace_list({holder("p", {{kGpus, {kA}}}), holder("q", {{kMig, {kB}}})}, now_);
  EXPECT_TRUE(may_be_held(kGpus, kA));
  EXPECT_FALSE(may_be_held(kMig, kA));
  EXPECT_FALSE(may_be_held(kGpus, kB));
  EXPECT_TRUE(may_be_held(kMig, kB));
  held_.replace_list({}, now_);
  EXPECT_FALSE(may_be_held(kGpus, kA));
}

TEST_F(HeldDevicesTest, AnAllocationCountsUntilAListThatMustShowIt) {
  held_.replace_list({}, now_);
  allocate(kA, now_);
  held_.replace_list({}, now_);  // the kubelet may not have recorded it
  EXPECT_TRUE(may_be_held(kGpus, kA));
  EXPECT_FALSE(may_be_held(kGpus, kB));
  held_.replace_list({}, now_ + 1ns);
  EXPECT_FALSE(may_be_held(kGpus, kA));
}

TEST_F(HeldDevicesTest, ManyAllocationsWithoutAListEndInEveryDevice) {
  held_.replace_list({}, now_);
  for (int i = 0; i <= 70'000; ++i) allocate(DeviceId(std::to_string(i)), now_);
  EXPECT_TRUE(may_be_held(kGpus, DeviceId("never allocated")));
}

TEST(HoldersOf, NamesThePodOfEachDeviceOfOneResource) {
  const std::vector containers{holder("p", {{kGpus, {kA, kB}}}), holder("q", {{kMig, {kA}}})};
  EXPECT_EQ(holders_of(kGpus, containers),
            (std::map<DeviceId, std::string>{{kA, "default/p"}, {kB, "default/p"}}));
}

}  // namespace
}  // namespace gpulet::device_plugin
