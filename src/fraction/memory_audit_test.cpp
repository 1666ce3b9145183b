#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "fraction/memory_audit.h"

namespace gpulet::fraction {
namespace {

const ContainerKey kTrainer{"uid-a", "trainer"}, kServer{"uid-b", "server"}, kSidecar{"uid-b", "sidecar"};
const DeviceUuid kGpu("GPU-0"), kOtherGpu("GPU-1");

AuditedProcess process_of(unsigned pid, std::uint64_t mib, std::optional<ContainerKey> container) {
  return {pid, mebibytes(mib), std::move(container)};
}

TEST(MemoryAuditTest, EachContainerHasTheMemoryOfItsProcesses) {
  const GpuMemoryUse gpu{
      mebibytes(40'000),
      {process_of(1, 3000, kTrainer), process_of(2, 6000, kTrainer), process_of(3, 500, kServer),
       process_of(4, 9000, kSidecar), process_of(5, 7000, std::nullopt)}};
  const MemoryHolder holders[] = {
      {kTrainer, mebibytes(8192)}, {kServer, mebibytes(8192)}, {kSidecar, Bytes{}}};
  const auto uses = audit_gpu_memory(gpu, holders);
  ASSERT_EQ(uses.size(), 2u) << "a container without a limit is not audited";
  EXPECT_EQ(uses[0], (MemoryUse{kTrainer, mebibytes(8192), mebibytes(9000), {1, 2}}));
  EXPECT_TRUE(uses[0].is_exceeded());
  EXPECT_EQ(uses[1], (MemoryUse{kServer, mebibytes(8192), mebibytes(500), {3}}))
      << "with several holders nobody is charged with the memory of no process";
  EXPECT_FALSE(uses[1].is_exceeded());
}

TEST(MemoryAuditTest, ExactlyTheLimitIsNotExceeded) {
  const GpuMemoryUse gpu{std::nullopt, {process_of(1, 8192, kTrainer)}};
  const MemoryHolder holder{kTrainer, mebibytes(8192)};
  EXPECT_FALSE(audit_gpu_memory(gpu, std::span(&holder, 1))[0].is_exceeded());
}

TEST(MemoryAuditTest, TheOnlyHolderHasTheMemoryOfNoProcess) {
  const MemoryHolder holder{kTrainer, mebibytes(1024)};
  const auto used_of = [&](const GpuMemoryUse& gpu) {
    return audit_gpu_memory(gpu, std::span(&holder, 1))[0].used;
  };
  // As measured on an H100: 518 MiB of the process, 9 MiB of the driver.
  EXPECT_EQ(used_of({mebibytes(527), {process_of(1, 518, kTrainer)}}), mebibytes(518));
  // 4 GiB of managed memory.
  EXPECT_EQ(used_of({mebibytes(527 + 4096), {process_of(1, 518, kTrainer)}}),
            mebibytes(527 + 4096 - 64 - 16));
  // What another process has is not its own, nor what that may have beside it.
  EXPECT_EQ(used_of({mebibytes(9000), {process_of(1, 518, kTrainer), process_of(2, 10, std::nullopt)}}),
            mebibytes(518));
  EXPECT_EQ(used_of({mebibytes(4700), {process_of(1, 518, kTrainer), process_of(2, 4100, std::nullopt)}}),
            mebibytes(518));
  // Without the memory of each process, and of the GPU, nothing can be said.
  EXPECT_EQ(used_of({mebibytes(4700), {process_of(1, 518, kTrainer), {2, std::nullopt, std::nullopt}}}),
            mebibytes(518));
  EXPECT_EQ(used_of({std::nullopt, {process_of(1, 518, kTrainer)}}), mebibytes(518));
  // Memory that a descriptor keeps after its process.
  EXPECT_EQ(used_of({mebibytes(2048), {}}), mebibytes(2048 - 64));
}

RC_GTEST_PROP(MemoryAuditProperty, NobodyIsChargedForAnother, ()) {
  const std::vector<ContainerKey> keys = {kTrainer, kServer, kSidecar};
  GpuMemoryUse gpu;
  const auto count = *rc::gen::inRange(0u, 20u);
  std::uint64_t total = 0;
  std::map<ContainerKey, std::uint64_t> expected;
  for (unsigned pid = 0; pid < count; ++pid) {
    const auto mib = *rc::gen::inRange<std::uint64_t>(0, 5000);
    const auto whose = *rc::gen::inRange(0u, 4u);
    total += mib;
    if (whose < keys.size()) expected[keys[whose]] += mib;
    gpu.processes.push_back(
        process_of(pid, mib, whose < keys.size() ? std::optional(keys[whose]) : std::nullopt));
  }
  gpu.used = mebibytes(total + *rc::gen::inRange<std::uint64_t>(0, 9000));
  std::vector<MemoryHolder> holders;
  for (const auto& key : keys) holders.push_back({key, mebibytes(1)});
  const auto uses = audit_gpu_memory(gpu, holders);
  RC_ASSERT(uses.size() == keys.size());
  for (const auto& use : uses) RC_ASSERT(use.used == mebibytes(expected[use.container]));
}

TEST(ExcessTrackerTest, ActsAtTheSecondReadingInARow) {
  ExcessTracker tracker;
  EXPECT_EQ(tracker.observe(kTrainer, kGpu, false), Excess::kNone);
  EXPECT_EQ(tracker.observe(kTrainer, kGpu, true), Excess::kNew);
  EXPECT_EQ(tracker.observe(kTrainer, kOtherGpu, true), Excess::kNew) << "each GPU for itself";
  EXPECT_EQ(tracker.observe(kTrainer, kGpu, true), Excess::kConfirmed);
  EXPECT_EQ(tracker.observe(kServer, kGpu, true), Excess::kNew) << "each container for itself";
  EXPECT_EQ(tracker.observe(kTrainer, kGpu, true), Excess::kOngoing);
  EXPECT_EQ(tracker.observe(kTrainer, kGpu, true), Excess::kOngoing);
  EXPECT_EQ(tracker.observe(kTrainer, kGpu, false), Excess::kNone);
  EXPECT_EQ(tracker.observe(kTrainer, kGpu, true), Excess::kNew);
  tracker.retain_containers({kServer});
  EXPECT_EQ(tracker.observe(kTrainer, kGpu, true), Excess::kNew);
  EXPECT_EQ(tracker.observe(kServer, kGpu, true), Excess::kConfirmed);
}

}  // namespace
}  // namespace gpulet::fraction
