#include "dra/claimed_devices.h"

#include <gtest/gtest.h>

#include "dra/device_pool.h"
#include "dra/test_machines.h"

namespace gpulet::dra {
namespace {

inventory::Snapshot three_gpus() {
  inventory::Snapshot snapshot;
  snapshot.gpus = {test::make_gpu(1), test::make_partitioned_gpu(10, 2), test::make_gpu(0)};
  return snapshot;
}

// Exactly the names of the pool, so that every device of a claim is found.
TEST(ClaimedDevices, EveryDeviceOfThePoolIsFoundByItsName) {
  const auto snapshot = three_gpus();
  const auto pool = make_device_pool({.snapshot = std::make_shared<inventory::Snapshot>(snapshot)});
  ASSERT_EQ(pool.devices.size(), 4u);
  for (const auto& device : pool.devices)
    EXPECT_EQ(find_device_uuid(device.device.name, snapshot), device.uuid) << device.device.name;
}

TEST(ClaimedDevices, AnotherNameIsOfNoDevice) {
  const auto snapshot = three_gpus();
  for (const char* name : {"", "gpu-", "gpu-2", "gpu-01", "gpu-1-mig-1g10gb-19-0", "gpu-10-mig-1g10gb-19-2",
                           "gpu-10-mig-1g10gb-19-01", "GPU-1", "gpu-1 "})
    EXPECT_FALSE(find_device_uuid(name, snapshot)) << name;
  // The number of its device node is unknown: it is not GPU 0.
  auto unreadable = snapshot;
  unreadable.gpus[0].minor = 0;
  unreadable.gpus[0].unreadable = Error(Code::kUnavailable, "is lost");
  unreadable.gpus[0].not_read.emplace(inventory::GpuValue::kMinor, *unreadable.gpus[0].unreadable);
  EXPECT_EQ(find_device_uuid("gpu-0", unreadable), DeviceUuid("GPU-0"));
  // The driver did not report its profile, so that it has no name.
  auto unknown = snapshot;
  unknown.gpus[1].mig_devices[0].gpu_instance_profile.reset();
  EXPECT_FALSE(find_device_uuid("gpu-10-mig-1g10gb-19-0", unknown));
  EXPECT_TRUE(find_device_uuid("gpu-10-mig-1g10gb-19-1", unknown));
}

class FixedPodResources final : public device_plugin::PodResources {
 public:
  void list_containers(std::function<void(Result<std::vector<ContainerDevices>>)> done) override {
    done(std::vector{containers});
  }
  void list_allocatable(std::function<void(Result<device_plugin::DevicesByResource>)> done) override {
    done(device_plugin::DevicesByResource{});
  }
  std::vector<ContainerDevices> containers;
};

TEST(ClaimedDevices, OnlyDevicesOfThisDriverAreResolved) {
  auto inner = std::make_unique<FixedPodResources>();
  const ResourceName plugin("nvidia.com/gpu"), driver("gpu.nvidia.com"), other("nic.example.com");
  inner->containers = {{{"ns", "pod"},
                        "main",
                        {{plugin, {DeviceId("GPU-0")}},
                         {driver, {DeviceId("gpu-1"), DeviceId("gpu-7")}},
                         {other, {DeviceId("gpu-1")}}}}};
  const auto as_listed = inner->containers;
  inventory::SnapshotPtr snapshot;
  const auto resources = with_claimed_devices(std::move(inner), [&] { return snapshot; });
  std::vector<ContainerDevices> seen;
  const auto list = [&] {
    resources->list_containers([&](Result<std::vector<ContainerDevices>> containers) {
      ASSERT_TRUE(containers);
      seen = *containers;
    });
  };
  list();
  EXPECT_EQ(seen, as_listed);  // the GPUs are not known yet
  snapshot = std::make_shared<inventory::Snapshot>(three_gpus());
  list();
  EXPECT_EQ(seen[0].devices.at(plugin), std::vector{DeviceId("GPU-0")});
  EXPECT_EQ(seen[0].devices.at(driver), (std::vector{DeviceId("GPU-1"), DeviceId("gpu-7")}));
  EXPECT_EQ(seen[0].devices.at(other), std::vector{DeviceId("gpu-1")});
}

}  // namespace
}  // namespace gpulet::dra
