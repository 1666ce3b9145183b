#include "nvml/mig.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "nvml/test_on_driver.h"
#include "sim/state/mig.h"

namespace gpulet::nvml {
namespace {

// Profile ids of H100 80GB.
constexpr unsigned k1g = 19;
constexpr unsigned k3g = 9;
constexpr unsigned k7g = 0;

class MigTest : public DriverTest {
 protected:
  MigTest() : DriverTest(2u) {}
  void SetUp() override {
    DriverTest::SetUp();
    const auto machine = root_.edit_machine();
    machine->gpus[0].mig.current = machine->gpus[0].mig.pending = 1;
  }
  Mig mig_reader() const { return {*session_, gpu_}; }
  unsigned create_instance_of(unsigned profile, Placement placement) {
    const auto made = mig_reader().create_gpu_instance(profile, placement);
    EXPECT_TRUE(made) << made.error().full_message();
    return made.value_or(99);
  }
  void add_process(unsigned pid, unsigned instance, unsigned compute, std::uint8_t kind = 0) {
    sim::Process process{};
    process.pid = pid;
    process.gpu_instance = instance;
    process.compute_instance = compute;
    process.kind = kind;
    ASSERT_TRUE(sim::add_process(root_.edit_machine()->gpus[0], process));
  }
};

bool same_placements(const Placement& a, const Placement& b) {
  return a.start == b.start && a.size == b.size;
}

TEST_F(MigTest, ListsAllProfiles) {
  const auto profiles = mig_reader().gpu_instance_profiles();
  ASSERT_TRUE(profiles) << profiles.error().full_message();
  EXPECT_EQ(profiles->size(), root_.edit_machine()->gpus[0].mig.profile_count);
  const auto media = std::ranges::find(*profiles, "1g.10gb+me", &GpuInstanceProfile::name);
  ASSERT_NE(media, profiles->end());
  EXPECT_EQ(media->attributes, "+me");
  EXPECT_EQ(media->max_instances, 1u);
  const auto half = std::ranges::find(*profiles, k3g, &GpuInstanceProfile::id);
  ASSERT_NE(half, profiles->end());
  EXPECT_EQ(half->name, "3g.40gb");
  EXPECT_EQ(half->attributes, "");
  EXPECT_EQ(half->slices, 3u);
  EXPECT_EQ(half->max_instances, 2u);
  EXPECT_GT(half->memory_mib, 38'000u);
  const auto places = mig_reader().gpu_instance_placements(k3g);
  ASSERT_TRUE(places);
  ASSERT_EQ(places->size(), 2u);
  EXPECT_TRUE(same_placements((*places)[1], {4, 4}));
}

TEST_F(MigTest, AGpuWithoutMigHasNone) {
  root_.edit_machine()->gpus[1].mig.capable = 0;
  const Mig other(*session_, *session_->device(1));
  const auto profiles = other.gpu_instance_profiles();
  ASSERT_TRUE(profiles) << profiles.error().full_message();
  EXPECT_TRUE(profiles->empty());
  EXPECT_EQ(other.set_mig_mode(true).error().code(), Code::kUnsupported);
  EXPECT_EQ(other.create_gpu_instance(k1g, {0, 1}).error().code(), Code::kUnsupported);
}

TEST_F(MigTest, CreatesAndDestroysByPlacement) {
  const unsigned upper = create_instance_of(k3g, {4, 4});
  const unsigned small = create_instance_of(k1g, {2, 1});
  const auto listed = mig_reader().gpu_instances(k3g);
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 1u);
  EXPECT_EQ(listed->front().id, upper);
  EXPECT_TRUE(same_placements(listed->front().placement, {4, 4}));
  EXPECT_EQ(mig_reader().create_gpu_instance(k3g, {0, 4}).error().code(), Code::kFailedPrecondition)
      << "1g is in its place";
  EXPECT_EQ(mig_reader().create_gpu_instance(k3g, {1, 4}).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(mig_reader().destroy_gpu_instance(small));
  EXPECT_EQ(mig_reader().destroy_gpu_instance(small).error().code(), Code::kNotFound);
  EXPECT_TRUE(mig_reader().create_gpu_instance(k3g, {0, 4}));
}

TEST_F(MigTest, ComputeInstancesBySizeAndPlacement) {
  const unsigned id = create_instance_of(k3g, {0, 4});
  const auto profiles = mig_reader().compute_profiles(id);
  ASSERT_TRUE(profiles) << profiles.error().full_message();
  ASSERT_EQ(profiles->size(), 3u);
  EXPECT_EQ(profiles->back().slices, 3u);
  const auto places = mig_reader().compute_placements(id, profiles->front().id);
  ASSERT_TRUE(places);
  EXPECT_EQ(places->size(), 3u);
  const auto first = mig_reader().create_compute_instance(id, profiles->front().id, Placement{2, 1});
  const auto second = mig_reader().create_compute_instance(id, profiles->front().id, std::nullopt);
  ASSERT_TRUE(first && second);
  const auto listed = mig_reader().compute_instances(id, profiles->front().id);
  ASSERT_TRUE(listed);
  ASSERT_EQ(listed->size(), 2u);
  EXPECT_TRUE(same_placements((*listed)[0].placement, {2, 1}));
  EXPECT_TRUE(same_placements((*listed)[1].placement, {0, 1}));
  const auto full = mig_reader().create_compute_instance(id, profiles->back().id, std::nullopt);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(full.error().message().find("no room in the GPU instance"), std::string::npos)
      << full.error().full_message();

  const auto devices = mig_reader().mig_devices();
  ASSERT_TRUE(devices);
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[0].gpu_instance, id);
  EXPECT_EQ((*devices)[1].compute_instance, *second);
  EXPECT_EQ((*devices)[1].uuid.str().substr(0, 4), "MIG-");

  const auto held = mig_reader().destroy_gpu_instance(id);
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(held.error().message().find("holds the GPU instance"), std::string::npos)
      << held.error().full_message();
  EXPECT_TRUE(mig_reader().destroy_compute_instance(id, *first));
  EXPECT_EQ(mig_reader().destroy_compute_instance(id, *first).error().code(), Code::kNotFound);
  EXPECT_TRUE(mig_reader().destroy_compute_instance(id, *second));
  EXPECT_TRUE(mig_reader().destroy_gpu_instance(id));
  EXPECT_EQ(mig_reader().compute_profiles(id).error().code(), Code::kNotFound);
}

TEST_F(MigTest, ReportsTheProcessOfAnInstance) {
  const unsigned id = create_instance_of(k7g, {0, 8});
  const auto profiles = mig_reader().compute_profiles(id);
  ASSERT_TRUE(profiles);
  const auto compute = mig_reader().create_compute_instance(id, profiles->back().id, std::nullopt);
  ASSERT_TRUE(compute);
  add_process(4711, id, *compute);
  add_process(4712, id, *compute, 2);
  const auto destroyed = mig_reader().destroy_compute_instance(id, *compute);
  ASSERT_FALSE(destroyed);
  EXPECT_EQ(destroyed.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(destroyed.error().message().find("a process holds"), std::string::npos)
      << destroyed.error().full_message();
  const auto all = session_->running_processes(gpu_);
  ASSERT_TRUE(all) << all.error().full_message();
  EXPECT_EQ(*all, (std::vector<Process>{{4711, id, *compute}, {4712, id, *compute}}));
  const auto device = session_->mig_device(gpu_, 0);
  ASSERT_TRUE(device);
  EXPECT_EQ(*session_->running_processes(*device), *all);
}

TEST_F(MigTest, ReportsProcessesOutsideMigWithoutAnInstance) {
  for (unsigned i = 0; i < sim::kMaxProcesses; ++i)
    add_process(100 + i, sim::kNoInstance, sim::kNoInstance, i % 3);
  const auto all = session_->running_processes(gpu_);
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), sim::kMaxProcesses);
  EXPECT_EQ(all->front(), (Process{100, std::nullopt, std::nullopt}));
}

TEST_F(MigTest, ChangesTheModeImmediatelyOrAfterAReset) {
  const Mig other(*session_, *session_->device(1));
  const auto at_once = other.set_mig_mode(true);
  ASSERT_TRUE(at_once) << at_once.error().full_message();
  EXPECT_EQ(*at_once, MigActivation::kActive);
  {
    auto machine = root_.edit_machine();
    machine->gpus[1].mig.mode_needs_reset = machine->gpus[1].mig.passthrough = 1;
  }
  const auto later = other.set_mig_mode(false);
  ASSERT_TRUE(later);
  EXPECT_EQ(*later, MigActivation::kResetRequired);
  const auto mode = session_->mig_mode(*session_->device(1));
  ASSERT_TRUE(mode);
  EXPECT_TRUE(mode->current);
  EXPECT_FALSE(mode->pending);
  create_instance_of(k1g, {0, 1});
  const auto busy = mig_reader().set_mig_mode(false);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(busy.error().message().find("holds the GPU"), std::string::npos) << busy.error().full_message();
}

// A100: "pending, activation IN_USE" is not a failure.
TEST_F(MigTest, OnAmpereAModeIsPendingWhileTheGpuIsInUse) {
  const Mig other(*session_, *session_->device(1));
  {
    auto machine = root_.edit_machine();
    auto& gpu = machine->gpus[1];
    gpu.compute_major = 8;
    gpu.mig.mode_needs_reset = 1;
    gpu.processes[0].pid = 4242;
    gpu.processes[0].gpu_instance = gpu.processes[0].compute_instance = sim::kNoInstance;
  }
  const auto pending = other.set_mig_mode(true);
  ASSERT_TRUE(pending) << pending.error().full_message();
  EXPECT_EQ(*pending, MigActivation::kInUse);
  const auto mode = session_->mig_mode(*session_->device(1));
  EXPECT_FALSE(mode->current);
  EXPECT_TRUE(mode->pending);
  const auto back = other.set_mig_mode(false);
  ASSERT_TRUE(back) << back.error().full_message();
  EXPECT_EQ(*back, MigActivation::kActive);
  root_.edit_machine()->gpus[1].processes[0] = {};
  EXPECT_EQ(*other.set_mig_mode(true), MigActivation::kActive) << "the driver resets the idle GPU";
}

TEST_F(MigTest, ComputeModeIsSetAndRead) {
  const Device other = *session_->device(1);
  EXPECT_EQ(*session_->compute_mode(other), ComputeMode::kDefault);
  for (const auto mode : {ComputeMode::kExclusiveProcess, ComputeMode::kProhibited, ComputeMode::kDefault}) {
    ASSERT_TRUE(session_->set_compute_mode(other, mode));
    EXPECT_EQ(*session_->compute_mode(other), mode);
  }
  EXPECT_EQ(session_->set_compute_mode(gpu_, ComputeMode::kExclusiveProcess).error().code(),
            Code::kUnsupported)
      << "in MIG mode";
}

TEST_F(MigTest, HandlesOfAnEarlierSessionAreRefused) {
  const Device before = gpu_;
  session_ = *Session::open_session(root_.sim_root());
  const Mig old(*session_, before);
  EXPECT_EQ(old.gpu_instance_profiles().error().code(), Code::kUnavailable);
  EXPECT_EQ(old.gpu_instances(k1g).error().code(), Code::kUnavailable);
  EXPECT_EQ(old.destroy_gpu_instance(0).error().code(), Code::kUnavailable);
  EXPECT_EQ(session_->running_processes(before).error().code(), Code::kUnavailable);
}

TEST(Mig, EverySymbolIsOptional) {
  const SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto session = *Session::open_session(root.sim_root());
  const Device gpu = *session->device(0);
  const Mig mig(*session, gpu);
  EXPECT_TRUE(mig.gpu_instance_profiles()->empty());
  for (const auto& error :
       {mig.set_mig_mode(true).error(), mig.gpu_instance_placements(0).error(), mig.gpu_instances(0).error(),
        mig.create_gpu_instance(0, {0, 8}).error(), mig.destroy_gpu_instance(0).error(),
        mig.compute_profiles(0).error(), mig.create_compute_instance(0, 0, std::nullopt).error(),
        mig.destroy_compute_instance(0, 0).error(), mig.mig_devices().error(),
        session->running_processes(gpu).error(), session->compute_mode(gpu).error(),
        session->set_compute_mode(gpu, ComputeMode::kDefault).error()}) {
    EXPECT_EQ(error.code(), Code::kUnsupported) << error.full_message();
  }
}

}  // namespace
}  // namespace gpulet::nvml
