// What outlives the process, and what a reboot or another card makes of it.
#include <gtest/gtest.h>

#include "health/test_feed.h"

namespace gpulet::health {
namespace {

const std::string kBoot = "boot-1";

Clock clock_of(const Feed& feed) { return {feed.now, WallTime(std::chrono::hours(490'000))}; }

// A new process, some time later, on the same node.
Machine restarted(const Feed& feed, const std::string& boot, const inventory::Snapshot& snapshot,
                  Time now = Time(seconds(9))) {
  Machine machine({}, XidFilter("", ""));
  const Clock clock{now, clock_of(feed).wall + seconds(60)};
  machine.restore(feed.machine.save(clock_of(feed), kBoot), boot, clock);
  machine.on_snapshot(snapshot, now);
  return machine;
}

TEST(Kept, FaultsOutliveTheProcess) {
  Feed feed;
  feed.xid(scope("GPU-1", 1, 1), 119);
  feed.tell(kGpu, OperatorWish{Wish::kCordon, "new riser"});
  feed.pass(seconds(30));
  const auto machine = restarted(feed, kBoot, node());
  const auto broken = *machine.standing(scope("GPU-1", 1, 1));
  EXPECT_EQ(broken.state, State::kQuarantined);
  EXPECT_EQ(broken.reason, "XID 119: GSP did not answer a call in time");
  EXPECT_EQ(broken.since, Time(seconds(9)) - seconds(90));
  EXPECT_TRUE(offered(machine.standing(scope("GPU-1", 1, 0))->state));
  EXPECT_EQ(machine.standing(kGpu)->reason, "cordoned: new riser");
}

TEST(Kept, ARebootProvesWhatAResetWould) {
  Feed feed;
  feed.xid(kGpu, 119);
  feed.tell(scope("GPU-1"), OperatorWish{Wish::kCordon, ""});
  const auto machine = restarted(feed, "boot-2", node());
  EXPECT_EQ(machine.standing(kGpu)->state, State::kRecovering);
  EXPECT_EQ(machine.standing(scope("GPU-1"))->state, State::kDraining);  // an operator's word stands
}

TEST(Kept, RelapsesAreRemembered) {
  Feed feed;
  for (int i = 0; i < 3; ++i) {
    feed.xid(kGpu, 999);
    feed.until_offered(kGpu);
  }
  auto machine = restarted(feed, kBoot, node());
  EXPECT_EQ(machine.standing(kGpu)->relapses, 2u);
  machine.on_evidence({kGpu, Time(seconds(10)), XidReport{Source::kDriverEvents, 999}});
  EXPECT_EQ(machine.standing(kGpu)->relapses, 3u);
}

TEST(Kept, AReplacedCardStartsClean) {
  Feed feed;
  feed.xid(kGpu, 119);
  auto snapshot = node();
  snapshot.gpus[0].uuid = DeviceUuid("GPU-new");
  const auto machine = restarted(feed, "boot-2", snapshot);
  EXPECT_FALSE(machine.standing(kGpu));
  EXPECT_TRUE(offered(machine.standing(scope("GPU-new"))->state));
  EXPECT_EQ(machine.standing(scope("GPU-new"))->relapses, 0u);
}

TEST(Kept, AClockThatWasSetBackMakesNothingYoungerThanNow) {
  Feed feed;
  feed.xid(kGpu, 119);
  Machine machine({}, XidFilter("", ""));
  const Clock clock{Time(seconds(9)), WallTime(std::chrono::hours(1))};
  machine.restore(feed.machine.save(clock_of(feed), kBoot), "boot-2", clock);
  machine.on_snapshot(node(), clock.now);
  EXPECT_EQ(machine.standing(kGpu)->state, State::kRecovering);
  EXPECT_LT(machine.standing(kGpu)->since, clock.now);
}

TEST(Kept, TheRevisionMovesWithWhatIsKept) {
  Feed feed;
  auto moved = [&, last = feed.machine.revision()]() mutable {
    return std::exchange(last, feed.machine.revision()) != feed.machine.revision();
  };
  feed.good(kGpu);
  feed.xid(kGpu, 31);
  EXPECT_FALSE(moved());
  feed.xid(kGpu, 999);
  EXPECT_TRUE(moved());
  feed.xid(kGpu, 999);
  EXPECT_FALSE(moved());
  feed.until_offered(kGpu);
  EXPECT_TRUE(moved());
  feed.tell(kGpu, OperatorWish{Wish::kCordon, ""});
  EXPECT_TRUE(moved());
  EXPECT_TRUE(Feed().machine.save({}, kBoot).gpus.empty());
}

}  // namespace
}  // namespace gpulet::health
