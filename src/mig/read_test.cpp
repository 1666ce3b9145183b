#include "mig/read.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "mig/test_drive.h"

namespace gpulet::mig {
namespace {

// Compute profiles are told only of instances that are there.
void forget_compute(State& state) {
  for (auto& profile : state.profiles) {
    const bool there =
        std::ranges::find(state.instances, profile.id, &GpuInstance::profile) != state.instances.end();
    if (!there) profile.compute.clear();
  }
}

TEST(Read, IsWhatEveryMachineHas) {
  for (const auto& name : states::machines_with_mig()) {
    Drive drive(name);
    State expected = drive.on_gpu([](sim::Gpu& gpu) { return states::state_of(gpu); });
    forget_compute(expected);
    EXPECT_EQ(drive.state(), expected) << name;
    // And with an instance of each profile in turn, its first slice a compute instance of its own.
    for (const auto& profile : expected.profiles) {
      ASSERT_FALSE(profile.placements.empty()) << name << " " << profile.name;
      State now = drive.on_gpu([&](sim::Gpu& gpu) {
        for (auto& instance : gpu.mig.instances) instance = {};
        EXPECT_NE(states::add(gpu, profile.name, profile.placements.back().start, {1}), nullptr);
        return states::state_of(gpu);
      });
      forget_compute(now);
      EXPECT_EQ(drive.state(), now) << name << " " << profile.name;
    }
  }
}

TEST(Read, AGpuWithoutMigIsNotCapable) {
  nvml::SimRoot root(*states::machine("t4"));
  const auto session = *nvml::Session::open(root.path());
  const auto state = read(*session, 0);
  ASSERT_TRUE(state) << state.error().text();
  EXPECT_FALSE(state->capable);
  EXPECT_TRUE(state->profiles.empty());
  EXPECT_EQ(state->model, "Tesla T4");
  EXPECT_EQ(read(*session, 77).error().code(), Code::kInvalidArgument);
  root.edit()->gpus[0].faults.lost = 1;
  EXPECT_EQ(read(*session, 0).error().code(), Code::kDeviceLost);
}

TEST(Read, ProfilesAreKnownBeforeTheModeIsOn) {
  Drive drive("dgx-a100", false);
  drive.on_gpu([](sim::Gpu& gpu) { gpu.mig.pending = 1; });
  const State state = drive.state();
  EXPECT_TRUE(state.capable);
  EXPECT_FALSE(state.enabled);
  EXPECT_EQ(state.pending, true);
  EXPECT_FALSE(state.profiles.empty());
  EXPECT_TRUE(state.instances.empty());
}

TEST(Read, HoldersByInstanceWithTheirNames) {
  Drive drive("hgx-h100");
  const auto [low, high] = drive.on_gpu([](sim::Gpu& gpu) {
    return std::pair(states::add(gpu, "1g.10gb", 0)->id, states::add(gpu, "3g.40gb", 4, {1, 1})->id);
  });
  const auto own = static_cast<unsigned>(::getpid());
  drive.hold(own, high, 0);
  drive.hold(own, high, 1);
  drive.hold(4'100'000'000, high, 1);
  const State state = drive.state();
  ASSERT_EQ(state.instances.size(), 2u);
  const std::string comm(text::trim(*read_file("/proc/self/comm", 64)));
  EXPECT_EQ(state.instances[0].holders, std::vector<std::string>{});
  EXPECT_EQ(
      state.instances[1].holders,
      (std::vector<std::string>{"process " + std::to_string(own) + " (" + comm + ")", "process 4100000000"}));
  EXPECT_EQ(state.holders, std::vector<std::string>{});
  EXPECT_EQ(*read_holders(drive.session(), 0, high), state.instances[1].holders);
  EXPECT_EQ(*read_holders(drive.session(), 0, low), std::vector<std::string>{});
  EXPECT_EQ(*read_holders(drive.session(), 0, std::nullopt), std::vector<std::string>{});
}

TEST(Read, AProcessCannotWriteIntoALineByItsName) {
  Drive drive("hgx-h100", false);
  char folder[] = "/tmp/gpulet-proc-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string proc = folder;
  std::filesystem::create_directories(proc + "/4711");
  std::ofstream(proc + "/4711/comm") << "a\x1b[2J\nb\n";
  drive.hold(4711, sim::kNoInstance, sim::kNoInstance);
  const auto state = read(drive.session(), 0, proc);
  std::filesystem::remove_all(proc);
  ASSERT_TRUE(state);
  EXPECT_EQ(state->holders, std::vector<std::string>{"process 4711 (a?[2J?b)"});
}

}  // namespace
}  // namespace gpulet::mig
