#include "dra/device_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/dns_name.h"
#include "dra/test_machines.h"

namespace gpulet::dra {
namespace {

using namespace test;
using inventory::GpuValue;

TEST(DevicePool, AWholeGpuHasNvidiasNamesAndTypes) {
  PoolInput input{.snapshot = make_snapshot({make_gpu(3)})};
  input.pcie_roots[{.bus = 0x13}] = "pci0000:10";
  const auto pool = make_device_pool(input);
  ASSERT_EQ(names(pool), "gpu-3");
  const std::map<std::string, Attribute> attributes = {{"type", std::string("gpu")},
                                                       {"uuid", "GPU-3"},
                                                       {"productName", "NVIDIA H100 80GB HBM3"},
                                                       {"brand", "Nvidia"},
                                                       {"architecture", "Hopper"},
                                                       {"cudaComputeCapability", Version{"9.0.0"}},
                                                       {"driverVersion", Version{"570.124.6"}},
                                                       {"cudaDriverVersion", Version{"12.4.0"}},
                                                       {"resource.kubernetes.io/pciBusID", "0000:13:00.0"},
                                                       {"resource.kubernetes.io/pcieRoot", "pci0000:10"},
                                                       {"resource.kubernetes.io/numaNode", std::int64_t{1}}};
  EXPECT_EQ(pool.devices[0].device.attributes, attributes);
  EXPECT_EQ(pool.devices[0].device.capacity,
            (std::map<std::string, std::uint64_t>{{"memory", mebibytes(81'559).value}}));
  EXPECT_EQ(pool.devices[0].type, DeviceType::kGpu);
  EXPECT_EQ(pool.devices[0].uuid, pool.devices[0].gpu_uuid);
}

TEST(DevicePool, AMigDeviceHasItsEnginesAndMemorySlices) {
  auto gpu = make_gpu(2);
  gpu.mig_enabled = true;
  gpu.mig_devices = {make_mig(gpu, 0, "2g.20gb", 14, 4, 2), make_mig(gpu, 1, "1g.24gb", 19, 0, 1),
                     make_mig(gpu, 2, "1g.10gb+me", 20, 6, 1)};
  const auto pool = make_pool({gpu});
  // By placement, not by index.
  ASSERT_EQ(names(pool), "gpu-2-mig-1g24gb-19-0 gpu-2-mig-2g20gb-14-4 gpu-2-mig-1g10gb-me-20-6");
  const auto& two = pool.devices[1];
  EXPECT_EQ(two.type, DeviceType::kMig);
  EXPECT_EQ(two.uuid.str(), "MIG-GPU-2-0");
  EXPECT_EQ(two.gpu_uuid.str(), "GPU-2");
  EXPECT_EQ(two.device.attributes.at("type"), Attribute("mig"));
  EXPECT_EQ(two.device.attributes.at("parentUUID"), Attribute("GPU-2"));
  EXPECT_EQ(two.device.attributes.at("profile"), Attribute("2g.20gb"));
  EXPECT_EQ(two.device.attributes.at("uuid"), Attribute("MIG-GPU-2-0"));
  const std::map<std::string, std::uint64_t> capacity = {{"multiprocessors", 16},
                                                         {"copyEngines", 1},
                                                         {"decoders", 1},
                                                         {"encoders", 0},
                                                         {"jpegEngines", 1},
                                                         {"ofaEngines", 0},
                                                         {"memory", mebibytes(9'984).value},
                                                         {"memorySlice4", 1},
                                                         {"memorySlice5", 1}};
  EXPECT_EQ(two.device.capacity, capacity);
}

TEST(DevicePool, LeavesOutWhatHasNoUnambiguousName) {
  auto lost = make_gpu(0);
  lost.unreadable = Error(Code::kDeviceLost, "lost");
  lost.not_read.emplace(GpuValue::kMinor, *lost.unreadable);
  auto unnamed = make_gpu(1);
  unnamed.uuid = DeviceUuid("");
  auto twice = make_gpu(3);
  twice.minor = 2;
  auto empty = make_partitioned_gpu(4, 0);
  auto part = make_partitioned_gpu(5, 2);
  part.mig_devices[0].profile = "1c.2g.20gb";
  part.mig_devices[0].gpu_slices = 2;
  part.mig_devices[1].gpu_instance_profile.reset();
  PoolInput input{.snapshot = make_snapshot({lost, unnamed, make_gpu(2), twice, empty, part, make_gpu(6)})};
  input.withdrawn[DeviceUuid("GPU-6")] = "is offered by the device plugin";
  const auto pool = make_device_pool(input);
  EXPECT_EQ(names(pool), "gpu-2");
  const std::string reason = " is not offered by claims: it ";
  EXPECT_EQ(pool.notes,
            (std::vector<std::string>{
                "GPU-0" + reason + "has no name: the number of its device node is unknown",
                "GPU 1" + reason + "has no UUID", "GPU-3" + reason + "has the name of another device: gpu-2",
                "GPU-4" + reason + "has MIG on and no MIG device",
                "MIG-GPU-5-0" + reason + "is only a part of its GPU instance (1c.2g.20gb)",
                "MIG-GPU-5-1" + reason + "has no name: the driver does not report its profile and placement",
                "GPU-6" + reason + "is offered by the device plugin"}));
}

TEST(DevicePool, ExcludedGpusAndTheirMigDevicesAreLeftOut) {
  std::vector<inventory::Gpu> gpus{make_gpu(0), make_gpu(1), make_partitioned_gpu(2, 2), make_gpu(3)};
  const auto all = make_pool(gpus);
  const std::string why = "is excluded by the rule at x.yaml:3:5";
  for (const std::size_t i : {1u, 2u}) gpus[i].excluded = why;
  const auto pool = make_pool(gpus);
  EXPECT_EQ(names(pool), "gpu-0 gpu-3");
  EXPECT_EQ(pool.notes, (std::vector<std::string>{"GPU-1 is not offered by claims: it " + why,
                                                  "GPU-2 is not offered by claims: it " + why}));
  for (const auto& offered : pool.devices) EXPECT_EQ(offered, *all.find(offered.device.name));
}

TEST(DevicePool, AnUnreadableGpuWithANameStays) {
  auto lost = make_gpu(0);
  lost.unreadable = Error(Code::kDeviceLost, "lost");
  EXPECT_EQ(names(make_pool({lost})), "gpu-0");
}

TEST(DevicePool, TaintsOfAGpuApplyToItsMigDevices) {
  PoolInput input{.snapshot = make_snapshot({make_partitioned_gpu(0, 2), make_gpu(1)})};
  const DeviceTaint of_gpu{std::string(kXidTaint), "79", TaintEffect::kNoSchedule};
  const DeviceTaint of_mig{std::string(kXidTaint), "43", TaintEffect::kNone};
  input.taints[DeviceUuid("GPU-0")] = {of_gpu};
  input.taints[DeviceUuid("MIG-GPU-0-1")] = {of_gpu, of_mig};
  const auto pool = make_device_pool(input);
  ASSERT_EQ(pool.devices.size(), 3u);
  EXPECT_EQ(pool.devices[0].device.taints, std::vector{of_gpu});
  EXPECT_EQ(pool.devices[1].device.taints, (std::vector{of_gpu, of_mig}));
  EXPECT_TRUE(pool.devices[2].device.taints.empty());
}

TEST(DevicePool, LongTextsAreCutBetweenCharacters) {
  auto gpu = make_gpu(0);
  gpu.model = std::string(63, 'x') + "ü";
  const auto pool = make_pool({gpu});
  EXPECT_EQ(pool.devices[0].device.attributes.at("productName"), Attribute(std::string(63, 'x')));
}

TEST(DevicePool, NoNegativeNumaNode) {
  auto gpu = make_gpu(0);
  gpu.numa_node = -1;
  EXPECT_FALSE(make_pool({gpu}).devices[0].device.attributes.contains(kNumaNodeAttribute));
  gpu.numa_node.reset();
  EXPECT_FALSE(make_pool({gpu}).devices[0].device.attributes.contains(kNumaNodeAttribute));
}

TEST(DevicePool, SelectsTheDevicesOfSomeGpusWithTheirCounters) {
  DevicePool pool;
  for (unsigned i = 0; i < 2; ++i) {
    const auto gpu = make_gpu(i);
    const CounterSet set{counter_set_name(gpu), {{"memory", 1}}};
    pool.devices.push_back({.device = {.name = gpu_device_name(gpu), .consumes = {{set.name, set.counters}}},
                            .uuid = gpu.uuid,
                            .gpu_uuid = gpu.uuid});
    pool.counter_sets.push_back(set);
  }
  const auto selected = select_devices(pool, [](const DeviceUuid& gpu) { return gpu.str() == "GPU-1"; });
  EXPECT_EQ(names(selected), "gpu-1");
  EXPECT_EQ(selected.counter_sets, std::vector<CounterSet>{pool.counter_sets[1]});
}

TEST(PcieRoot, IsTheFirstDirectoryBelowDevices) {
  EXPECT_EQ(pcie_root_of_link("../../../devices/pci0000:1a/0000:1a:01.0/0000:1b:00.0"), "pci0000:1a");
  EXPECT_EQ(pcie_root_of_link("/sys/devices/pci0001:00/0001:00:00.0"), "pci0001:00");
  for (const char* const link : {"", "../../../devices/platform/x", "pci0000:1a/x", "/devices/pci0000:00"}) {
    EXPECT_FALSE(pcie_root_of_link(link)) << link;
  }
}

// The rules of the API for every node, and the same order wherever NVML lists a GPU.
RC_GTEST_PROP(DevicePool, IsValidAndStable, ()) {
  std::vector<inventory::Gpu> gpus;
  const auto count = *rc::gen::inRange(0u, 17u);
  for (unsigned i = 0; i < count; ++i) {
    gpus.push_back(*rc::gen::arbitrary<bool>() ? make_gpu(i)
                                               : make_partitioned_gpu(i, *rc::gen::inRange(0u, 8u)));
  }
  const auto pool = make_pool(gpus);
  std::set<std::string> seen;
  for (const auto& offered : pool.devices) {
    const auto& device = offered.device;
    RC_ASSERT(is_dns_label(device.name));
    RC_ASSERT(seen.insert(device.name).second);
    RC_ASSERT(device.attributes.size() + device.capacity.size() <= 32u);
    RC_ASSERT(pool.find(device.name) == &offered);
  }
  std::vector<inventory::Gpu> shuffled;
  while (!gpus.empty()) {
    const auto at = *rc::gen::inRange<std::size_t>(0, gpus.size());
    gpus[at].index = static_cast<unsigned>(shuffled.size());
    shuffled.push_back(gpus[at]);
    gpus.erase(gpus.begin() + static_cast<std::ptrdiff_t>(at));
  }
  RC_ASSERT(make_pool(shuffled).devices == pool.devices);
}

}  // namespace
}  // namespace gpulet::dra
