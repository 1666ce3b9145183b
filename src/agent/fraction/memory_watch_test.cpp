#include <gtest/gtest.h>

#include "agent/fraction/test_memory_auditor.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using config::ExceededAction;

// While the driver's thread compares the use, the loop has a turn for each list of processes.
class WatchedAuditTest : public AuditTest {
 protected:
  void SetUp() override {
    has_watch = true;
    add_pod("a", "8Gi", {"GPU-0::0"});
    add_process(10, "a", 5000);
    uses[kAuditedGpu].used = mebibytes(5000);
    start(ExceededAction::kKill);
    loop.advance(1ms);
    ASSERT_EQ(calls.size(), 1u);
    ASSERT_EQ(watches, 1u);
  }
  void exceed() {
    uses[kAuditedGpu].processes[0].memory = mebibytes(9000);
    uses[kAuditedGpu].used = mebibytes(9000);
  }
};

TEST_F(WatchedAuditTest, ListsProcessesOnceForEachWatch) {
  loop.advance(10 * kReadingsPerList * kAuditInterval);
  EXPECT_EQ(calls.size(), 11u);
  EXPECT_EQ(process_lists, 11u);
  EXPECT_EQ(watches, 11u);
}

TEST_F(WatchedAuditTest, SeesAChangeWithinASecond) {
  loop.advance(2 * kAuditInterval);
  exceed();
  loop.advance(kAuditInterval);
  EXPECT_EQ(reasons(), Reasons{kMemoryExceededReason});
  EXPECT_EQ(watches, 1u) << "it is read every second while it is above its limit";
  loop.advance(kConfirmationDelay);
  EXPECT_EQ(killed, (Killed{{10, kId}}));
  uses[kAuditedGpu] = {.used = mebibytes(0), .processes = {}};
  loop.advance(2 * kAuditInterval);
  EXPECT_EQ(watches, 2u);
}

// The driver's thread would say nothing: the use was the same before.
TEST_F(WatchedAuditTest, ANewLimitEndsIt) {
  add_process(11, "b", 9000, kOtherId);
  uses[kAuditedGpu].used = mebibytes(14'000);
  loop.advance(2 * kAuditInterval + 600ms);
  EXPECT_TRUE(events.empty());
  add_pod("b", "8Gi", {"GPU-0::1"}, kOtherId);
  auditor->on_allocated();
  loop.advance(400ms);
  ASSERT_EQ(reasons(), Reasons{kMemoryExceededReason});
  EXPECT_EQ(events[0].pod.uid, "uid-b");
}

TEST_F(WatchedAuditTest, AWatchThatFailsOrHangsIsReplacedByReadings) {
  watch_error = Error(Code::kUnavailable, "the driver is slow");
  loop.advance(kReadingsPerList * kAuditInterval);
  calls.clear();
  watches = 0;
  loop.advance(4 * kAuditInterval);
  EXPECT_EQ(calls.size(), 2u) << "each watch fails after a second, the reading follows a second later";
  EXPECT_EQ(watches, 2u);
  watch_error.reset();
  is_watch_hanging = true;
  exceed();
  loop.advance((kReadingsPerList + 2) * kAuditInterval);
  EXPECT_EQ(reasons().front(), kMemoryExceededReason);
}

TEST_F(WatchedAuditTest, GpusThatFailOrHideTheirUseAreReadEverySecond) {
  driver_error = Error(Code::kUnavailable, "gone");
  loop.advance(kReadingsPerList * kAuditInterval);
  const auto watches_before = watches;
  calls.clear();
  loop.advance(10 * kAuditInterval);
  EXPECT_EQ(calls.size(), 10u);
  driver_error.reset();
  uses[kAuditedGpu].used.reset();
  loop.advance(10 * kAuditInterval);
  EXPECT_EQ(calls.size(), 20u);
  EXPECT_EQ(watches, watches_before);
  holders.clear();
  loop.advance(kLedgerPollInterval + 1s);
  calls.clear();
  loop.advance(1min);
  EXPECT_TRUE(calls.empty());
}

}  // namespace
}  // namespace gpulet::agent
