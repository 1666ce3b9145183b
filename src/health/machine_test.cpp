#include "health/machine.h"

#include <gtest/gtest.h>

#include <functional>

#include "health/test_feed.h"

namespace gpulet::health {
namespace {

// ---- scope ----

TEST(Scope, IsWhatTheEvidenceNamesAndNothingElse) {
  struct Row {
    Scope about;
    std::uint64_t code;
    const char* picture;
  };
  const Row rows[] = {
      {kGpu, 95, "q...."},
      {kCut, 95, ".qqqq"},                  // without an instance: the GPU and all of its MIG devices
      {scope("GPU-1", 1), 95, "..qq."},     // a GPU instance: all of its compute instances
      {scope("GPU-1", 1, 1), 95, "...q."},  // one compute instance
      {scope("GPU-1", 2, 0), 95, "....q"},
      {scope("GPU-1", kNoInstance, 0), 95, ".qqqq"},
      {scope("GPU-1", 7, 0), 95, "....."},  // an instance that is gone
      {scope("GPU-1", 2, 0), 79, ".llll"},  // no part of a GPU falls off the bus alone
      {scope("GPU-0", 1, 0), 95, "q...."},  // an instance of a GPU that is not cut up
      {scope("GPU-1", 1, 1), 13, "....."},  // an application's
  };
  for (const auto& row : rows) {
    Feed feed;
    feed.xid(row.about, row.code);
    EXPECT_EQ(feed.picture(), row.picture)
        << row.about.gpu << " " << row.about.gpu_instance << " " << row.code;
    std::string marks(row.picture);
    for (char& mark : marks) mark = mark == '.' ? '.' : 'x';
    EXPECT_EQ(feed.judged(), marks);
  }
}

TEST(Scope, FollowsTheCutting) {
  Feed feed;
  feed.xid(scope("GPU-1", 2, 0), 95);
  feed.there.gpus[1].mig_enabled = false;
  feed.there.gpus[1].mig_devices.clear();
  feed.machine.on_snapshot(feed.there, feed.now);
  EXPECT_EQ(feed.picture(), ".q");  // it is now part of the whole
}

TEST(Changes, AreToldOnceForEachDevice) {
  Feed feed;
  const auto changes = feed.xid(kCut, 95);
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0].before.state, State::kHealthy);
  EXPECT_EQ(changes[0].after.state, State::kQuarantined);
  EXPECT_EQ(changes[0].after.since, feed.now);
  for (int i = 0; i < 100; ++i) {
    feed.pass(milliseconds(1));
    EXPECT_TRUE(feed.xid(kCut, 95).empty());
  }
  const auto standing = *feed.machine.standing(kCut);
  ASSERT_EQ(standing.faults.size(), 1u);
  EXPECT_EQ(standing.faults[0].count, 101u);
  EXPECT_EQ(standing.faults[0].last_seen, feed.now);
}

// ---- coming back ----

TEST(Recovery, ByTheDriversWordWhereTheCatalogueLinksIt) {
  Feed feed;
  feed.xid(kGpu, 79);
  EXPECT_EQ(feed.state(kGpu), State::kLost);
  EXPECT_EQ(feed.reason(kGpu), "XID 79: GPU has fallen off the bus");
  feed.pass(seconds(1));
  feed.good(kGpu);
  EXPECT_EQ(feed.state(kGpu), State::kLost);  // said too early to count
  feed.pass(seconds(1));
  const auto changes = feed.good(kGpu);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].after.state, State::kRecovering);
  EXPECT_EQ(changes[0].after.comes_back, "once its checks have passed for 30 s");
  EXPECT_EQ(changes[0].after.due, feed.now + seconds(30));
  EXPECT_EQ(feed.machine.next_due(), feed.now + seconds(30));
  EXPECT_EQ(feed.until_offered(kGpu), seconds(30));
  EXPECT_EQ(feed.state(kGpu), State::kHealthy);
  EXPECT_EQ(feed.reason(kGpu), "");
  EXPECT_TRUE(feed.machine.suspects().empty());
}

