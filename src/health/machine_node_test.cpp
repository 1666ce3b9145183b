#include "health/machine.h"

#include <gtest/gtest.h>

#include "health/test_feed.h"

namespace gpulet::health {
namespace {

// ---- applications ----

TEST(Applications, NeverTakeAGpuAwayAlone) {
  Feed feed;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    feed.xid(kGpu, 31, Source::kKernelLog, 7);
    feed.xid(kGpu, 31);
    feed.pass(seconds(2));
  }
  EXPECT_EQ(feed.picture(), ".....");
}

TEST(Applications, DifferentOnesWithinTheWindowDo) {
  struct Row {
    const char* what;
    Policy policy;
    seconds apart;
    std::vector<std::pair<std::uint32_t, std::string>> applications;  // pid, owner
    bool away;
  };
  Policy five, never, wide;
  five.repeat_count = 5;
  never.repeat_count = 0;
  wide.repeat_window = std::chrono::hours(2);
  const Row rows[] = {
      {"two", {}, seconds(5), {{1, ""}, {2, ""}}, false},
      {"three", {}, seconds(5), {{1, ""}, {2, ""}, {3, ""}}, true},
      {"one of them twice", {}, seconds(5), {{1, ""}, {2, ""}, {1, ""}}, false},
      {"too far apart", {}, seconds(301), {{1, ""}, {2, ""}, {3, ""}}, false},
      {"just within", {}, seconds(300), {{1, ""}, {2, ""}, {3, ""}}, true},
      {"a wider window", wide, seconds(3600), {{1, ""}, {2, ""}, {3, ""}}, true},
      {"one Pod that restarts", {}, seconds(5), {{1, "a"}, {2, "a"}, {3, "a"}, {4, "a"}}, false},
      {"three Pods", {}, seconds(5), {{1, "a"}, {1, "b"}, {1, "c"}}, true},
      {"five wanted", five, seconds(5), {{1, ""}, {2, ""}, {3, ""}, {4, ""}}, false},
      {"never", never, seconds(5), {{1, ""}, {2, ""}, {3, ""}, {4, ""}}, false},
  };
  for (const auto& row : rows) {
    Feed feed(row.policy);
    for (const auto& [pid, owner] : row.applications) {
      feed.pass(row.apart);
      feed.xid(kGpu, 31, Source::kKernelLog, pid, owner);
    }
    EXPECT_EQ(feed.state(kGpu), row.away ? State::kQuarantined : State::kHealthy) << row.what;
    EXPECT_EQ(feed.state(kCut), State::kHealthy) << row.what;
  }
}

TEST(Applications, RepeatsEndWhenTheyAreGoneAndBeginAnew) {
  Feed feed;
  for (std::uint32_t pid = 1; pid <= 3; ++pid) feed.xid(kGpu, 13, Source::kKernelLog, pid);
  EXPECT_EQ(feed.reason(kGpu), "errors of different applications, one after the other");
  EXPECT_EQ(feed.until_offered(kGpu, minutes(5)), seconds(-1));
  feed.tell(kGpu, ProcessReading{2});
  EXPECT_EQ(feed.state(kGpu), State::kQuarantined);
  feed.pass(seconds(1));
  feed.tell(kGpu, ProcessReading{0});
  EXPECT_EQ(feed.until_offered(kGpu), seconds(30));
  feed.pass(seconds(1));
  feed.xid(kGpu, 13, Source::kKernelLog, 4);
  EXPECT_EQ(feed.state(kGpu), State::kHealthy);
}

// ---- the filter ----

TEST(Filter, SaysWhichXidsCount) {
  struct Row {
    const char *disable, *enable;
    std::uint64_t code;
    State state;
  };
  const Row rows[] = {
      {"", "", 109, State::kQuarantined},  // NVIDIA's own list says nothing; its catalogue does
      {"109", "", 109, State::kHealthy},    {"xids", "", 79, State::kHealthy},
      {"all", "", 79, State::kUnmonitored}, {"all", "79", 79, State::kLost},
      {"all", "79", 95, State::kHealthy},   {"", "13", 13, State::kRecovering},
      {"", "all", 31, State::kRecovering},  {"31", "all", 31, State::kRecovering},
      {"", "all", 79, State::kLost},
  };
  for (const auto& row : rows) {
    Feed feed({}, XidFilter(row.disable, row.enable));
    feed.xid(kGpu, row.code);
    EXPECT_EQ(name(feed.state(kGpu)), name(row.state)) << row.disable << "|" << row.enable << " " << row.code;
  }
}

TEST(Filter, WhatCannotBeReachedIsNotOfferedWhateverIsChecked) {
  Feed feed({}, XidFilter("all", ""));
  feed.tell(kGpu, HandleReading{Answer::kLost, "GPU is lost"});
  EXPECT_EQ(feed.picture(), "luuuu");
  feed.tell(kCut, RowRemapReading{false, true, 0, 0});
  EXPECT_EQ(feed.picture(), "luuuu");
}

// ---- an operator's hand ----

TEST(Cordon, DrainsThenWaitsForTheOperator) {
  Feed feed;
  feed.tell(kGpu, ProcessReading{1});
  feed.tell(kGpu, OperatorWish{Wish::kCordon, "new riser"});
  EXPECT_EQ(feed.state(kGpu), State::kDraining);
  EXPECT_EQ(feed.reason(kGpu), "cordoned: new riser");
  feed.tell(kGpu, ProcessReading{0});
  EXPECT_EQ(feed.state(kGpu), State::kQuarantined);
  EXPECT_EQ(feed.machine.standing(kGpu)->comes_back, "gpulet uncordon");
  feed.poll_for(minutes(10));
  EXPECT_EQ(feed.state(kGpu), State::kQuarantined);
  feed.tell(kGpu, OperatorWish{Wish::kUncordon, ""});
  EXPECT_EQ(feed.state(kGpu), State::kHealthy);
}

// ---- the node ----

TEST(Node, UnreadableAndGoneGpusAreNotOffered) {
  struct Row {
    Code code;
    State state;
  };
  for (const auto& row :
       {Row{Code::kDeviceLost, State::kLost}, Row{Code::kDeadlineExceeded, State::kQuarantined},
        Row{Code::kIo, State::kQuarantined}, Row{Code::kUnavailable, State::kQuarantined}}) {
    Feed feed;
    auto snapshot = node();
    snapshot.gpus[0].unreadable = Error(row.code, "what happened");
    feed.machine.on_snapshot(snapshot, feed.now);
    EXPECT_EQ(feed.state(kGpu), row.state);
    EXPECT_EQ(feed.machine.judge(snapshot).gpus[0].health.reason, "cannot be read: what happened");
    EXPECT_EQ(feed.state(kCut), State::kHealthy);
  }
  // One that nobody has told the machine of.
  auto snapshot = node();
  snapshot.gpus[0].unreadable = Error(Code::kIo, "what happened");
  const auto judged = Machine({}, XidFilter("", "")).judge(snapshot);
  EXPECT_EQ(judged.gpus[0].health.reason, "cannot be read: what happened");
  EXPECT_TRUE(judged.gpus[1].health.healthy);
}

TEST(Node, AGpuThatGoesAndComesBackIsProvedFirst) {
  Feed feed;
  auto without = node();
  without.gpus.erase(without.gpus.begin());
  feed.machine.on_snapshot(without, feed.now);
  EXPECT_EQ(feed.state(kGpu), State::kLost);
  EXPECT_EQ(feed.reason(kGpu), "cannot be read: no longer in the node");
  EXPECT_TRUE(feed.machine.suspects().empty());  // there is nothing to ask
  feed.pass(minutes(1));
  feed.machine.on_snapshot(node(), feed.now);
  EXPECT_EQ(feed.state(kGpu), State::kRecovering);
  EXPECT_EQ(feed.until_offered(kGpu), seconds(30));
  // Away for good, it is forgotten.
  feed.machine.on_snapshot(without, feed.now);
  feed.pass(std::chrono::hours(24 * 8));
  feed.machine.advance(feed.now);
  EXPECT_FALSE(feed.machine.standing(kGpu));
}

TEST(Node, AReplacedCardBeginsAnew) {
  Feed feed;
  feed.xid(kGpu, 119);
  auto snapshot = node();
  snapshot.gpus[0].uuid = DeviceUuid("GPU-new");
  feed.machine.on_snapshot(snapshot, feed.now);
  EXPECT_FALSE(feed.machine.standing(kGpu));
  EXPECT_TRUE(offered(feed.state(scope("GPU-new"))));
  // A card that was only moved takes its faults along.
  Feed moved;
  moved.xid(kGpu, 119);
  auto other = node();
  other.gpus[0].pci.bus = 0x77;
  moved.machine.on_snapshot(other, moved.now);
  EXPECT_EQ(moved.state(kGpu), State::kQuarantined);
}

TEST(Node, UnmonitoredUntilSomethingWouldTell) {
  Machine machine({}, XidFilter("", ""));
  const Time now(seconds(5));
  machine.on_snapshot(node(), now);
  EXPECT_EQ(machine.standing(kGpu)->state, State::kUnmonitored);
  machine.on_evidence({kGpu, now, SourceNotice{Source::kDriverEvents, std::nullopt}});
  EXPECT_EQ(machine.standing(kGpu)->state, State::kHealthy);
  machine.on_evidence({kGpu, now, SourceNotice{Source::kDriverEvents, "this driver has no events"}});
  EXPECT_EQ(machine.standing(kGpu)->state, State::kUnmonitored);
}

TEST(Node, RemembersNoMoreThanItMust) {
  Machine machine({}, XidFilter("", ""));
  const Time now(seconds(5));
  for (unsigned i = 0; i < 2000; ++i) {
    machine.on_evidence({scope("GPU-" + std::to_string(i)), now, XidReport{Source::kDriverEvents, 95}});
  }
  EXPECT_EQ(machine.standings().size(), kMaxGpus);
  Feed feed;
  for (std::uint64_t i = 0; i < 400; ++i) {
    feed.pass(milliseconds(1));
    feed.xid(kGpu, 1000 + i, Source::kKernelLog, static_cast<std::uint32_t>(i));
    feed.xid(kGpu, 31, Source::kKernelLog, static_cast<std::uint32_t>(i));
  }
  EXPECT_LE(feed.machine.standing(kGpu)->faults.size(), kMaxFaults + kFaultClasses);
}

}  // namespace
}  // namespace gpulet::health
