#include "mps/plan.h"

#include <gtest/gtest.h>

#include "partition/resources.h"

namespace gpulet::mps {
namespace {

using inventory::Gpu;
using inventory::Snapshot;
using partition::Device;
using partition::Resource;

Snapshot two_gpu_node(unsigned count, std::uint64_t mib = 81559) {
  Snapshot snapshot;
  for (unsigned i = 0; i < count; ++i) {
    Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.model = "NVIDIA H100 80GB HBM3";
    gpu.memory = mebibytes(mib);
    snapshot.gpus.push_back(gpu);
  }
  return snapshot;
}

Device shared_resource(std::size_t gpu, unsigned replica,
                       std::optional<config::MpsShare> size = std::nullopt) {
  Device device;
  device.id = DeviceId("GPU-" + std::to_string(gpu) + "::" + std::to_string(replica));
  device.gpu = gpu;
  device.replica = replica;
  device.share = size;
  return device;
}

Resource mps(const std::string& name, const std::vector<std::size_t>& gpus, unsigned replicas) {
  Resource resource;
  resource.name = ResourceName(name);
  resource.sharing = config::SharingStrategy::kMps;
  resource.mps_daemon = name;
  for (const auto gpu : gpus) {
    for (unsigned n = 0; n < replicas; ++n) resource.devices.push_back(shared_resource(gpu, n));
  }
  return resource;
}

TEST(MpsPlan, LimitsEqualSharesAsNvidiaDoes) {
  struct Row {
    std::uint64_t mib;
    unsigned replicas;
    std::uint64_t limit;
    unsigned threads;
  };
  for (const Row& row : {Row{81559, 2, 40779, 50}, Row{81559, 3, 27186, 33}, Row{15360, 4, 3840, 25},
                         Row{40960, 7, 5851, 14}, Row{81559, 48, 1699, 2}, Row{32768, 16, 2048, 6}}) {
    const auto specs = plan_daemons({mps("nvidia.com/gpu", {0, 1}, row.replicas)}, two_gpu_node(2, row.mib));
    ASSERT_EQ(specs.size(), 1u);
    EXPECT_EQ(specs[0].memory_limits, (std::vector<MemoryLimit>{{0, row.limit}, {1, row.limit}}));
    EXPECT_EQ(specs[0].thread_percentage, row.threads) << row.replicas;
    EXPECT_TRUE(specs[0].visible_devices.empty());
    EXPECT_EQ(specs[0].name, "nvidia.com/gpu");
  }
}

TEST(MpsPlan, LimitsTheClientsOfAGpu) {
  for (const auto& [major, minor, clients] :
       {std::tuple{6u, 0u, 16u}, {7u, 0u, 16u}, {7u, 5u, 48u}, {8u, 0u, 48u}, {10u, 0u, 48u}}) {
    Gpu gpu;
    gpu.compute_major = major;
    gpu.compute_minor = minor;
    EXPECT_EQ(partition::max_mps_replicas(gpu), clients) << major << "." << minor;
  }
}

TEST(MpsPlan, PlansDaemonsOnlyForMpsSharing) {
  auto slices = mps("nvidia.com/gpu", {0}, 4);
  slices.sharing = config::SharingStrategy::kTimeSlicing;
  EXPECT_TRUE(plan_daemons({slices}, two_gpu_node(1)).empty());
  // Devices that cannot be shared are in the same resource, unshared.
  auto mixed = mps("nvidia.com/gpu", {1}, 2);
  Device whole;
  whole.id = DeviceId("GPU-0");
  mixed.devices.insert(mixed.devices.begin(), whole);
  const auto specs = plan_daemons({mixed}, two_gpu_node(2));
  ASSERT_EQ(specs.size(), 1u);
  ASSERT_EQ(specs[0].devices.size(), 1u);
  EXPECT_EQ(specs[0].devices[0].uuid.str(), "GPU-1");
}

TEST(MpsPlan, HidesGpusThatADaemonDoesNotServe) {
  const auto specs = plan_daemons({mps("nvidia.com/gpu.shared", {5, 6}, 4)}, two_gpu_node(8));
  ASSERT_EQ(specs.size(), 1u);
  EXPECT_EQ(specs[0].visible_devices, (std::vector{DeviceUuid("GPU-5"), DeviceUuid("GPU-6")}));
  EXPECT_EQ(specs[0].memory_limits, (std::vector<MemoryLimit>{{0, 20389}, {1, 20389}}));
  auto models = two_gpu_node(2);
  models.gpus[1].model = "NVIDIA L40S";
  EXPECT_EQ(plan_daemons({mps("nvidia.com/gpu", {0, 1}, 2)}, models)[0].visible_devices.size(), 2u);
}

TEST(MpsPlan, SetsNoMemoryLimitForUnknownMemory) {
  auto snapshot = two_gpu_node(2);
  snapshot.gpus[0].memory = {};
  const auto specs = plan_daemons({mps("nvidia.com/gpu", {0, 1}, 2)}, snapshot);
  EXPECT_EQ(specs[0].memory_limits, (std::vector<MemoryLimit>{{1, 40779}}));
}

TEST(MpsPlan, SetsNoMemoryLimitWhereTheRuleHasNone) {
  auto resource = mps("nvidia.com/gpu", {0, 1}, 2);
  for (auto& device : resource.devices) device.has_memory_limit = device.gpu != 1;
  const auto specs = plan_daemons({resource}, two_gpu_node(2));
  EXPECT_EQ(specs[0].memory_limits, (std::vector<MemoryLimit>{{0, 40779}}));
  EXPECT_EQ(specs[0].thread_percentage, 50u);
}

TEST(MpsPlan, OneShareHasAllOfItsGpu) {
  const auto specs = plan_daemons({mps("nvidia.com/gpu.shared", {0}, 1)}, two_gpu_node(1));
  EXPECT_EQ(specs[0].memory_limits, (std::vector<MemoryLimit>{{0, 81559}}));
  EXPECT_EQ(specs[0].thread_percentage, 100u);
}

TEST(MpsPlan, PlansOneDaemonForUnequalSharesWithTheirOwnLimits) {
  auto large = mps("nvidia.com/gpu.mps-60", {}, 0);
  auto small = mps("nvidia.com/gpu.mps-40-30", {}, 0);
  large.mps_daemon = small.mps_daemon = "nvidia.com/gpu.mps";
  large.devices = {shared_resource(6, 0, config::MpsShare{60, 60})};
  small.devices = {shared_resource(6, 1, config::MpsShare{40, 30})};
  const auto specs = plan_daemons({small, large}, two_gpu_node(8));
  ASSERT_EQ(specs.size(), 1u);
  const auto& spec = specs[0];
  EXPECT_EQ(spec.name, "nvidia.com/gpu.mps");
  EXPECT_EQ(spec.resources,
            (std::vector{ResourceName("nvidia.com/gpu.mps-40-30"), ResourceName("nvidia.com/gpu.mps-60")}));
  EXPECT_EQ(spec.memory_limits, (std::vector<MemoryLimit>{{0, 48935}}));
  EXPECT_EQ(spec.thread_percentage, 60u);

  using Environment = std::map<std::string, std::string>;
  EXPECT_EQ(client_environment(spec, small.devices),
            (Environment{{"CUDA_MPS_PIPE_DIRECTORY", "/mps/nvidia.com/gpu.mps/pipe"},
                         {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30"},
                         {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=32623M"}}));
  EXPECT_EQ(find_daemon_spec(specs, small.name, small.devices[0].id), &spec);
  EXPECT_EQ(find_daemon_spec(specs, ResourceName("nvidia.com/gpu"), small.devices[0].id), nullptr);
  EXPECT_EQ(find_daemon_spec(specs, small.name, DeviceId("GPU-5::0")), nullptr);
}

TEST(MpsPlan, SetsOnlyThePipeDirectoryForEqualShares) {
  const auto resource = mps("nvidia.com/gpu", {0, 1}, 4);
  const auto specs = plan_daemons({resource}, two_gpu_node(2));
  EXPECT_EQ(client_environment(specs[0], std::span(resource.devices).first(1)),
            (std::map<std::string, std::string>{{"CUDA_MPS_PIPE_DIRECTORY", "/mps/nvidia.com/gpu/pipe"}}));
}

TEST(MpsPlan, NumbersSharesAsTheContainerSeesThem) {
  auto resource = mps("nvidia.com/gpu", {}, 0);
  resource.devices = {
      shared_resource(1, 0, config::MpsShare{25, 25}), shared_resource(1, 1, config::MpsShare{25, 25}),
      shared_resource(3, 0, config::MpsShare{25, 25}), shared_resource(2, 0, config::MpsShare{25, 25})};
  const auto specs = plan_daemons({resource}, two_gpu_node(4, 1000));
  const std::vector<Device> held{resource.devices[2], resource.devices[0], resource.devices[1]};
  auto environment = client_environment(specs[0], held);
  EXPECT_EQ(environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=500M,1=250M");
  EXPECT_EQ(environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "50");
}

TEST(MpsPlan, GivesNoDeviceTwoDaemons) {
  const auto spec = [](const std::string& name, const std::vector<std::string>& devices) {
    DaemonSpec made;
    made.name = name;
    for (const auto& uuid : devices) made.devices.push_back({DeviceUuid(uuid), 0, false, {}});
    return made;
  };
  const std::vector<DaemonSpec> held = {spec(claim_daemon_name("uid", 1), {"GPU-1", "GPU-2"})};
  const auto left =
      without_held_devices({spec("nvidia.com/a", {"GPU-0", "GPU-1"}), spec("nvidia.com/b", {"GPU-3"})}, held);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].name, "nvidia.com/b");
  EXPECT_EQ(find_daemon_of(held, DeviceUuid("GPU-2")), &held[0]);
  EXPECT_EQ(find_daemon_of(held, DeviceUuid("GPU-3")), nullptr);
  EXPECT_EQ(held[0].name, "claims/uid-1");
  EXPECT_TRUE(is_claim_daemon(held[0].name));
  EXPECT_FALSE(is_claim_daemon("nvidia.com/claims"));
}

TEST(MpsPlan, PlansADaemonForEachMigDevice) {
  auto snapshot = two_gpu_node(1);
  snapshot.gpus[0].mig_enabled = true;
  auto resource = mps("nvidia.com/mig-3g.40gb", {}, 0);
  for (unsigned i = 0; i < 2; ++i) {
    inventory::MigDevice mig;
    mig.uuid = DeviceUuid("MIG-" + std::to_string(i));
    mig.memory = mebibytes(40000);
    snapshot.gpus[0].mig_devices.push_back(mig);
    for (unsigned n = 0; n < 2; ++n) {
      Device device = shared_resource(0, n);
      device.id = DeviceId(mig.uuid.str() + "::" + std::to_string(n));
      device.mig = i;
      resource.devices.push_back(device);
    }
  }
  const auto specs = plan_daemons({resource}, snapshot);
  ASSERT_EQ(specs.size(), 2u);
  EXPECT_EQ(specs[1].name, "nvidia.com/mig-3g.40gb/MIG-1");
  EXPECT_EQ(specs[1].visible_devices, std::vector{DeviceUuid("MIG-1")});
  EXPECT_EQ(specs[1].memory_limits, (std::vector<MemoryLimit>{{0, 20000}}));
  EXPECT_EQ(specs[1].thread_percentage, 50u);
  EXPECT_EQ(find_daemon_spec(specs, resource.name, DeviceId("MIG-1::1")), &specs[1]);
}

Resource shared_by_rule(const std::string& name, std::vector<std::size_t> gpus, unsigned replicas) {
  auto made = mps(name, std::move(gpus), replicas);
  made.is_mps_by_rule = true;
  return made;
}

TEST(MpsPlan, NamesNamespacesBySharesOfTheGpu) {
  EXPECT_EQ(namespace_name(DeviceId("GPU-5A1b6c0d-2e3f-4a5b-8c9d-0e1f2a3b4c5d::12")), "5a1b6c0d2e3f4a5b_12");
  EXPECT_EQ(namespace_name(DeviceId("GPU-0::3")), "0_3");
}

TEST(MpsPlan, SharesOfARuleHaveNamespaces) {
  const auto specs = plan_daemons({shared_by_rule("nvidia.com/gpu", {0, 1}, 4)}, two_gpu_node(2), true);
  ASSERT_EQ(specs.size(), 1u);
  const auto& spec = specs[0];
  EXPECT_EQ(spec.protocol, kProtocolWithNamespaces);
  EXPECT_TRUE(spec.visible_devices.empty());
  EXPECT_TRUE(spec.memory_limits.empty());
  ASSERT_EQ(spec.namespaces.size(), 8u);
  EXPECT_EQ(spec.namespaces[5].name, "1_1");
  EXPECT_EQ(spec.namespaces[5].device.str(), "GPU-1");
  EXPECT_EQ(spec.namespaces[5].limits.threads, 25u);
  const std::uint64_t whole = two_gpu_node(2).gpus[1].memory.value >> 20;
  EXPECT_EQ(spec.namespaces[5].limits.mebibytes, whole / 4);
  auto unlimited = shared_by_rule("nvidia.com/gpu", {0}, 2);
  for (auto& device : unlimited.devices) device.has_memory_limit = false;
  EXPECT_EQ(plan_daemons({unlimited}, two_gpu_node(1), true)[0].namespaces[0].limits.mebibytes, whole);
  auto sized = shared_by_rule("nvidia.com/gpu", {0}, 2);
  sized.devices[0].share = config::MpsShare{60, 30};
  sized.devices[1].share = config::MpsShare{40, 70};
  EXPECT_EQ(plan_daemons({sized}, two_gpu_node(1), true)[0].namespaces[1].limits,
            (NamespaceLimits{70, whole * 40 / 100}));
}

// NVIDIA's own form stays what it is, and MIG has no protocol 3.
TEST(MpsPlan, OthersKeepProtocol2) {
  const auto protocol = [](const Resource& resource, bool has_namespaces) {
    const auto spec = plan_daemons({resource}, two_gpu_node(2), has_namespaces).at(0);
    EXPECT_EQ(spec.namespaces.empty(), spec.protocol == 2u);
    return spec.protocol;
  };
  EXPECT_EQ(protocol(mps("nvidia.com/gpu", {0, 1}, 4), true), 2u);
  EXPECT_EQ(protocol(shared_by_rule("nvidia.com/gpu", {0, 1}, 4), false), 2u);
  EXPECT_EQ(protocol(shared_by_rule("nvidia.com/gpu", {0, 1}, 4), true), 3u);
  auto both = mps("nvidia.com/gpu.b", {1}, 2);
  both.mps_daemon = "nvidia.com/gpu";
  EXPECT_EQ(plan_daemons({shared_by_rule("nvidia.com/gpu", {0}, 2), both}, two_gpu_node(2), true)[0].protocol,
            2u);
}

TEST(MpsPlan, AContainerGetsTheDirectoryOfItsFirstShare) {
  const auto resource = shared_by_rule("nvidia.com/gpu", {0, 1}, 4);
  const auto spec = plan_daemons({resource}, two_gpu_node(2), true).at(0);
  const std::vector<Device> held{resource.devices[6], resource.devices[2], resource.devices[1]};
  EXPECT_EQ(client_environment(spec, held),
            (std::map<std::string, std::string>{
                {"CUDA_MPS_PIPE_DIRECTORY", "/mps/nvidia.com/gpu/pipe3/gpulet/0_1"}}));
  EXPECT_EQ(client_pipe_directory("/run/mps", spec, held), "/run/mps/nvidia.com/gpu/pipe3/gpulet/0_1");
  EXPECT_EQ(longest_socket_path("/run/mps", spec), "/run/mps/nvidia.com/gpu/pipe3/gpulet/0_0/control");
  EXPECT_EQ(longest_socket_path("/m", spec), "/mps/nvidia.com/gpu/pipe3/gpulet/0_0/control");
  const auto found = find_namespace(spec, std::vector{held[0].id, held[1].id, held[2].id});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "0_1");
  EXPECT_EQ(found->shares, 1u) << "of GPU 1, and two of GPU 0";
  EXPECT_EQ(found->limits.threads, 25u);
  EXPECT_EQ(found->limits.mebibytes, spec.namespaces[0].limits.mebibytes);
  const auto of_one = find_namespace(spec, std::vector{held[1].id, held[2].id});
  EXPECT_EQ(of_one->shares, 2u);
  EXPECT_EQ(of_one->limits, (NamespaceLimits{50, 2 * spec.namespaces[0].limits.mebibytes}));
  EXPECT_FALSE(find_namespace(spec, std::vector{DeviceId("GPU-7::0"), DeviceId("GPU-0")}));
  std::vector<DeviceId> all;
  for (const auto& device : resource.devices) all.push_back(device.id);
  EXPECT_EQ(find_namespace(spec, all)->limits.threads, 100u);
}

TEST(MpsPlan, SaysWhyThereAreNoNamespaces) {
  auto snapshot = two_gpu_node(1);
  config::Config config;
  const auto why = [&](const std::string& problem = {}) {
    return why_no_namespaces(snapshot, config, problem);
  };
  EXPECT_NE(why().find("driverLimits is false"), std::string::npos);
  config.gpulet.fraction.driver_limits = true;
  for (const auto& [version, text] :
       {std::pair{"595.91.07", "the driver is 595.91.07: "}, {"", "not known"}}) {
    snapshot.driver.version = version;
    EXPECT_NE(why().find(text), std::string::npos) << why();
  }
  snapshot.driver.version = "615.71.09";
  EXPECT_EQ(why(), "");
  EXPECT_EQ(why("no help"), "no help");
  config.gpulet.mps.manage = false;
  EXPECT_NE(why().find("gpulet.mps.manage"), std::string::npos);
}

TEST(MpsPlan, SmPartitionsAreOneForEachShare) {
  auto resource = shared_by_rule("nvidia.com/gpu.shared", {0, 1}, 2);
  resource.has_sm_partitions = true;
  auto spec = plan_daemons({resource}, two_gpu_node(8), true).at(0);
  EXPECT_EQ(spec.protocol, 2u) << "namespaces have percentages";
  EXPECT_EQ(spec.thread_percentage, 100u);
  EXPECT_EQ(spec.memory_limits.size(), 2u) << "memory is divided as without";
  ASSERT_EQ(spec.sm_partitions.size(), 4u);
  EXPECT_EQ(spec.sm_partitions[3], (SmPartition{DeviceId("GPU-1::1"), DeviceUuid("GPU-1")}));
  const std::vector<Device> held = {resource.devices[3]};
  EXPECT_FALSE(client_environment(spec, held).contains("CUDA_MPS_SM_PARTITION")) << "not made yet";
  spec.sm_partitions[3].id = "GPU-1/Dw8P";
  EXPECT_EQ(
      client_environment(spec, held),
      (std::map<std::string, std::string>{{"CUDA_MPS_PIPE_DIRECTORY", "/mps/nvidia.com/gpu.shared/pipe"},
                                          {"CUDA_MPS_SM_PARTITION", "GPU-1/Dw8P"}}));
}

}  // namespace
}  // namespace gpulet::mps