TEST(Recovery, NeedsAResetWhereTheDriverDoesNotSpeakForIt) {
  const std::pair<const char*, std::function<void(Feed&)>> proofs[] = {
      {"nothing", {}},
      {"a reset", [](Feed& feed) { feed.tell(kGpu, ResetDone{}); }},
      {"energy fell", [](Feed& feed) { feed.tell(kGpu, EnergyReading{5}); }},
      {"replays fell", [](Feed& feed) { feed.tell(kGpu, PcieReading{1, 16, 16}); }},
      {"violations fell", [](Feed& feed) { feed.tell(kGpu, ViolationReading{seconds(1), seconds(9)}); }},
      {"away and back",
       [](Feed& feed) {
         feed.tell(kGpu, HandleReading{Answer::kLost, "lost"});
         feed.pass(seconds(1));
         feed.tell(kGpu, HandleReading{});
       }},
      {"an operator", [](Feed& feed) { feed.tell(kGpu, OperatorWish{Wish::kUncordon, ""}); }},
  };
  for (const auto& [what, prove] : proofs) {
    Feed feed;
    feed.tell(kGpu, EnergyReading{100});
    feed.tell(kGpu, PcieReading{7, 16, 16});
    feed.tell(kGpu, ViolationReading{seconds(9), seconds(9)});
    feed.xid(kGpu, 119);
    feed.poll_for(minutes(10));
    EXPECT_EQ(feed.state(kGpu), State::kQuarantined) << what;
    if (!prove) continue;
    prove(feed);
    EXPECT_EQ(feed.state(kGpu), State::kRecovering) << what;
    EXPECT_EQ(feed.until_offered(kGpu), seconds(30)) << what;
  }
}

TEST(Recovery, TrustInTheDriverIsASetting) {
  Policy always, never;
  always.trust_driver = TrustDriver::kAlways;
  never.trust_driver = TrustDriver::kNever;
  Feed trusting(always), doubting(never);
  trusting.xid(kGpu, 119);
  doubting.xid(kGpu, 95);
  EXPECT_EQ(trusting.until_offered(kGpu), seconds(32));
  EXPECT_EQ(doubting.until_offered(kGpu, minutes(10)), seconds(-1));
}

TEST(Recovery, OldDriversDoNotSpeakForAnything) {
  Feed feed({}, XidFilter("", ""), node("550.54.15"));
  feed.xid(kGpu, 95);
  EXPECT_EQ(feed.until_offered(kGpu, minutes(10)), seconds(-1));
  feed.tell(kGpu, ResetDone{});
  EXPECT_EQ(feed.until_offered(kGpu), seconds(30));
}

TEST(Recovery, EachCheckMustPassWithoutABreak) {
  EccReading grown, threshold;
  grown.uncorrected[0] = 1;
  const std::pair<const char*, Body> breaks[] = {
      {"handle", HandleReading{Answer::kSilent, "no answer"}},
      {"action", RecoveryActionReading{1}},
      {"ecc", grown},
      {"remap", RowRemapReading{false, false, 1, 0}},
      {"remap pending", RowRemapReading{true, false, 0, 0}},
  };
  for (const auto& [what, body] : breaks) {
    Feed feed;
    feed.xid(kGpu, 95);
    feed.tell(kGpu, OperatorWish{Wish::kUncordon, ""});
    feed.poll_for(seconds(29));
    EXPECT_EQ(feed.state(kGpu), State::kRecovering) << what;
    feed.pass(milliseconds(500));
    feed.tell(kGpu, body);
    EXPECT_FALSE(offered(feed.state(kGpu))) << what;
    // The next reading, half a second or so later, is the first that is well again.
    EXPECT_EQ(feed.until_offered(kGpu), seconds(31)) << what;
  }
}

