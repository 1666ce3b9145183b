#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "metrics/attribution.h"
#include "metrics/test_pods.h"

namespace gpulet::metrics {
namespace {

const PodName kOther{"kube-system", "other"};

inventory::Snapshot machine() {
  inventory::Snapshot snapshot;
  for (unsigned i = 0; i < 3; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.minor = i + 4;  // not the index
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    snapshot.gpus.push_back(gpu);
  }
  auto& mig = snapshot.gpus[2];
  mig.mig_enabled = true;
  for (const auto& [uuid, gi, ci] :
       {std::tuple{"MIG-a", 3u, 0u}, std::tuple{"MIG-b", 5u, 0u}, std::tuple{"MIG-c", 5u, 1u}}) {
    inventory::MigDevice device;
    device.uuid = DeviceUuid(uuid);
    device.gpu_instance = gi;
    device.compute_instance = ci;
    mig.mig_devices.push_back(device);
  }
  return snapshot;
}

Holder holder(const PodName& pod) { return {pod, {"main"}, {}}; }

ProcessSample process(unsigned pid, std::optional<std::uint64_t> bytes, double sm) {
  return {pid, bytes ? std::optional(Bytes{*bytes}) : std::nullopt, sm};
}

std::string place(const std::string& id) {
  const auto found = resolve_device_id(DeviceId(id), machine());
  return found ? found->device.str() + "|" + found->share : "none";
}

TEST(DeviceIds, ResolvesEveryForm) {
  EXPECT_EQ(place("GPU-1"), "GPU-1|");
  EXPECT_EQ(place("GPU-1::7"), "GPU-1|7");
  EXPECT_EQ(place("MIG-b"), "MIG-b|");
  EXPECT_EQ(place("MIG-b::0"), "MIG-b|0");
  EXPECT_EQ(place("MIG-GPU-2/5/1"), "MIG-c|");
  EXPECT_EQ(place("MIG-GPU-2/5/1::3"), "MIG-c|3");
  EXPECT_EQ(place("nvidia4"), "GPU-0|");
  EXPECT_EQ(place("nvidia4/vgpu2"), "GPU-0|2");
  EXPECT_EQ(place("nvidia6/gi3"), "MIG-a|");
  EXPECT_EQ(place("nvidia6/gi3/vgpu1"), "MIG-a|1");
}

TEST(DeviceIds, UnknownIdsResolveToNothing) {
  for (const std::string& id : std::vector<std::string>{
           "", "GPU-9", "GPU-1::", "MIG-", "MIG-GPU-2/5/7", "MIG-GPU-2/5", "MIG-GPU-2/5/1/1", "MIG-GPU-9/5/1",
           "nvidia", "nvidia0", "nvidia4/gi3", "nvidia6/gi4", "nvidia6/gi", "nvidia6/gi3/x", "nvidia-1", "0",
           "::1", "/vgpu1", "nvidia99999999999999999999"}) {
    EXPECT_EQ(place(id), "none") << id;
  }
}

TEST(Holders, ByDeviceAndPodWithTheirContainersAndShares) {
  const std::vector<ContainerDevices> containers = {
      container(kTrain, "b", {"GPU-0::10", "GPU-0::9", "GPU-1"}),
      container(kServe, "main", {"GPU-0::1", "GPU-7"}), container(kTrain, "a", {"GPU-0::2", "GPU-0::2"}),
      container(kOther, "x", {"GPU-2"})};
  const auto holders = find_holders(containers, machine());
  const ResourceName gpus("nvidia.com/gpu");
  const auto held = [&](const std::string& name, const std::string& share) {
    return HeldShare{gpus, name, share};
  };
  const Holders wanted = {
      {DeviceUuid("GPU-0"),
       {{kTrain, {"a", "b"}, {"2", "9", "10"}, {held("a", "2"), held("b", "10"), held("b", "9")}},
        {kServe, {"main"}, {"1"}, {held("main", "1")}}}},
      {DeviceUuid("GPU-1"), {{kTrain, {"b"}, {}, {held("b", "")}}}},
      {DeviceUuid("GPU-2"), {{kOther, {"x"}, {}, {held("x", "")}}}},
      {DeviceUuid("MIG-a"), {{kOther, {"x"}, {}}}},
      {DeviceUuid("MIG-b"), {{kOther, {"x"}, {}}}},
      {DeviceUuid("MIG-c"), {{kOther, {"x"}, {}}}}};
  EXPECT_EQ(holders, wanted);
}

TEST(Attribution, OnlyHolderGetsEverythingExceptKnownUseOfOthers) {
  const std::vector<Holder> holders = {holder(kTrain)};
  DeviceActivity device{
      Bytes{1000}, 80, true, {process(1, 300, 50), process(2, 200, 10), process(3, 100, 5)}};
  const PodByPid pods = {{1, kTrain}, {3, kOther}};
  const auto shares = attribute(device, holders, pods);
  ASSERT_EQ(shares.pods.size(), 1u);
  EXPECT_EQ(shares.pods[0].memory, Bytes{900});
  EXPECT_DOUBLE_EQ(shares.pods[0].busy, 75);
  EXPECT_EQ(shares.unattributed_memory, Bytes{100});
  EXPECT_DOUBLE_EQ(shares.unattributed_busy, 5);
  EXPECT_EQ(attribute(device, holders, {}).pods[0].memory, Bytes{1000})
      << "without a single process known too";
}

TEST(Attribution, ProcessesOfUnknownPodsAreTheOnlyHolders) {
  const std::vector<PodShare> alone = {{holder(kTrain), {}}},
                              two = {{holder(kTrain), {}}, {holder(kServe), {}}};
  const PodByPid pods = {{1, kOther}};
  EXPECT_EQ(pod_of_process(process(1, 300, 50), alone, pods), kOther);
  EXPECT_EQ(pod_of_process(process(2, 300, 50), alone, pods), kTrain);
  EXPECT_EQ(pod_of_process(process(2, 300, 50), two, pods), std::nullopt);
  EXPECT_EQ(pod_of_process(process(2, 300, 50), {}, pods), std::nullopt);
  auto display = process(2, 300, 50);
  display.is_outside_pods = true;
  EXPECT_EQ(pod_of_process(display, alone, pods), std::nullopt);
}

TEST(Attribution, PodsGetTheirOwnUseAndIdlePodsZero) {
  const std::vector<Holder> holders = {holder({"a", "idle"}), holder(kServe), holder(kTrain)};
  const DeviceActivity device{
      Bytes{1000},
      80,
      true,
      {process(1, 300, 50), process(2, 200, 10), process(3, {}, 5), process(4, 50, 1)}};
  const auto shares = attribute(device, holders, {{1, kTrain}, {2, kServe}, {3, kServe}, {4, kOther}});
  EXPECT_TRUE(shares.is_known);
  EXPECT_EQ(shares.pods[0].memory, Bytes{0});
  EXPECT_DOUBLE_EQ(shares.pods[0].busy, 0);
  EXPECT_EQ(shares.pods[1].memory, Bytes{200});
  EXPECT_DOUBLE_EQ(shares.pods[1].busy, 15);
  EXPECT_EQ(shares.pods[2].memory, Bytes{300});
  EXPECT_DOUBLE_EQ(shares.pods[2].busy, 50);
  EXPECT_EQ(shares.unattributed_memory, Bytes{500});
  EXPECT_DOUBLE_EQ(shares.unattributed_busy, 15);
}

TEST(Attribution, ExcessIsScaledDownToTheDevice) {
  const std::vector<Holder> holders = {holder(kServe), holder(kTrain)};
  const DeviceActivity device{Bytes{100}, 90, true, {process(1, 300, 100), process(2, 100, 80)}};
  const auto shares = attribute(device, holders, {{1, kServe}, {2, kTrain}});
  EXPECT_EQ(shares.pods[0].memory, Bytes{75});
  EXPECT_EQ(shares.pods[1].memory, Bytes{25});
  EXPECT_DOUBLE_EQ(shares.pods[0].busy, 50);
  EXPECT_DOUBLE_EQ(shares.pods[1].busy, 40);
  EXPECT_EQ(shares.unattributed_memory, Bytes{0});
}

TEST(Attribution, UnattributableUseIsReported) {
  const std::vector<Holder> two = {holder(kServe), holder(kTrain)};
  DeviceActivity device{Bytes{100}, 90, true, {process(1, 50, 40)}};
  EXPECT_FALSE(attribute(device, two, {}).is_known);
  EXPECT_TRUE(attribute(device, two, {{1, kOther}}).is_known);
  EXPECT_TRUE(attribute(device, {two.data(), 1}, {}).is_known);
  EXPECT_TRUE(attribute({Bytes{100}, 0, true, {}}, two, {}).is_known) << "nothing runs: each has nothing";
  EXPECT_EQ(attribute(device, {}, {{1, kOther}}).unattributed_memory, Bytes{100});
  EXPECT_TRUE(attribute(device, two, {{1, kTrain}}).is_busy_known);
  device.has_process_times = false;
  EXPECT_TRUE(attribute(device, two, {{1, kTrain}}).is_known);
  EXPECT_FALSE(attribute(device, two, {{1, kTrain}}).is_busy_known);
  EXPECT_TRUE(attribute(device, {two.data(), 1}, {}).is_busy_known);
}

TEST(Attribution, FirstKnownPodOfTheCgroupsCounts) {
  const PodByUid known = {{"u1", kTrain}, {"u2", kServe}};
  const std::vector<std::string> nested = {"u0", "u2", "u1"};
  EXPECT_EQ(find_pod(nested, known), kServe);
  EXPECT_EQ(find_pod({nested.data(), 1}, known), std::nullopt);
}

struct World {
  DeviceActivity device;
  std::vector<Holder> holders;
  PodByPid pods;
};

World any_world() {
  World world;
  const auto bytes = [] {
    return *rc::gen::inRange(0, 4) == 0 ? *rc::gen::arbitrary<std::uint64_t>()
                                        : *rc::gen::inRange<std::uint64_t>(0, 1000);
  };
  world.device.memory = Bytes{bytes()};
  world.device.busy = *rc::gen::inRange(0, 101);
  for (int i = *rc::gen::inRange(0, 6); i > 0; --i)
    world.holders.insert(world.holders.begin(), holder({"n", "p" + std::to_string(i)}));
  for (unsigned pid = *rc::gen::inRange(0u, 12u); pid > 0; --pid) {
    world.device.processes.push_back(process(pid, bytes(), *rc::gen::inRange(0, 101)));
    if (*rc::gen::inRange(0, 3) == 0) world.device.processes.back().memory.reset();
    // Also Pods that are not holders, and processes without a Pod.
    const int pod = *rc::gen::inRange(0, 9);
    if (pod > 0) world.pods[pid] = {"n", "p" + std::to_string(pod)};
  }
  return world;
}

RC_GTEST_PROP(AttributionProperties, TheSumIsTheDevices, ()) {
  const auto world = any_world();
  const auto shares = attribute(world.device, world.holders, world.pods);
  std::uint64_t memory = shares.unattributed_memory.value;
  double busy = shares.unattributed_busy;
  for (const auto& pod : shares.pods) {
    RC_ASSERT(pod.memory <= world.device.memory);
    RC_ASSERT(pod.busy >= 0);
    memory += pod.memory.value;
    busy += pod.busy;
  }
  RC_ASSERT(shares.unattributed_busy >= 0);
  RC_ASSERT(memory == world.device.memory.value);
  RC_ASSERT(std::abs(busy - world.device.busy) < 1e-9);
}

RC_GTEST_PROP(AttributionProperties, EachHolderIsThereOnceAndTheIdleHaveNothing, ()) {
  const auto world = any_world();
  const auto shares = attribute(world.device, world.holders, world.pods);
  RC_ASSERT(shares.pods.size() == world.holders.size());
  for (std::size_t i = 0; i < shares.pods.size(); ++i) {
    RC_ASSERT(shares.pods[i].holder == world.holders[i]);
    const bool idle = std::none_of(world.device.processes.begin(), world.device.processes.end(),
                                   [&](const ProcessSample& one) {
                                     const auto pod = world.pods.find(one.pid);
                                     return pod != world.pods.end() && pod->second == world.holders[i].pod;
                                   });
    if (idle && world.holders.size() > 1) {
      RC_ASSERT(shares.pods[i].memory.value == 0u);
      RC_ASSERT(shares.pods[i].busy == 0.0);
    }
  }
}

RC_GTEST_PROP(AttributionProperties, TheOrderOfProcessesDoesNotMatter, ()) {
  auto world = any_world();
  const auto before = attribute(world.device, world.holders, world.pods);
  std::reverse(world.device.processes.begin(), world.device.processes.end());
  const auto after = attribute(world.device, world.holders, world.pods);
  RC_ASSERT(before.unattributed_memory == after.unattributed_memory);
  for (std::size_t i = 0; i < before.pods.size(); ++i)
    RC_ASSERT(before.pods[i].memory == after.pods[i].memory);
}

}  // namespace

namespace {

const std::string kHolderUid = "0b1d2a3c-4d5e-4f60-8172-93a4b5c6d7e8";

class ProcessesTest : public testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/gpulet-metrics-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void process(unsigned pid, const std::string& cgroup) {
    std::filesystem::create_directories(directory_ + "/proc/" + std::to_string(pid));
    std::ofstream(directory_ + "/proc/" + std::to_string(pid) + "/cgroup") << cgroup;
  }
  std::string directory_;
};

TEST_F(ProcessesTest, MapsProcessesToPodsByCgroup) {
  std::filesystem::create_directories(directory_ + "/logs/default_train_" + kHolderUid);
  std::filesystem::create_directories(directory_ + "/logs/something-else");
  const auto known = read_pod_uids(directory_ + "/logs");
  ASSERT_TRUE(known) << known.error().full_message();
  const PodName train{"default", "train"};
  EXPECT_EQ(*known, (PodByUid{{kHolderUid, train}}));
  process(1, "0::/kubepods/pod" + kHolderUid + "/c\n");
  process(2, "0::/user.slice\n");
  process(3, "0::/kubepods/pod" + kHolderUid + "/d\n");
  GpuSample gpu;
  gpu.processes = {{1, {}, 0}, {2, {}, 0}, {9, {}, 0}};
  gpu.instances.resize(1);
  gpu.instances[0].devices = {{DeviceUuid("MIG-a"), 0, {{3, {}, 0}}}};
  const auto cgroups = read_cgroups(gpu, directory_ + "/proc");
  EXPECT_EQ(cgroups, (CgroupsByPid{{1, {kHolderUid}}, {2, {}}, {3, {kHolderUid}}}));
  mark_processes_outside_pods(cgroups, gpu);
  EXPECT_FALSE(gpu.processes[0].is_outside_pods);
  EXPECT_TRUE(gpu.processes[1].is_outside_pods);
  EXPECT_FALSE(gpu.processes[2].is_outside_pods) << "it has ended";
  // In the reader's own cgroup: perhaps a process of its container with the same pid.
  std::filesystem::create_directories(directory_ + "/proc/self");
  std::ofstream(directory_ + "/proc/self/cgroup") << "0::/user.slice\n";
  EXPECT_FALSE(read_cgroups(gpu, directory_ + "/proc").contains(2));
  std::ofstream(directory_ + "/proc/3/comm") << "pt_main_thread\n";
  read_process_names(gpu, directory_ + "/proc");
  EXPECT_EQ(gpu.instances[0].devices[0].processes[0].name, "pt_main_thread");
  EXPECT_EQ(gpu.processes[0].name, "");
  PodByPid pods;
  match_processes_to_pods(cgroups, {}, pods);
  EXPECT_TRUE(pods.empty());
  match_processes_to_pods(cgroups, *known, pods);
  EXPECT_EQ(pods, (PodByPid{{1, train}, {3, train}}));
}

TEST_F(ProcessesTest, MissingDirectoryIsReported) {
  const auto missing = read_pod_uids(directory_ + "/nothing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), Code::kNotFound);
  EXPECT_EQ(missing.error().subject(), directory_ + "/nothing");
}

}  // namespace
}  // namespace gpulet::metrics
