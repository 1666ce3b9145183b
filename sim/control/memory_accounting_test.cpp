#include "sim/control/memory_accounting.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sim/control/control.h"
#include "sim/state/test_machine.h"

namespace gpulet::sim::control {
namespace {

constexpr std::uint64_t kAccountedMiB = 1u << 20;

class MemoryAccountingTest : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpulet-control-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    directory_ = pattern;
    std::filesystem::create_directories(cgroup());
    const auto machine = small_machine(2);
    set_text(machine->driver.version, "615.71.09");
    auto made = StateFile::create_state(directory_ + "/state", *machine);
    ASSERT_TRUE(made) << made.error().full_message();
    state_ = std::move(*made);
    limit_to(100);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string cgroup() const { return directory_ + "/container"; }
  Cgroup own_cgroup() const { return look_up_cgroup(cgroup()).chain.front(); }
  void limit_to(std::uint64_t mib) {
    ASSERT_EQ(set_memory_limit(*state_.lock_for_edit(), 0, own_cgroup(), 0, mib * kAccountedMiB),
              LimitOutcome::kOk);
  }
  Status load(std::uint32_t pid, std::uint64_t mib, Allocation allocation = Allocation::kOrdinary) {
    return set_load(state_, 0,
                    {mib == 0 ? 0U : 10U, mib, pid, kNoInstance, kNoInstance, cgroup(), allocation});
  }
  std::uint64_t charged_mib() {
    const auto found = find_memory_limit(*state_.lock_for_read(), 0, own_cgroup());
    return found ? found->used / kAccountedMiB : 0;
  }
  std::uint64_t gpu_mib() { return memory_in_use(state_.lock_for_read()->gpus[0]) / kAccountedMiB; }

  std::string directory_;
  StateFile state_;
};

TEST_F(MemoryAccountingTest, ALoadBeyondTheLimitFails) {
  ASSERT_TRUE(load(77, 60));
  EXPECT_EQ(charged_mib(), 60u);
  const auto refused = load(78, 41);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.error().message(), "only 40 MiB are free below the cgroup's memory limit");
  EXPECT_EQ(gpu_mib(), 60u) << "it has no memory";
  ASSERT_TRUE(load(77, 100)) << "a new size replaces the old one";
  ASSERT_TRUE(load(77, 0));
  EXPECT_EQ(charged_mib(), 0u);
  EXPECT_TRUE(set_load(state_, 0, {10, 5000, 79})) << "of another cgroup";
  EXPECT_EQ(set_load(state_, 0, {10, 5, 79, kNoInstance, kNoInstance, cgroup() + "/gone"}).error().code(),
            Code::kNotFound);
}

TEST_F(MemoryAccountingTest, TheKnownWaysPastTheLimitAreNotCharged) {
  ASSERT_TRUE(load(70, 160, Allocation::kTinyObjects));
  EXPECT_EQ(charged_mib(), 10u) << "of 160";
  std::uint32_t pid = 71;
  for (const auto way : {Allocation::kDeadCreator, Allocation::kManaged, Allocation::kRenderNode})
    ASSERT_TRUE(load(pid++, 1000, way));
  EXPECT_EQ(charged_mib(), 10u);
  EXPECT_EQ(gpu_mib(), 3160u) << "the GPU has them all";
}

TEST_F(MemoryAccountingTest, AChangeOfTheKeyEndsLimits) {
  ASSERT_TRUE(set_memory_accounting(state_, MemoryBackend::kAuto, 7));
  EXPECT_TRUE(has_memory_limits(*state_.lock_for_read()));
  EXPECT_EQ(state_.lock_for_read()->memory.misreported_hard, 7 * kAccountedMiB);
  ASSERT_TRUE(set_memory_accounting(state_, MemoryBackend::kDmem));
  EXPECT_FALSE(has_memory_limits(*state_.lock_for_read()));
  EXPECT_EQ(state_.lock_for_read()->memory.misreported_hard, 0u);
  EXPECT_EQ(memory_backend(*state_.lock_for_read()), MemoryBackend::kDmem);
}

}  // namespace
}  // namespace gpulet::sim::control
