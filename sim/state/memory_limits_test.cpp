#include "sim/state/memory_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "sim/state/test_machine.h"

namespace gpulet::sim {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;

const std::vector<Cgroup> kPod = {{"/pod"}, {"/"}};
const std::vector<Cgroup> kContainer = {{"/pod/a"}, {"/pod"}, {"/"}};
const std::vector<Cgroup> kNeighbour = {{"/pod/ab"}, {"/pod"}, {"/"}};

// By backend.
class MemoryLimitTableTest : public testing::Test {
 protected:
  void start_machine(MemoryBackend mode, const char* version = "615.71.09") {
    machine_ = small_machine(2);
    set_text(machine_->driver.version, version);
    machine_->memory.mode = mode;
  }
  LimitOutcome set(const Cgroup& cgroup, std::uint64_t hard_mib, std::uint64_t soft_mib = 0) {
    return set_memory_limit(*machine_, 0, cgroup, soft_mib * kMiB, hard_mib * kMiB);
  }
  LimitOutcome clear(const Cgroup& cgroup) {
    return set_memory_limit(*machine_, 0, cgroup, 0, kUnlimitedMemory);
  }
  LimitOutcome read(const Cgroup& cgroup) { return read_memory_limit(*machine_, 0, cgroup, reading_); }
  bool allocate(std::uint32_t pid, const std::vector<Cgroup>& chain, std::uint64_t mib) {
    return charge_memory(*machine_, 0, pid, chain, mib * kMiB).has_value();
  }
  std::uint64_t used_mib(const Cgroup& cgroup) {
    return read(cgroup) == LimitOutcome::kOk ? reading_.used / kMiB : 0;
  }

