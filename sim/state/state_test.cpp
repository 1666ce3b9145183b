#include "sim/state/state.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <set>

#include "sim/state/mig.h"
#include "sim/state/test_machine.h"

namespace gpulet::sim {
namespace {

using namespace std::chrono_literals;

class StateTest : public testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/gpulet-sim-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  StateFile create_file() {
    auto made = StateFile::create_state(directory_ + "/run/gpulet-sim/state", *small_machine(2));
    EXPECT_TRUE(made) << made.error().full_message();
    return std::move(*made);
  }
  std::string directory_;
};

TEST_F(StateTest, MappingsShareOneMachine) {
  StateFile first = create_file();
  auto second = StateFile::open_state(first.file_path());
  ASSERT_TRUE(second) << second.error().full_message();
  first.lock_for_edit()->gpus[1].temperature = 71;
  EXPECT_EQ(second->lock_for_read()->gpus[1].temperature, 71);
  struct stat info{};
  ASSERT_EQ(stat(first.file_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0666u) << "clients run as anyone";
}

TEST_F(StateTest, RefusesOtherFiles) {
  EXPECT_EQ(StateFile::open_state(directory_ + "/none").error().code(), Code::kNotFound);
  std::ofstream(directory_ + "/junk") << "junk";
  EXPECT_EQ(StateFile::open_state(directory_ + "/junk").error().code(), Code::kFailedPrecondition);
  StateFile file = create_file();
  const auto size = std::filesystem::file_size(file.file_path());
  std::ofstream(directory_ + "/zeros").close();
  std::filesystem::resize_file(directory_ + "/zeros", size);
  EXPECT_EQ(StateFile::open_state(directory_ + "/zeros").error().code(), Code::kFailedPrecondition);
}

TEST_F(StateTest, CreatingAgainRetiresTheOldState) {
  StateFile old = create_file();
  const std::uint32_t generation = old.lock_for_read()->driver.generation;
  StateFile fresh = create_file();
  EXPECT_EQ(old.lock_for_read()->driver.loaded, 0);
  EXPECT_EQ(fresh.lock_for_read()->driver.loaded, 1);
  EXPECT_GT(fresh.lock_for_read()->driver.generation, generation);
}

TEST_F(StateTest, SurvivesTheDeathOfALockHolder) {
  StateFile file = create_file();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    EditGuard machine = file.lock_for_edit();
    machine->gpus[0].temperature = 55;
    _exit(0);  // the lock is still held
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(file.lock_for_read()->gpus[0].temperature, 55);
  file.lock_for_edit()->gpus[0].temperature = 56;
  EXPECT_EQ(file.lock_for_read()->gpus[0].temperature, 56);
}

TEST_F(StateTest, AnEditWakesWaiters) {
  StateFile file = create_file();
  const std::uint32_t seen = file.change_count();
  auto waiter = std::async(std::launch::async, [&] {
    while (file.change_count() == seen) file.wait_for_change(seen, -1);
  });
  file.lock_for_edit()->gpus[0].temperature = 60;
  EXPECT_EQ(waiter.wait_for(10s), std::future_status::ready);
}

TEST(Uuid, IsStableAndOfVersionFour) {
  EXPECT_EQ(make_uuid("GPU-", "a"), make_uuid("GPU-", "a"));
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(make_uuid("GPU-", "dgx/" + std::to_string(i)));
  EXPECT_EQ(seen.size(), 1000u);
  const std::string uuid = make_uuid("GPU-", "a");
  ASSERT_EQ(uuid.size(), 40u);
  EXPECT_EQ(uuid[18], '4');
  EXPECT_NE(std::string("89ab").find(uuid[23]), std::string::npos);
}

TEST(Reset, NeedsAnIdleGpuAndAppliesPendingModes) {
  auto machine = small_machine(1);
  Gpu& gpu = machine->gpus[0];
  gpu.remapped_rows.pending = 1;
  gpu.recovery_action = 1;
  gpu.links[3].active = 0;
  Process process{};
  process.pid = 5;
  ASSERT_TRUE(add_process(gpu, process));
  EXPECT_EQ(reset_gpu(*machine, 0).error().code(), Code::kFailedPrecondition);
  ASSERT_TRUE(remove_process(gpu, 5));
  ASSERT_TRUE(reset_gpu(*machine, 0));
  EXPECT_EQ(gpu.remapped_rows.pending, 0u);
  EXPECT_EQ(gpu.recovery_action, 0u);
  EXPECT_EQ(gpu.links[3].active, 1);
}

// What becomes of MIG on Hopper (`needs_reset` false) and Ampere. "current>pending, instances".
std::string mig_after(bool needs_reset, std::uint8_t current, std::uint8_t pending, void (*end)(Machine&)) {
  auto machine = small_machine(1);
  Gpu& gpu = machine->gpus[0];
  gpu.mig.mode_needs_reset = needs_reset ? 1 : 0;
  gpu.mig.current = gpu.mig.pending = current;
  if (current != 0) {
    GpuInstance* made = nullptr;
    EXPECT_EQ(create_gpu_instance(gpu, gpu.mig.profiles[0].id, std::nullopt, &made), MigOutcome::kOk);
  }
  gpu.mig.pending = pending;
  end(*machine);
  const auto instances =
      std::ranges::count_if(gpu.mig.instances, [](const auto& one) { return one.used != 0; });
  return std::to_string(gpu.mig.current) + ">" + std::to_string(gpu.mig.pending) + ", " +
         std::to_string(instances);
}

TEST(Mig, AmpereKeepsItsModeAndAResetActivatesIt) {
  const auto reset = [](Machine& machine) { EXPECT_TRUE(reset_gpu(machine, 0)); };
  const auto reload = [](Machine& machine) {
    unload_driver(machine);
    load_driver(machine);
  };
  EXPECT_EQ(mig_after(true, 1, 1, reset), "1>1, 0");
  EXPECT_EQ(mig_after(true, 0, 1, reset), "1>1, 0");
  EXPECT_EQ(mig_after(true, 1, 0, reset), "0>0, 0");
  EXPECT_EQ(mig_after(true, 1, 1, reload), "1>1, 0");
  EXPECT_EQ(mig_after(true, 0, 1, reload), "0>1, 0");
  EXPECT_EQ(mig_after(true, 1, 0, reload), "1>0, 0");
  EXPECT_EQ(mig_after(true, 1, 1, reboot), "1>1, 0");
  EXPECT_EQ(mig_after(true, 0, 1, reboot), "1>1, 0");
  EXPECT_EQ(mig_after(true, 1, 0, reboot), "0>0, 0");
  EXPECT_EQ(mig_after(false, 1, 1, reset), "1>1, 0");
  EXPECT_EQ(mig_after(false, 1, 1, reload), "0>0, 0");
  EXPECT_EQ(mig_after(false, 1, 1, reboot), "0>0, 0");
}

// For any sequence of creations and destructions, instances never overlap, ids and UUIDs are unique, and the
// reported capacity is correct.
TEST(Mig, KeepsInvariantsInAnySequence) {
  rc::check("mig", [] {
    auto machine = small_machine(1);
    Gpu& gpu = machine->gpus[0];
    RC_ASSERT(set_mig_mode(gpu, true) == MigOutcome::kOk);
    std::set<std::string> uuids;
    const auto steps = *rc::gen::container<std::vector<std::pair<unsigned, bool>>>(
        rc::gen::pair(rc::gen::inRange(0u, gpu.mig.profile_count), rc::gen::arbitrary<bool>()));
    for (const auto& [choice, destroy] : steps) {
      if (destroy) {
        for (GpuInstance& instance : gpu.mig.instances) {
          if (instance.used == 0) continue;
          RC_ASSERT(destroy_gpu_instance(gpu, instance.id) == MigOutcome::kInUse);
          RC_ASSERT(destroy_compute_instance(gpu, instance, 0) == MigOutcome::kOk);
          RC_ASSERT(destroy_gpu_instance(gpu, instance.id) == MigOutcome::kOk);
          break;
        }
      } else {
        const MigProfile& profile = gpu.mig.profiles[choice];
        const std::uint32_t room = remaining_capacity(gpu, profile);
        GpuInstance* made = nullptr;
        const auto outcome = create_gpu_instance(gpu, profile.id, std::nullopt, &made);
        RC_ASSERT(outcome == (room == 0 ? MigOutcome::kInsufficientResources : MigOutcome::kOk));
        if (room == 0) continue;
        ComputeInstance* compute = nullptr;
        const auto& whole = profile.compute_profiles[profile.compute_profile_count - 1];
        RC_ASSERT(create_compute_instance(gpu, *made, whole.id, std::nullopt, &compute) == MigOutcome::kOk);
        RC_ASSERT(uuids.insert(compute->uuid).second);
      }
      unsigned taken = 0;
      std::set<std::uint32_t> ids;
      for (const GpuInstance& instance : gpu.mig.instances) {
        if (instance.used == 0) continue;
        const unsigned mask = ((1u << instance.length) - 1) << instance.start;
        RC_ASSERT((taken & mask) == 0u);
        taken |= mask;
        RC_ASSERT(ids.insert(instance.id).second);
      }
      RC_ASSERT(taken < 256u);
    }
  });
}

}  // namespace
}  // namespace gpulet::sim