TEST(Recovery, ASilentSourceHoldsItAndAnAbsentOneDoesNot) {
  for (const auto source : {Source::kRecoveryAction, Source::kEcc, Source::kRowRemap}) {
    Machine machine({}, XidFilter("", ""));
    Time now(seconds(5));
    machine.on_snapshot(node(), now);
    machine.on_evidence({kGpu, now, SourceNotice{Source::kProbe, "none"}});
    machine.on_evidence({kGpu, now, XidReport{Source::kDriverEvents, 999}});
    const auto poll = [&] {
      now += seconds(1);
      machine.on_evidence({kGpu, now, HandleReading{}});
      if (source != Source::kRecoveryAction) machine.on_evidence({kGpu, now, RecoveryActionReading{}});
      if (source != Source::kEcc) machine.on_evidence({kGpu, now, EccReading{}});
      if (source != Source::kRowRemap) machine.on_evidence({kGpu, now, RowRemapReading{}});
    };
    for (int i = 0; i < 1000; ++i) poll();
    EXPECT_EQ(machine.standing(kGpu)->state, State::kRecovering) << name(source);
    machine.on_evidence({kGpu, now, SourceNotice{source, "not supported"}});
    ASSERT_EQ(machine.absences(kGpu.gpu).size(), 2u);
    EXPECT_EQ(machine.absences(kGpu.gpu)[0].why, "not supported");
    poll();
    machine.advance(now);
    EXPECT_EQ(machine.standing(kGpu)->state, State::kHealthy) << name(source);
  }
}

TEST(Recovery, TimeAloneHealsNothing) {
  Feed feed;
  feed.xid(kGpu, 999);
  for (int i = 0; i < 1000; ++i) {
    feed.pass(minutes(10));
    EXPECT_TRUE(feed.machine.advance(feed.now).empty());
  }
  EXPECT_EQ(feed.state(kGpu), State::kRecovering);
}

TEST(Recovery, ANewFaultUndoesWhatWasProved) {
  Feed feed;
  feed.xid(kGpu, 95);
  feed.tell(kGpu, OperatorWish{Wish::kUncordon, ""});
  feed.poll_for(seconds(20));
  EXPECT_EQ(feed.state(kGpu), State::kRecovering);
  feed.xid(kGpu, 95);
  EXPECT_EQ(feed.state(kGpu), State::kQuarantined);
  EXPECT_EQ(feed.until_offered(kGpu), seconds(32));  // the driver's word, from then on
}

TEST(Relapse, MakesTheNextQuarantineLonger) {
  Feed feed;
  const seconds expected[] = {seconds(30),  seconds(60),   seconds(120),  seconds(240), seconds(480),
                              seconds(960), seconds(1920), seconds(3600), seconds(3600)};
  for (const auto& hold : expected) {
    feed.xid(kGpu, 999);
    EXPECT_EQ(feed.until_offered(kGpu), hold);
    feed.poll_for(seconds(5));
  }
  EXPECT_EQ(feed.machine.standing(kGpu)->relapses, 8u);
  EXPECT_EQ(feed.machine.standing(kCut)->relapses, 0u);
  feed.pass(std::chrono::hours(25));
  feed.good(kGpu);
  feed.xid(kGpu, 999);
  EXPECT_EQ(feed.until_offered(kGpu), seconds(30));
}

TEST(Relapse, IsNoneWhereTheDriverWasAway) {
  Feed feed;
  for (int i = 0; i < 3; ++i) {
    feed.tell(kGpu, HandleReading{Answer::kDriverAway, "the driver has gone"});
    EXPECT_EQ(feed.state(kGpu), State::kQuarantined);
    feed.pass(seconds(1));
    feed.tell(kGpu, HandleReading{});
    EXPECT_EQ(feed.state(kGpu), State::kHealthy);  // at once
  }
  EXPECT_EQ(feed.machine.standing(kGpu)->relapses, 0u);
}

}  // namespace
}  // namespace gpulet::health