  std::unique_ptr<Machine> machine_;
  MemoryLimitReading reading_;
};

TEST_F(MemoryLimitTableTest, TheBackendFollowsTheKeyFromBranch615On) {
  start_machine(MemoryBackend::kDmem, "610.43.02");
  EXPECT_EQ(memory_backend(*machine_), MemoryBackend::kOff);
  EXPECT_EQ(set(kPod[0], 10), LimitOutcome::kNotSupported);
  EXPECT_EQ(read(kPod[0]), LimitOutcome::kNotSupported);
  EXPECT_TRUE(allocate(1, kContainer, 10));
  start_machine(MemoryBackend::kAuto);
  EXPECT_EQ(memory_backend(*machine_), MemoryBackend::kMisc);
  start_machine(MemoryBackend::kOff);
  EXPECT_EQ(set(kPod[0], 10), LimitOutcome::kNotSupported);
}

TEST_F(MemoryLimitTableTest, OnMiscAFreshCgroupLooksUnsupported) {
  start_machine(MemoryBackend::kMisc);
  EXPECT_EQ(read(kContainer[0]), LimitOutcome::kNotSupported);
  ASSERT_EQ(set(kNeighbour[0], 10), LimitOutcome::kOk);
  EXPECT_EQ(read(kContainer[0]), LimitOutcome::kNotFound);
  EXPECT_EQ(clear(kContainer[0]), LimitOutcome::kNotFound);
  start_machine(MemoryBackend::kDmem);
  ASSERT_EQ(read(kContainer[0]), LimitOutcome::kOk);
  EXPECT_EQ(reading_.hard, kUnlimitedMemory);
  EXPECT_EQ(clear(kContainer[0]), LimitOutcome::kOk);
}

TEST_F(MemoryLimitTableTest, ChecksLimits) {
  start_machine(MemoryBackend::kMisc);
  EXPECT_EQ(set(kPod[0], 10, 11), LimitOutcome::kInvalidArgument);
  EXPECT_EQ(set(kPod[0], 90'000), LimitOutcome::kInvalidArgument);
  EXPECT_EQ(set(kPod[0], 10, 10), LimitOutcome::kOk);
  ASSERT_EQ(read(kPod[0]), LimitOutcome::kOk);
  EXPECT_EQ(reading_.soft, 10 * kMiB);
  EXPECT_EQ(reading_.hard, 10 * kMiB);
  EXPECT_EQ(clear(kPod[0]), LimitOutcome::kOk);
  EXPECT_FALSE(has_memory_limits(*machine_));
  for (std::size_t i = 0; i < kMaxMemoryLimits; ++i)
    ASSERT_EQ(set({"/" + std::to_string(i)}, 10), LimitOutcome::kOk);
  EXPECT_EQ(set({"/more"}, 10), LimitOutcome::kTableFull);
  EXPECT_EQ(set({"/1"}, 20), LimitOutcome::kOk) << "it has an entry";
}

TEST_F(MemoryLimitTableTest, OnMiscOnlyTheNearestLimitCounts) {
  start_machine(MemoryBackend::kMisc);
  ASSERT_EQ(set(kPod[0], 100), LimitOutcome::kOk);
  ASSERT_EQ(set(kContainer[0], 200), LimitOutcome::kOk);
  EXPECT_TRUE(allocate(1, kContainer, 150)) << "the container's limit replaces the Pod's";
  EXPECT_FALSE(allocate(2, kContainer, 51));
  EXPECT_TRUE(allocate(2, kNeighbour, 100));
  EXPECT_EQ(used_mib(kPod[0]), 100u);
  EXPECT_EQ(used_mib(kContainer[0]), 150u);
  release_memory(*machine_, 0, 1);
  EXPECT_EQ(used_mib(kContainer[0]), 0u);
  EXPECT_TRUE(allocate(3, kContainer, 200));
}

TEST_F(MemoryLimitTableTest, OnDmemAllAncestorsCount) {
  start_machine(MemoryBackend::kDmem);
  ASSERT_EQ(set(kPod[0], 100), LimitOutcome::kOk);
  ASSERT_EQ(set(kContainer[0], 80), LimitOutcome::kOk);
  EXPECT_FALSE(allocate(1, kContainer, 81));
  EXPECT_TRUE(allocate(1, kContainer, 80));
  EXPECT_FALSE(allocate(2, kNeighbour, 21));
  EXPECT_TRUE(allocate(2, kNeighbour, 20));
  EXPECT_EQ(used_mib(kPod[0]), 100u);
  EXPECT_EQ(used_mib(kContainer[0]), 80u) << "without /pod/ab";
}

TEST_F(MemoryLimitTableTest, MemoryFromBeforeTheFirstLimitCountsOnDmemOnly) {
  for (const auto backend : {MemoryBackend::kMisc, MemoryBackend::kDmem}) {
    const bool is_misc = backend == MemoryBackend::kMisc;
    start_machine(backend);
    ASSERT_TRUE(allocate(1, kContainer, 50));
    ASSERT_EQ(set(kContainer[0], 60), LimitOutcome::kOk);
    EXPECT_EQ(used_mib(kContainer[0]), is_misc ? 0u : 50u);
    EXPECT_EQ(allocate(2, kContainer, 30), is_misc);
    EXPECT_EQ(set(kContainer[0], 20), is_misc ? LimitOutcome::kInvalidArgument : LimitOutcome::kOk)
        << "below the use";
  }
}

TEST_F(MemoryLimitTableTest, OnMiscALimitOutlivesItsCgroup) {
  start_machine(MemoryBackend::kMisc);
  const Cgroup first{"/pod/a", 100}, second{"/pod/a", 200}, renamed{"/x/pod/a", 100};
  ASSERT_EQ(set(first, 10), LimitOutcome::kOk);
  remove_cgroup_limits(*machine_, first.name);
  EXPECT_EQ(read(second), LimitOutcome::kOk);
  EXPECT_FALSE(allocate(1, {second}, 11)) << "a stranger";
  EXPECT_EQ(read(renamed), LimitOutcome::kOk) << "the same cgroup in another namespace";
}

TEST_F(MemoryLimitTableTest, OnDmemALimitEndsWithItsCgroup) {
  start_machine(MemoryBackend::kDmem);
  const Cgroup first{"/pod/a", 100}, second{"/pod/a", 200};
  ASSERT_EQ(set(first, 10), LimitOutcome::kOk);
  EXPECT_FALSE(find_memory_limit(*machine_, 0, second));
  EXPECT_TRUE(allocate(1, {second}, 11));
  ASSERT_EQ(set(second, 20), LimitOutcome::kOk);
  EXPECT_FALSE(find_memory_limit(*machine_, 0, first)) << "it has no entry any more";
  remove_cgroup_limits(*machine_, second.name);
  EXPECT_FALSE(has_memory_limits(*machine_));
}

TEST_F(MemoryLimitTableTest, AReloadEndsAllLimitsAndAReplacementThoseOfTheGpu) {
  start_machine(MemoryBackend::kMisc);
  ASSERT_EQ(set(kPod[0], 10), LimitOutcome::kOk);
  replace_gpu(*machine_, 1);
  EXPECT_TRUE(has_memory_limits(*machine_));
  replace_gpu(*machine_, 0);
  EXPECT_FALSE(has_memory_limits(*machine_));
  ASSERT_EQ(set(kPod[0], 10), LimitOutcome::kOk);
  unload_driver(*machine_);
  load_driver(*machine_);
  EXPECT_FALSE(has_memory_limits(*machine_));
}

TEST_F(MemoryLimitTableTest, NoMoreThanTheTableIsCharged) {
  start_machine(MemoryBackend::kDmem);
  for (std::uint32_t pid = 1; pid <= kMaxMemoryCharges; ++pid) ASSERT_TRUE(allocate(pid, kPod, 1));
  EXPECT_FALSE(allocate(9999, kPod, 1));
}

TEST(CgroupLookUp, GoesUpToTheMountPoint) {
  char pattern[] = "/tmp/gpulet-sim-XXXXXX";
  ASSERT_NE(mkdtemp(pattern), nullptr);
  const std::string root = pattern;
  std::filesystem::create_directories(root + "/pod/a");
  std::filesystem::create_directory_symlink(root + "/pod", root + "/link");
  const auto found = look_up_cgroup(root + "/link/../pod//a/");
  EXPECT_TRUE(found.exists);
  EXPECT_FALSE(found.is_version_1);
  ASSERT_GE(found.chain.size(), 3u);
  EXPECT_TRUE(found.chain[0].name.ends_with("/pod/a"));
  EXPECT_TRUE(found.chain[1].name.ends_with("/pod"));
  EXPECT_EQ(found.chain.back().name, "/");
  EXPECT_EQ(found.chain[0].inode, 0u) << "no real cgroup";
  EXPECT_EQ(look_up_cgroup(root + "/link/a").chain[0].name, found.chain[0].name);
  std::ofstream(root + "/pod/a/tasks") << "";
  EXPECT_TRUE(look_up_cgroup(root + "/pod/a").is_version_1);
  const auto gone = look_up_cgroup(root + "/pod/gone");
  EXPECT_FALSE(gone.exists);
  EXPECT_EQ(gone.chain[0].name, found.chain[1].name + "/gone");
  EXPECT_TRUE(look_up_cgroup("").chain.empty());
  EXPECT_TRUE(look_up_cgroup("/" + std::string(kMaxCgroupName, 'x')).chain.empty());
  EXPECT_TRUE(look_up_cgroup_of_process("0").chain.empty());
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace gpulet::sim
