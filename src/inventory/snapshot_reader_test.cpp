#include "inventory/snapshot_reader.h"

#include <gtest/gtest.h>

#include <map>

#include "nvml/session.h"
#include "nvml/test_sim_root.h"
#include "sim/machine/machine.h"
#include "sim/state/mig.h"

namespace gpulet::inventory {
namespace {

using nvml::SimRoot;

struct FakeDriver {
  explicit FakeDriver(const std::string& machine) : root(**sim::load_machine(machine)) { open_session(); }
  explicit FakeDriver(std::uint32_t gpus) : root(gpus) { open_session(); }
  void open_session() {
    auto opened = nvml::Session::open_session(root.sim_root());
    EXPECT_TRUE(opened) << opened.error().full_message();
    session = *opened;
  }
  Gpu read_first_gpu(unsigned index) { return read_gpu(*session, index, {root.sim_root()}); }

  SimRoot root;
  std::shared_ptr<const nvml::Session> session;
};

TEST(SnapshotReader, ReadsAnH100) {
  FakeDriver machine("hgx-h100");
  const auto found = read_driver_summary(*machine.session);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->gpu_count, 8u);
  EXPECT_FALSE(found->driver.version.empty());
  EXPECT_GE(found->driver.cuda_version, 12000u);

  const Gpu gpu = machine.read_first_gpu(3);
  ASSERT_FALSE(gpu.unreadable) << gpu.unreadable->full_message();
  EXPECT_EQ(gpu.index, 3u);
  EXPECT_EQ(gpu.model, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(gpu.brand, "NVIDIA");
  EXPECT_EQ(gpu.architecture, "hopper");
  EXPECT_EQ(gpu.compute_major, 9u);
  EXPECT_EQ(gpu.compute_minor, 0u);
  EXPECT_EQ(gpu.minor, 3u);
  EXPECT_GT(gpu.memory.mebibytes(), 80'000u);
  EXPECT_EQ(gpu.pci_device_id, 0x233010deu);
  EXPECT_EQ(gpu.memory_bandwidth, 3'352'320'000'000u) << "5120 bits at twice 2619 MHz";
  {
    const auto state = machine.root.edit_machine();
    EXPECT_EQ(gpu.uuid.str(), state->gpus[3].uuid);
    EXPECT_EQ(gpu.serial, state->gpus[3].serial);
    EXPECT_EQ(gpu.pci,
              (PciAddress{state->gpus[3].pci.domain, state->gpus[3].pci.bus, state->gpus[3].pci.device, 0}));
  }
  EXPECT_TRUE(gpu.mig_capable);
  EXPECT_FALSE(gpu.mig_enabled);
  EXPECT_FALSE(gpu.mig_pending);
  ASSERT_EQ(gpu.nvlinks.size(), 18u);
  for (const auto& link : gpu.nvlinks) EXPECT_EQ(link.kind, NvLinkRemote::kSwitch);
}

TEST(SnapshotReader, DisplayIsAScreenOrAServer) {
  FakeDriver machine("hgx-h100");
  EXPECT_EQ(machine.read_first_gpu(0).display, false);
  const auto set_display = [&](std::uint16_t connected, std::uint16_t active, const char* driver) {
    const auto state = machine.root.edit_machine();
    sim::set_text(state->driver.version, driver);
    state->gpus[0].display_connected = connected;
    state->gpus[0].display_active = active;
  };
  struct Case {
    const char* driver;
    std::uint16_t connected, active;
    bool display;
  };
  for (const auto& one : {Case{"570.124.06", 1, 0, true}, Case{"570.124.06", 0, 1, true},
                          Case{"570.124.06", 0, 0, false}, Case{"580.159.04", 1, 0, false},
                          Case{"580.159.04", 0, 1, true}}) {
    set_display(one.connected, one.active, one.driver);
    const auto gpu = machine.read_first_gpu(0);
    EXPECT_EQ(gpu.display, one.display) << one.driver << one.connected << one.active;
    EXPECT_FALSE(gpu.not_read.contains(GpuValue::kDisplay));
  }
  // A value that does not come back stays: an excluded GPU is not offered by a failed call.
  Snapshot previous;
  previous.gpus = {machine.read_first_gpu(0)};
  {
    const auto state = machine.root.edit_machine();
    sim::set_text(state->answers[0].call, "nvmlDeviceGetDisplayActive");
    state->answers[0].gpu = sim::kMaxGpus;
    state->answers[0].nvml_return = 999;
    state->answer_count = 1;
  }
  std::vector<Gpu> read{machine.read_first_gpu(0)};
  EXPECT_EQ(read[0].display, std::nullopt);
  EXPECT_TRUE(read[0].not_read.contains(GpuValue::kDisplay));
  EXPECT_FALSE(read[0].unreadable);
  fill_from_previous(read, previous);
  EXPECT_EQ(read[0].display, true);
}

TEST(SnapshotReader, DirectLinksHaveTheRemoteGpu) {
  FakeDriver machine("dgx1-v100");
  std::map<PciAddress, unsigned> links;
  for (const auto& link : machine.read_first_gpu(0).nvlinks) {
    EXPECT_EQ(link.kind, NvLinkRemote::kGpu);
    ++links[link.remote];
  }
  ASSERT_EQ(links.size(), 4u) << "a corner of the cube mesh";
  unsigned total = 0;
  for (unsigned i = 1; i < 8; ++i) total += links[machine.read_first_gpu(i).pci];
  EXPECT_EQ(total, 6u);
  EXPECT_FALSE(machine.read_first_gpu(0).mig_capable);
}

TEST(SnapshotReader, NumaNodeZeroIsValidAndMinusOneIsNone) {
  FakeDriver machine(3u);
  const char* contents[] = {"0\n", "-1\n", "1\n"};
  for (unsigned i = 0; i < 3; ++i) {
    machine.root.add_root_file(
        "sys/bus/pci/devices/" + machine.read_first_gpu(i).pci.sysfs_text() + "/numa_node", contents[i]);
  }
  EXPECT_EQ(machine.read_first_gpu(0).numa_node, std::optional(0));
  EXPECT_EQ(machine.read_first_gpu(1).numa_node, std::nullopt);
  EXPECT_EQ(machine.read_first_gpu(2).numa_node, std::optional(1));
  // The first root that has the device is used.
  EXPECT_EQ(read_gpu(*machine.session, 2, {"/nowhere", machine.root.sim_root()}).numa_node, std::optional(1));
}

TEST(SnapshotReader, PciClassIsReadFromSysfs) {
  FakeDriver machine(2u);
  machine.root.add_root_file("sys/bus/pci/devices/" + machine.read_first_gpu(0).pci.sysfs_text() + "/class",
                             "0x030200\n");
  EXPECT_EQ(machine.read_first_gpu(0).pci_class, 0x030200u);
  EXPECT_EQ(machine.read_first_gpu(1).pci_class, 0u);
  EXPECT_FALSE(machine.read_first_gpu(0).vgpu);
}

// nvmlGpuVirtualizationMode_t
constexpr std::uint8_t kBareMetal = 0, kPassthrough = 1, kVgpu = 2, kHostVgpu = 3;

TEST(SnapshotReader, NvmlKnowsThatAGpuIsNotVirtual) {
  FakeDriver machine(1u);
  for (const auto mode : {kBareMetal, kPassthrough, kHostVgpu}) {
    machine.root.edit_machine()->driver.virtualization = mode;
    EXPECT_TRUE(machine.read_first_gpu(0).vgpu_known) << int{mode};
  }
}

TEST(SnapshotReader, AVirtualGpuIsKnownFromAWholeConfigurationSpace) {
  FakeDriver machine(2u);
  machine.root.edit_machine()->driver.virtualization = kVgpu;
  EXPECT_FALSE(machine.read_first_gpu(0).vgpu_known);
  machine.root.add_root_file("sys/bus/pci/devices/" + machine.read_first_gpu(0).pci.sysfs_text() + "/config",
                             std::string(256, '\0'));
  EXPECT_TRUE(machine.read_first_gpu(0).vgpu_known);
  EXPECT_FALSE(machine.read_first_gpu(0).vgpu);
  EXPECT_FALSE(machine.read_first_gpu(1).vgpu_known);
}

TEST(SnapshotReader, FabricOnlyAfterRegistration) {
  FakeDriver machine("gb200");
  const auto fabric = machine.read_first_gpu(0).fabric;
  ASSERT_TRUE(fabric);
  EXPECT_EQ(fabric->cluster_uuid.size(), 36u);
  EXPECT_EQ(fabric, machine.read_first_gpu(1).fabric);
  machine.root.edit_machine()->gpus[0].fabric.state = 2;  // in progress
  EXPECT_FALSE(machine.read_first_gpu(0).fabric);
  machine.root.edit_machine()->gpus[1].fabric.status = 999;
  EXPECT_FALSE(machine.read_first_gpu(1).fabric);
  {
    auto state = machine.root.edit_machine();
    std::fill(std::begin(state->gpus[2].fabric.cluster_uuid), std::end(state->gpus[2].fabric.cluster_uuid),
              0);
  }
  EXPECT_FALSE(machine.read_first_gpu(2).fabric);
}

// A 2g.20gb, of which one slice has a compute instance, and a whole 1g.10gb+me.
void mig_gpu(sim::Gpu& gpu) {
  ASSERT_EQ(sim::set_mig_mode(gpu, true), sim::MigOutcome::kOk);
  sim::GpuInstance* instance = nullptr;
  sim::ComputeInstance* compute = nullptr;
  ASSERT_EQ(sim::create_gpu_instance(gpu, 14, 0, &instance), sim::MigOutcome::kOk);
  const auto& shared = gpu.mig.profiles[instance->profile];
  ASSERT_EQ(sim::create_compute_instance(gpu, *instance, shared.compute_profiles[0].id, {}, &compute),
            sim::MigOutcome::kOk);
  ASSERT_EQ(sim::create_gpu_instance(gpu, 20, 6, &instance), sim::MigOutcome::kOk);
  const auto& whole = gpu.mig.profiles[instance->profile];
  ASSERT_EQ(sim::create_compute_instance(gpu, *instance, whole.compute_profiles[0].id, {}, &compute),
            sim::MigOutcome::kOk);
}

TEST(SnapshotReader, MigDevicesHaveNvidiasNames) {
  FakeDriver machine(1u);
  {
    auto state = machine.root.edit_machine();
    mig_gpu(state->gpus[0]);
  }
  const Gpu gpu = machine.read_first_gpu(0);
  ASSERT_FALSE(gpu.unreadable) << gpu.unreadable->full_message();
  EXPECT_TRUE(gpu.mig_enabled);
  ASSERT_EQ(gpu.mig_devices.size(), 2u);
  const auto& shared = gpu.mig_devices[0];
  EXPECT_EQ(shared.profile, "1c.2g.20gb");
  EXPECT_EQ(shared.index, 0u);
  EXPECT_EQ(shared.gpu_slices, 2u);
  EXPECT_EQ(shared.compute_slices, 1u);
  EXPECT_EQ(shared.gpu_instance_profile, 14u);
  EXPECT_EQ(shared.placement_start, 0u);
  EXPECT_EQ(shared.placement_size, 2u);
  EXPECT_EQ(shared.memory.mebibytes(), 19968u);
  const auto& media = gpu.mig_devices[1];
  EXPECT_EQ(media.profile, "1g.10gb+me");
  EXPECT_EQ(media.gpu_instance_profile, 20u);
  EXPECT_EQ(media.placement_start, 6u);
  EXPECT_EQ(media.ofas, 1u);
  EXPECT_EQ(media.uuid.str().substr(0, 4), "MIG-");
  EXPECT_NE(media.gpu_instance, shared.gpu_instance);
}

TEST(SnapshotReader, MigLayoutTextMatchesTheSnapshot) {
  FakeDriver machine(2u);
  const std::string off = mig_layout_text(machine.read_first_gpu(0));
  EXPECT_EQ(*mig_layout_text(*machine.session, 0), off);
  {
    auto state = machine.root.edit_machine();
    mig_gpu(state->gpus[0]);
  }
  const std::string on = mig_layout_text(machine.read_first_gpu(0));
  EXPECT_NE(on, off);
  EXPECT_EQ(*mig_layout_text(*machine.session, 0), on);
  EXPECT_EQ(*mig_layout_text(*machine.session, 1), off);
}

TEST(SnapshotReader, LostGpuIsUnreadableAndOthersAreComplete) {
  FakeDriver machine(3u);
  machine.root.edit_machine()->gpus[1].faults.lost = 1;
  const Gpu lost = machine.read_first_gpu(1);
  ASSERT_TRUE(lost.unreadable);
  EXPECT_EQ(lost.unreadable->code(), Code::kDeviceLost);
  EXPECT_EQ(lost.index, 1u);
  EXPECT_FALSE(machine.read_first_gpu(0).unreadable);
  EXPECT_FALSE(machine.read_first_gpu(2).unreadable);
}

TEST(SnapshotReader, DistancesAreReadOnceForReadableGpus) {
  FakeDriver machine(4u);
  std::vector<Gpu> gpus;
  for (unsigned i = 0; i < 4; ++i) gpus.push_back(machine.read_first_gpu(i));
  DistanceCache distances;
  EXPECT_EQ(distances.missing_from(gpus, 0), (std::vector<std::size_t>{1, 2, 3}));
  for (std::size_t from = 0; from < 4; ++from) {
    std::vector<unsigned> to;
    for (const auto place : distances.missing_from(gpus, from)) to.push_back(gpus[place].index);
    const auto row = read_distances(*machine.session, static_cast<unsigned>(from), to);
    for (std::size_t i = 0; i < to.size(); ++i)
      distances.add_distance(gpus[from].pci, gpus[to[i]].pci, row[i].value());
  }
  for (std::size_t from = 0; from < 4; ++from) EXPECT_TRUE(distances.missing_from(gpus, from).empty());
  const auto matrix = distances.distance_matrix(gpus);
  EXPECT_EQ(matrix[0 * 4 + 1], PcieDistance::kNode);
  EXPECT_EQ(matrix[1 * 4 + 2], PcieDistance::kSystem);
  EXPECT_EQ(matrix[2 * 4 + 1], PcieDistance::kSystem);
  EXPECT_EQ(matrix[2 * 4 + 2], PcieDistance::kInternal);

  // A new card is read, a lost one is not; its known data stays.
  gpus[3].pci.bus = 0x99;
  gpus[1].unreadable = Error(Code::kDeviceLost, "lost");
  EXPECT_EQ(distances.missing_from(gpus, 0), (std::vector<std::size_t>{3}));
  EXPECT_TRUE(distances.missing_from(gpus, 1).empty());
  EXPECT_EQ(distances.distance_matrix(gpus)[1], PcieDistance::kNode);
  EXPECT_EQ(distances.distance_matrix(gpus)[3], PcieDistance::kUnknown);
}

Gpu known_gpu(unsigned index, const char* uuid) {
  Gpu gpu;
  gpu.index = index;
  gpu.uuid = DeviceUuid(uuid);
  gpu.model = "NVIDIA H100 80GB HBM3";
  gpu.numa_node = 0;
  return gpu;
}

TEST(FillFromPrevious, UnreadableGpuKeepsItsData) {
  Snapshot previous;
  previous.gpus = {known_gpu(0, "GPU-a"), known_gpu(1, "GPU-b"), known_gpu(2, "GPU-c")};
  previous.gpus[1].health = {false, "XID 79"};
  Gpu silent;
  silent.index = 1;
  silent.unreadable = Error(Code::kDeviceLost, "lost");
  std::vector<Gpu> read{known_gpu(0, "GPU-a"), silent, known_gpu(2, "GPU-c")};
  fill_from_previous(read, previous);
  EXPECT_EQ(read[1].uuid.str(), "GPU-b");
  EXPECT_EQ(read[1].model, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(read[1].numa_node, std::optional(0));
  ASSERT_TRUE(read[1].unreadable);
  EXPECT_EQ(read[1].unreadable->code(), Code::kDeviceLost);
  EXPECT_TRUE(read[1].health.healthy) << "a judgement is computed by health/";
}

TEST(FillFromPrevious, IdentityOfAnotherGpuIsNotUsed) {
  Snapshot previous;
  previous.gpus = {known_gpu(0, "GPU-a"), known_gpu(1, "GPU-b")};
  Gpu silent;
  silent.unreadable = Error(Code::kDeviceLost, "lost");
  // After a reload the second card counts as the first, and something unknown as the second.
  silent.index = 1;
  std::vector<Gpu> read{known_gpu(0, "GPU-b"), silent};
  fill_from_previous(read, previous);
  EXPECT_TRUE(read[1].uuid.empty());
  // Its identity was read before it failed: that counts, not its index.
  silent.uuid = DeviceUuid("GPU-a");
  read = {known_gpu(0, "GPU-b"), silent};
  fill_from_previous(read, previous);
  EXPECT_EQ(read[1].uuid.str(), "GPU-a");
  EXPECT_EQ(read[1].model, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(read[1].index, 1u);
}

TEST(MigProfiles, OfNames) {
  EXPECT_EQ(mig_profile_of_name("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), "1g.10gb");
  EXPECT_EQ(mig_profile_of_name("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"), "1c.3g.20gb");
  EXPECT_EQ(mig_profile_of_name("NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb+gfx"), "1g.24gb+gfx");
  EXPECT_EQ(mig_profile_of_name("NVIDIA H100 80GB HBM3"), "");
  EXPECT_EQ(mig_profile_of_name("NVIDIA MIG GPU"), "");
}

TEST(MigProfiles, OfSlices) {
  const struct {
    unsigned compute, slices;
    std::uint64_t mib, total_mib;
    const char* profile;
  } rows[] = {
      {1, 1, 4864, 40536, "1g.5gb"},   {2, 2, 9856, 40536, "2g.10gb"},  {3, 3, 19968, 40536, "3g.20gb"},
      {7, 7, 40192, 40536, "7g.40gb"}, {1, 1, 9856, 81559, "1g.10gb"},  {1, 2, 19968, 81559, "1c.2g.20gb"},
      {3, 3, 40320, 81559, "3g.40gb"}, {7, 7, 81152, 81559, "7g.80gb"}, {1, 1, 5952, 24576, "1g.6gb"},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(mig_profile_of_slices(row.compute, row.slices, mebibytes(row.mib), mebibytes(row.total_mib)),
              row.profile);
  }
}

TEST(DeviceNames, Architectures) {
  const struct {
    unsigned major, minor;
    const char* name;
  } rows[] = {
      {6, 1, "pascal"},     {7, 0, "volta"},        {7, 5, "turing"},     {8, 0, "ampere"},
      {8, 6, "ampere"},     {8, 9, "ada-lovelace"}, {9, 0, "hopper"},     {10, 0, "blackwell"},
      {12, 0, "blackwell"}, {13, 0, "rubin"},       {11, 0, "undefined"}, {0, 0, "undefined"},
  };
  for (const auto& row : rows) EXPECT_EQ(architecture_name(row.major, row.minor), row.name);
}

TEST(DeviceNames, DisplayAdapterIsNoGpu) {
  Gpu gpu;
  gpu.model = "NVIDIA DGX Display";
  EXPECT_TRUE(is_display_only(gpu));
  gpu.model = "NVIDIA A100-SXM4-80GB";
  EXPECT_FALSE(is_display_only(gpu));
}

}  // namespace
}  // namespace gpulet::inventory
