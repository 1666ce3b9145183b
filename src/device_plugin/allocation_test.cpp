#include <gtest/gtest.h>

#include "device_plugin/allocation.h"
#include "device_plugin/test_offers.h"
#include "proto/deviceplugin_v1beta1.pb.h"

namespace gpulet::device_plugin {
namespace {

using config::DeviceIdStrategy;
using config::DeviceListStrategy;
using offers::gpu_id;
using offers::gpu_uuid;
using offers::share_id;
using Envs = std::map<std::string, std::string>;

ContainerAllocation get(const Offer& offer, const std::vector<DeviceId>& ids) {
  auto result = allocate(offer, ids);
  EXPECT_TRUE(result) << result.error().full_message();
  return result ? *result : ContainerAllocation{};
}

TEST(Allocate, EnvvarKeepsTheOrderOfTheRequest) {
  const auto got = get(offers::make_offer(), {gpu_id(5), gpu_id(2), gpu_id(7)});
  EXPECT_EQ(got.envs,
            (Envs{{"NVIDIA_VISIBLE_DEVICES", gpu_uuid(5) + "," + gpu_uuid(2) + "," + gpu_uuid(7)}}));
  EXPECT_TRUE(got.mounts.empty());
  EXPECT_TRUE(got.devices.empty());
  EXPECT_TRUE(got.annotations.empty());
  EXPECT_TRUE(got.cdi_devices.empty());
}

TEST(Allocate, IndexStrategyNumbersGpusAndMigDevices) {
  Offer offer = offers::make_offer();
  offer.rules.ids = DeviceIdStrategy::kIndex;
  offer.access[3].index = "3:1";
  EXPECT_EQ(get(offer, {gpu_id(3), gpu_id(0)}).envs.at("NVIDIA_VISIBLE_DEVICES"), "3:1,0");
}

TEST(Allocate, SharesOfOneGpuListItOnce) {
  const Offer offer = offers::make_offer("nvidia.com/gpu", 4, 3);
  const auto got = get(offer, {share_id(2, 1), share_id(0, 0), share_id(2, 0)});
  EXPECT_EQ(got.envs.at("NVIDIA_VISIBLE_DEVICES"), gpu_uuid(2) + "," + gpu_uuid(0));
}

TEST(Allocate, VolumeMountsWinOverEnvvar) {
  Offer offer = offers::make_offer();
  offer.rules.strategies = {DeviceListStrategy::kEnvvar, DeviceListStrategy::kVolumeMounts};
  offer.rules.imex_channels = {0};
  const auto got = get(offer, {gpu_id(1), gpu_id(0)});
  EXPECT_EQ(got.envs, (Envs{{"NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices"},
                            {"NVIDIA_IMEX_CHANNELS", "0"}}));
  const std::string root = "/var/run/nvidia-container-devices/";
  EXPECT_EQ(got.mounts, (std::vector<Mount>{{"/dev/null", root + gpu_uuid(1), false},
                                            {"/dev/null", root + gpu_uuid(0), false},
                                            {"/dev/null", root + "imex/0", false}}));
}

TEST(Allocate, CdiCriNamesDevicesThenClasses) {
  Offer offer = offers::make_offer();
  offer.rules.strategies = {DeviceListStrategy::kCdiCri};
  offer.rules.imex_channels = {0};
  offer.rules.gds = offer.rules.mofed = offer.rules.gdrcopy = true;
  offer.rules.gds_cdi = offer.rules.mofed_cdi = offer.rules.gdrcopy_cdi = true;
  offer.rules.pass_device_specs = true;  // no effect if every strategy is CDI
  const auto got = get(offer, {gpu_id(4)});
  const std::string vendor = "k8s.device-plugin.nvidia.com/";
  EXPECT_EQ(got.cdi_devices,
            (std::vector<std::string>{vendor + "gpu=" + gpu_uuid(4), vendor + "imex-channel=0",
                                      vendor + "gdrcopy=all", vendor + "gds=all", vendor + "mofed=all"}));
  EXPECT_EQ(got.envs,
            (Envs{{"NVIDIA_GDS", "enabled"}, {"NVIDIA_MOFED", "enabled"}, {"NVIDIA_GDRCOPY", "enabled"}}));
  EXPECT_TRUE(got.devices.empty());
  EXPECT_TRUE(got.mounts.empty());
}

TEST(Allocate, CdiAnnotationHasAUniqueAndStableKey) {
  Offer offer = offers::make_offer();
  offer.rules.strategies = {DeviceListStrategy::kCdiAnnotations};
  const auto first = get(offer, {gpu_id(1), gpu_id(2)}).annotations;
  ASSERT_EQ(first.size(), 1u);
  const auto& [key, value] = *first.begin();
  EXPECT_EQ(key.rfind("cdi.k8s.io/nvidia-device-plugin_", 0), 0u);
  EXPECT_LE(key.size() - std::string("cdi.k8s.io/").size(), 63u);
  EXPECT_EQ(value, "k8s.device-plugin.nvidia.com/gpu=" + gpu_uuid(1) +
                       ",k8s.device-plugin.nvidia.com/gpu=" + gpu_uuid(2));
  EXPECT_EQ(get(offer, {gpu_id(1), gpu_id(2)}).annotations, first);
  EXPECT_NE(get(offer, {gpu_id(1)}).annotations.begin()->first, key);
  offer.resource.name = ResourceName("nvidia.com/other");
  EXPECT_NE(get(offer, {gpu_id(1), gpu_id(2)}).annotations.begin()->first, key);
}

TEST(Allocate, DeviceSpecsAreUniqueBelowTheDevRoot) {
  Offer offer = offers::make_offer("nvidia.com/mig-1g.10gb", 2);
  offer.rules.pass_device_specs = true;
  offer.rules.dev_root = "/run/nvidia/driver";
  offer.rules.imex_channels = {0};
  offer.access[0].device_nodes = {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12",
                                  "/dev/nvidia-caps/nvidia-cap13"};
  offer.access[1].device_nodes = {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21",
                                  "/dev/nvidia-caps/nvidia-cap22"};
  std::vector<std::string> containers;
  for (const auto& device : get(offer, {gpu_id(0), gpu_id(1)}).devices) {
    EXPECT_EQ(device.host_path, "/run/nvidia/driver" + device.container_path);
    EXPECT_EQ(device.permissions, "rw");
    containers.push_back(device.container_path);
  }
  EXPECT_EQ(containers,
            (std::vector<std::string>{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0",
                                      "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13",
                                      "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22",
                                      "/dev/nvidia-caps-imex-channels/channel0"}));
  offer.rules.dev_root = "/";
  EXPECT_EQ(get(offer, {gpu_id(0)}).devices[0].host_path, "/dev/nvidiactl");
}

TEST(Allocate, MpsSetsPipeDirectoryAndSharedMemory) {
  Offer offer = offers::make_offer("nvidia.com/gpu", 2, 4);
  offer.rules.mps_root = "/run/nvidia/mps";
  offer.resource.sharing = config::SharingStrategy::kMps;
  offer.resource.mps_daemon = "nvidia.com/gpu";
  inventory::Snapshot snapshot;
  for (unsigned i = 0; i < 2; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid(offers::gpu_uuid(i));
    gpu.memory = Bytes(std::uint64_t{32} << 30);
    snapshot.gpus.push_back(gpu);
  }
  offer.daemons = mps::plan_daemons({offer.resource}, snapshot);
  const auto got = get(offer, {share_id(1, 3)});
  EXPECT_EQ(got.envs.at("CUDA_MPS_PIPE_DIRECTORY"), "/mps/nvidia.com/gpu/pipe");
  EXPECT_EQ(got.mounts,
            (std::vector<Mount>{{"/run/nvidia/mps/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe", false},
                                {"/run/nvidia/mps/shm", "/dev/shm", false}}));
  offer.resource.is_mps_by_rule = true;
  offer.daemons = mps::plan_daemons({offer.resource}, snapshot, true);
  const auto pipes = "/nvidia.com/gpu/pipe3/gpulet/" + mps::namespace_name(share_id(1, 3));
  const auto mounts = get(offer, {share_id(1, 3)}).mounts;
  ASSERT_EQ(mounts.size(), 2u);
  EXPECT_EQ(mounts[0], (Mount{"/run/nvidia/mps" + pipes, "/mps" + pipes, true})) << "only to be connected to";
}

struct Refused {
  std::string what;
  Offer offer;
  std::vector<DeviceId> ids;
  Code code;
  std::string message;
};

TEST(Allocate, RefusesInvalidRequestsWithOneLine) {
  Offer strict = offers::make_offer("nvidia.com/gpu", 2, 2);
  strict.resource.fail_requests_greater_than_one = true;
  const std::string prefix = "invalid allocation request for \"nvidia.com/gpu\": ";
  Offer moved = offers::make_offer();
  moved.elsewhere = {{DeviceUuid("GPU-x"), "is offered by claims"}};
  Offer together = offers::make_offer("nvidia.com/gpu", 3, 4), apart = together;
  together.resource.shares_on = placement::SharesOn::kOneGpu;
  apart.resource.shares_on = placement::SharesOn::kDifferentGpus;
  const std::vector<Refused> cases{
      {"two GPUs",
       together,
       {share_id(0, 0), share_id(1, 0), share_id(0, 1)},
       Code::kFailedPrecondition,
       prefix +
           "3 shares of 2 GPUs; expected one GPU (sharesOn: oneGPU in gpulet.partition); nothing else is "
           "free"},
      {"one GPU",
       apart,
       {share_id(1, 0), share_id(1, 3)},
       Code::kFailedPrecondition,
       prefix + "2 shares of one GPU; expected different GPUs (sharesOn: differentGPUs in gpulet.partition); "
                "nothing else is free"},
      {"of claims",
       moved,
       {DeviceId("GPU-x")},
       Code::kFailedPrecondition,
       prefix + "GPU-x is offered by claims"},
      {"a share of a GPU of claims",
       moved,
       {DeviceId("GPU-x::3")},
       Code::kFailedPrecondition,
       prefix + "GPU-x::3 is offered by claims"},
      {"unknown",
       offers::make_offer(),
       {gpu_id(0), DeviceId("GPU-x")},
       Code::kInvalidArgument,
       prefix + "unknown device: GPU-x"},
      {"doubled",
       offers::make_offer(),
       {gpu_id(0), gpu_id(0)},
       Code::kInvalidArgument,
       prefix + "device requested twice: " + gpu_uuid(0)},
      {"none", offers::make_offer(), {}, Code::kInvalidArgument, prefix + "no device requested"},
      {"two shares",
       strict,
       {share_id(0, 0), share_id(1, 0)},
       Code::kInvalidArgument,
       prefix + "invalid request: maximum request size for shared resources is 1; found 2"},
      {"unhealthy",
       offers::with_unhealthy(offers::make_offer(), 3, "XID 79: GPU has fallen off the bus"),
       {gpu_id(3)},
       Code::kFailedPrecondition,
       prefix + "device is unhealthy: " + gpu_uuid(3) + " (XID 79: GPU has fallen off the bus)"},
  };
  for (const auto& refused : cases) {
    const auto result = allocate(refused.offer, refused.ids);
    ASSERT_FALSE(result) << refused.what;
    EXPECT_EQ(result.error().code(), refused.code) << refused.what;
    EXPECT_EQ(result.error().full_message(), refused.message);
  }
  EXPECT_TRUE(allocate(strict, std::vector{share_id(0, 1)}));
  EXPECT_TRUE(allocate(together, std::vector{share_id(2, 0), share_id(2, 3)}));
  EXPECT_TRUE(allocate(apart, std::vector{share_id(2, 0), share_id(0, 3)}));
}

TEST(Preferred, UsesTheTablesAndNamesTheResourceInErrors) {
  const Offer offer = offers::make_offer();
  const auto choice = preferred_allocation(offer, std::vector{gpu_id(0), gpu_id(1), gpu_id(2), gpu_id(3)},
                                           std::vector{gpu_id(0)}, 2);
  ASSERT_TRUE(choice) << choice.error().full_message();
  EXPECT_EQ(choice->devices, (std::vector{gpu_id(0), gpu_id(3)}));  // two NVLinks; 1 and 2 keep theirs
  const auto refused = preferred_allocation(offer, std::vector{gpu_id(0)}, {}, 2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.error().full_message().find("\"nvidia.com/gpu\""), std::string::npos);
}

TEST(Preferred, FollowsTheNewestLoads) {
  Offer offer = offers::make_offer("nvidia.com/gpu", 2, 4);
  const auto board = std::make_shared<placement::LoadBoard>();
  offer.loads = board;
  const std::vector available = {share_id(0, 0), share_id(1, 0)};
  const auto first = [&] { return preferred_allocation(offer, available, {}, 1)->devices.at(0); };
  EXPECT_EQ(first(), share_id(0, 0));
  board->set_loads({{DeviceUuid(offers::gpu_uuid(0)), placement::make_gpu_load(100, 0, false)}});
  EXPECT_EQ(first(), share_id(1, 0));
  board->set_loads({{DeviceUuid("GPU-gone"), placement::make_gpu_load(100, 0, false)}});
  EXPECT_EQ(first(), share_id(0, 0));
}

TEST(Answers, ListHasNumaNodeZeroAndOmitsUnknownNodes) {
  Offer offer = offers::with_unhealthy(offers::make_offer(), 1);
  offer.resource.devices[2].numa_node.reset();
  const auto list = make_device_list(offer);
  ASSERT_EQ(list.devices_size(), 8);
  EXPECT_EQ(list.devices(0).health(), "Healthy");
  ASSERT_TRUE(list.devices(0).has_topology());
  ASSERT_EQ(list.devices(0).topology().nodes_size(), 1);
  EXPECT_EQ(list.devices(0).topology().nodes(0).id(), 0);
  EXPECT_EQ(list.devices(1).health(), "Unhealthy");
  EXPECT_FALSE(list.devices(2).has_topology());
  EXPECT_EQ(list.devices(4).topology().nodes(0).id(), 1);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(list.devices(i).id(), gpu_uuid(static_cast<std::size_t>(i)));
}

TEST(Answers, OneDeviceForTwoContainersIsRefused) {
  v1beta1::AllocateRequest request;
  request.add_container_requests()->add_devices_ids(gpu_uuid(0));
  request.add_container_requests()->add_devices_ids(gpu_uuid(1));
  v1beta1::AllocateResponse response;
  ASSERT_TRUE(fill_response(offers::make_offer(), request, response));
  EXPECT_EQ(response.container_responses_size(), 2);
  request.add_container_requests()->add_devices_ids(gpu_uuid(1));
  const auto refused = fill_response(offers::make_offer(), request, response);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
}

TEST(Answers, NoContainersGiveAnEmptyResponseAndTooManyAreRefused) {
  v1beta1::AllocateRequest request;
  v1beta1::AllocateResponse response;
  EXPECT_TRUE(fill_response(offers::make_offer(), request, response));
  EXPECT_EQ(response.container_responses_size(), 0);
  v1beta1::PreferredAllocationRequest many;
  for (int i = 0; i <= kMaxContainers; ++i) many.add_container_requests();
  v1beta1::PreferredAllocationResponse preferred_response;
  EXPECT_FALSE(fill_response(offers::make_offer(), many, preferred_response));
}

TEST(Answers, NonPositiveSizesAreRefused) {
  for (const int size : {0, -1, std::numeric_limits<int>::min()}) {
    v1beta1::PreferredAllocationRequest request;
    auto& container = *request.add_container_requests();
    container.add_available_deviceids(gpu_uuid(0));
    container.set_allocation_size(size);
    v1beta1::PreferredAllocationResponse response;
    const auto refused = fill_response(offers::make_offer(), request, response);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gpulet::device_plugin
