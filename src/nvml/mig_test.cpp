#include "nvml/mig.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "nvml/test_on_driver.h"
#include "sim/state/mig.h"

namespace gpulet::nvml {
namespace {

// The hardware's profile ids of H100 80GB.
constexpr unsigned k1g = 19;
constexpr unsigned k3g = 9;
constexpr unsigned k7g = 0;

class MigTest : public OnDriver {
 protected:
  MigTest() : OnDriver(2u) {}
  void SetUp() override {
    OnDriver::SetUp();
    const auto machine = root_.edit();
    machine->gpus[0].mig.current = machine->gpus[0].mig.pending = 1;
  }
  Mig mig() const { return {*session_, gpu_}; }
  unsigned create(unsigned profile, Placement placement) {
    const auto made = mig().create(profile, placement);
    EXPECT_TRUE(made) << made.error().text();
    return made.value_or(99);
  }
  void add_process(unsigned pid, unsigned instance, unsigned compute, std::uint8_t kind = 0) {
    sim::Process process{};
    process.pid = pid;
    process.gpu_instance = instance;
    process.compute_instance = compute;
    process.kind = kind;
    ASSERT_TRUE(sim::add_process(root_.edit()->gpus[0], process));
  }
};

bool same(const Placement& a, const Placement& b) { return a.start == b.start && a.size == b.size; }

TEST_F(MigTest, ProfilesAreAllThatTheGpuHas) {
  const auto profiles = mig().profiles();
  ASSERT_TRUE(profiles) << profiles.error().text();
  EXPECT_EQ(profiles->size(), root_.edit()->gpus[0].mig.profile_count);
  const auto media = std::ranges::find(*profiles, "1g.10gb+me", &GpuInstanceProfile::name);
  ASSERT_NE(media, profiles->end());
  EXPECT_EQ(media->attributes, "+me");
  EXPECT_EQ(media->most, 1u);
  const auto half = std::ranges::find(*profiles, k3g, &GpuInstanceProfile::id);
  ASSERT_NE(half, profiles->end());
  EXPECT_EQ(half->name, "3g.40gb");
  EXPECT_EQ(half->attributes, "");
  EXPECT_EQ(half->slices, 3u);
  EXPECT_EQ(half->most, 2u);
  EXPECT_GT(half->memory_mib, 38'000u);
  const auto places = mig().placements(k3g);
  ASSERT_TRUE(places);
  ASSERT_EQ(places->size(), 2u);
  EXPECT_TRUE(same((*places)[1], {4, 4}));
}

TEST_F(MigTest, AGpuWithoutMigHasNone) {
  root_.edit()->gpus[1].mig.capable = 0;
  const Mig other(*session_, *session_->device(1));
  const auto profiles = other.profiles();
  ASSERT_TRUE(profiles) << profiles.error().text();
  EXPECT_TRUE(profiles->empty());
  EXPECT_EQ(other.set_mode(true).error().code(), Code::kUnsupported);
  EXPECT_EQ(other.create(k1g, {0, 1}).error().code(), Code::kUnsupported);
}

TEST_F(MigTest, MakesAndDestroysByPlacement) {
  const unsigned upper = create(k3g, {4, 4});
  const unsigned small = create(k1g, {2, 1});
  const auto there = mig().instances(k3g);
  ASSERT_TRUE(there);
  ASSERT_EQ(there->size(), 1u);
  EXPECT_EQ(there->front().id, upper);
  EXPECT_TRUE(same(there->front().placement, {4, 4}));
  EXPECT_EQ(mig().create(k3g, {0, 4}).error().code(), Code::kFailedPrecondition) << "1g is in its place";
  EXPECT_EQ(mig().create(k3g, {1, 4}).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(mig().destroy(small));
  EXPECT_EQ(mig().destroy(small).error().code(), Code::kNotFound);
  EXPECT_TRUE(mig().create(k3g, {0, 4}));
}

TEST_F(MigTest, ComputeInstancesBySizeAndPlacement) {
  const unsigned id = create(k3g, {0, 4});
  const auto profiles = mig().compute_profiles(id);
  ASSERT_TRUE(profiles) << profiles.error().text();
  ASSERT_EQ(profiles->size(), 3u);
  EXPECT_EQ(profiles->back().slices, 3u);
  const auto places = mig().compute_placements(id, profiles->front().id);
  ASSERT_TRUE(places);
  EXPECT_EQ(places->size(), 3u);
  const auto first = mig().create_compute(id, profiles->front().id, Placement{2, 1});
  const auto second = mig().create_compute(id, profiles->front().id, std::nullopt);
  ASSERT_TRUE(first && second);
  const auto there = mig().compute_instances(id, profiles->front().id);
  ASSERT_TRUE(there);
  ASSERT_EQ(there->size(), 2u);
  EXPECT_TRUE(same((*there)[0].placement, {2, 1}));
  EXPECT_TRUE(same((*there)[1].placement, {0, 1}));
  const auto full = mig().create_compute(id, profiles->back().id, std::nullopt);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(full.error().message().find("no room in the GPU instance"), std::string::npos)
      << full.error().text();

  const auto devices = mig().devices();
  ASSERT_TRUE(devices);
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[0].gpu_instance, id);
  EXPECT_EQ((*devices)[1].compute_instance, *second);
  EXPECT_EQ((*devices)[1].uuid.str().substr(0, 4), "MIG-");

  const auto held = mig().destroy(id);
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(held.error().message().find("holds the GPU instance"), std::string::npos) << held.error().text();
  EXPECT_TRUE(mig().destroy_compute(id, *first));
  EXPECT_EQ(mig().destroy_compute(id, *first).error().code(), Code::kNotFound);
  EXPECT_TRUE(mig().destroy_compute(id, *second));
  EXPECT_TRUE(mig().destroy(id));
  EXPECT_EQ(mig().compute_profiles(id).error().code(), Code::kNotFound);
}

TEST_F(MigTest, AProcessHoldsItsInstance) {
  const unsigned id = create(k7g, {0, 8});
  const auto profiles = mig().compute_profiles(id);
  ASSERT_TRUE(profiles);
  const auto compute = mig().create_compute(id, profiles->back().id, std::nullopt);
  ASSERT_TRUE(compute);
  add_process(4711, id, *compute);
  add_process(4712, id, *compute, 2);
  const auto destroyed = mig().destroy_compute(id, *compute);
  ASSERT_FALSE(destroyed);
  EXPECT_EQ(destroyed.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(destroyed.error().message().find("a process holds"), std::string::npos)
      << destroyed.error().text();
  const auto all = session_->processes(gpu_);
  ASSERT_TRUE(all) << all.error().text();
  EXPECT_EQ(*all, (std::vector<Process>{{4711, id, *compute}, {4712, id, *compute}}));
  const auto device = session_->mig_device(gpu_, 0);
  ASSERT_TRUE(device);
  EXPECT_EQ(*session_->processes(*device), *all);
}

TEST_F(MigTest, ProcessesOutsideMigAreOfNoInstance) {
  for (unsigned i = 0; i < sim::kMaxProcesses; ++i)
    add_process(100 + i, sim::kNoInstance, sim::kNoInstance, i % 3);
  const auto all = session_->processes(gpu_);
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), sim::kMaxProcesses);
  EXPECT_EQ(all->front(), (Process{100, std::nullopt, std::nullopt}));
}

TEST_F(MigTest, TheModeIsInForceOrWaitsForAReset) {
  const Mig other(*session_, *session_->device(1));
  const auto at_once = other.set_mode(true);
  ASSERT_TRUE(at_once) << at_once.error().text();
  EXPECT_TRUE(*at_once);
  root_.edit()->gpus[1].mig.mode_needs_reset = 1;
  const auto later = other.set_mode(false);
  ASSERT_TRUE(later);
  EXPECT_FALSE(*later);
  const auto mode = session_->mig_mode(*session_->device(1));
  ASSERT_TRUE(mode);
  EXPECT_TRUE(mode->current);
  EXPECT_FALSE(mode->pending);
  create(k1g, {0, 1});
  const auto busy = mig().set_mode(false);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(busy.error().message().find("holds the GPU"), std::string::npos) << busy.error().text();
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
  session_ = *Session::open(root_.path());
  const Mig old(*session_, before);
  EXPECT_EQ(old.profiles().error().code(), Code::kUnavailable);
  EXPECT_EQ(old.instances(k1g).error().code(), Code::kUnavailable);
  EXPECT_EQ(old.destroy(0).error().code(), Code::kUnavailable);
  EXPECT_EQ(session_->processes(before).error().code(), Code::kUnavailable);
}

TEST(Mig, EverySymbolIsOptional) {
  const SimRoot root(*sim::small_machine(1), GPULET_BARE_DRIVER);
  const auto session = *Session::open(root.path());
  const Device gpu = *session->device(0);
  const Mig mig(*session, gpu);
  EXPECT_TRUE(mig.profiles()->empty());
  for (const auto& error :
       {mig.set_mode(true).error(), mig.placements(0).error(), mig.instances(0).error(),
        mig.create(0, {0, 8}).error(), mig.destroy(0).error(), mig.compute_profiles(0).error(),
        mig.create_compute(0, 0, std::nullopt).error(), mig.destroy_compute(0, 0).error(),
        mig.devices().error(), session->processes(gpu).error(), session->compute_mode(gpu).error(),
        session->set_compute_mode(gpu, ComputeMode::kDefault).error()}) {
    EXPECT_EQ(error.code(), Code::kUnsupported) << error.text();
  }
}

}  // namespace
}  // namespace gpulet::nvml
