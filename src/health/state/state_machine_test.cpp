#include <functional>

#include <gtest/gtest.h>

#include "health/state/state_machine.h"
#include "health/state/test_feed.h"

namespace gpulet::health {
namespace {

// ---- scope ----

TEST(Scope, IsThatOfTheEvidence) {
  struct Row {
    Scope about;
    std::uint64_t code;
    const char* picture;
  };
  const Row rows[] = {
      {kGpu, 95, "q...."},
      {kMigGpu, 95, ".qqqq"},                    // without an instance: the GPU and all of its MIG devices
      {make_scope("GPU-1", 1), 95, "..qq."},     // a GPU instance: all of its compute instances
      {make_scope("GPU-1", 1, 1), 95, "...q."},  // one compute instance
      {make_scope("GPU-1", 2, 0), 95, "....q"},
      {make_scope("GPU-1", kNoInstance, 0), 95, ".qqqq"},
      {make_scope("GPU-1", 7, 0), 95, ".qqqq"},  // an instance that it does not have: all of it
      {make_scope("GPU-1", 2, 0), 79, ".llll"},  // no part of a GPU falls off the bus alone
      {make_scope("GPU-0", 1, 0), 95, "q...."},  // an instance of a GPU that is not cut up
      {make_scope("GPU-1", 1, 1), 13, "....."},  // an application's
  };
  for (const auto& row : rows) {
    HealthFeed feed;
    feed.add_xid(row.about, row.code);
    EXPECT_EQ(feed.state_letters(), row.picture)
        << row.about.gpu << " " << row.about.gpu_instance << " " << row.code;
    std::string marks(row.picture);
    for (char& mark : marks) mark = mark == '.' ? '.' : 'x';
    EXPECT_EQ(feed.health_letters(), marks);
  }
}

TEST(Scope, FollowsMigChanges) {
  HealthFeed feed;
  feed.add_xid(make_scope("GPU-1", 2, 0), 95);
  feed.there.gpus[1].mig_enabled = false;
  feed.there.gpus[1].mig_devices.clear();
  feed.machine.apply_snapshot(feed.there, feed.now);
  EXPECT_EQ(feed.state_letters(), ".q");  // it is now part of the whole
}

TEST(StatusChanges, AreReportedOncePerDevice) {
  HealthFeed feed;
  const auto changes = feed.add_xid(kMigGpu, 95);
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0].before.state, DeviceState::kHealthy);
  EXPECT_EQ(changes[0].after.state, DeviceState::kQuarantined);
  EXPECT_EQ(changes[0].after.since, feed.now);
  for (int i = 0; i < 100; ++i) {
    feed.pass_time(milliseconds(1));
    EXPECT_TRUE(feed.add_xid(kMigGpu, 95).empty());
  }
  const auto status = *feed.machine.device_status(kMigGpu);
  ASSERT_EQ(status.faults.size(), 1u);
  EXPECT_EQ(status.faults[0].count, 101u);
  EXPECT_EQ(status.faults[0].last_seen, feed.now);
}

// ---- coming back ----

TEST(Recovery, ByTheRecoveryActionForLinkedXids) {
  HealthFeed feed;
  feed.add_xid(kGpu, 79);
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kLost);
  EXPECT_EQ(feed.reason_of_device(kGpu), "XID 79: GPU has fallen off the bus");
  feed.pass_time(seconds(1));
  feed.add_good_readings(kGpu);
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kLost);  // reported too early to count
  feed.pass_time(seconds(1));
  const auto changes = feed.add_good_readings(kGpu);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].after.state, DeviceState::kRecovering);
  EXPECT_EQ(changes[0].after.recovery_text, "once its checks have passed for 30 s");
  EXPECT_EQ(changes[0].after.due, feed.now + seconds(30));
  EXPECT_EQ(feed.machine.next_recovery_time(), feed.now + seconds(30));
  EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(30));
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kHealthy);
  EXPECT_EQ(feed.reason_of_device(kGpu), "");
  EXPECT_TRUE(feed.machine.withdrawn_gpus().empty());
}

TEST(Recovery, NeedsAResetForXidsThatAreNotLinked) {
  const std::pair<const char*, std::function<void(HealthFeed&)>> proofs[] = {
      {"nothing", {}},
      {"a reset", [](HealthFeed& feed) { feed.feed(kGpu, ResetDone{}); }},
      {"energy fell", [](HealthFeed& feed) { feed.feed(kGpu, EnergyReading{5}); }},
      {"replays fell", [](HealthFeed& feed) { feed.feed(kGpu, PcieReading{1, 16, 16}); }},
      {"violations fell",
       [](HealthFeed& feed) { feed.feed(kGpu, ViolationReading{seconds(1), seconds(9)}); }},
      {"away and back",
       [](HealthFeed& feed) {
         feed.feed(kGpu, HandleReading{Reachability::kLost, "lost"});
         feed.pass_time(seconds(1));
         feed.feed(kGpu, HandleReading{});
       }},
      {"an operator",
       [](HealthFeed& feed) { feed.feed(kGpu, OperatorCommand{OperatorAction::kUncordon, ""}); }},
  };
  for (const auto& [what, prove] : proofs) {
    HealthFeed feed;
    feed.feed(kGpu, EnergyReading{100});
    feed.feed(kGpu, PcieReading{7, 16, 16});
    feed.feed(kGpu, ViolationReading{seconds(9), seconds(9)});
    feed.add_xid(kGpu, 119);
    feed.poll_for(minutes(10));
    EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kQuarantined) << what;
    if (!prove) continue;
    prove(feed);
    EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kRecovering) << what;
    EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(30)) << what;
  }
}

TEST(Recovery, TrustInTheRecoveryActionIsASetting) {
  Policy always, never;
  always.trust_recovery_action = RecoveryActionTrust::kAlways;
  never.trust_recovery_action = RecoveryActionTrust::kNever;
  HealthFeed trusting(always), doubting(never);
  trusting.add_xid(kGpu, 119);
  doubting.add_xid(kGpu, 95);
  EXPECT_EQ(trusting.time_until_allocatable(kGpu), seconds(32));
  EXPECT_EQ(doubting.time_until_allocatable(kGpu, minutes(10)), seconds(-1));
}

TEST(Recovery, OldDriversHaveNoRecoveryAction) {
  HealthFeed feed({}, XidFilter("", ""), two_gpu_snapshot("550.54.15"));
  feed.add_xid(kGpu, 95);
  EXPECT_EQ(feed.time_until_allocatable(kGpu, minutes(10)), seconds(-1));
  feed.feed(kGpu, ResetDone{});
  EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(30));
}

TEST(Recovery, EachCheckMustPassWithoutABreak) {
  EccReading grown;
  grown.uncorrected[0] = 1;
  const std::pair<const char*, EvidenceBody> breaks[] = {
      {"handle", HandleReading{Reachability::kSilent, "no answer"}},
      {"action", RecoveryActionReading{1}},
      {"ecc", grown},
      {"remap", RowRemapReading{false, false, 1, 0}},
      {"remap pending", RowRemapReading{true, false, 0, 0}},
  };
  for (const auto& [what, body] : breaks) {
    HealthFeed feed;
    feed.add_xid(kGpu, 95);
    feed.feed(kGpu, OperatorCommand{OperatorAction::kUncordon, ""});
    feed.poll_for(seconds(29));
    EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kRecovering) << what;
    feed.pass_time(milliseconds(500));
    feed.feed(kGpu, body);
    EXPECT_FALSE(is_allocatable(feed.state_of_device(kGpu))) << what;
    // The next reading, half a second or so later, is the first that is well again.
    EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(31)) << what;
  }
}

TEST(Recovery, WaitsForASilentSourceButNotForAnUnavailableOne) {
  for (const auto source : {Source::kRecoveryAction, Source::kEcc, Source::kRowRemap}) {
    HealthStateMachine machine({}, XidFilter("", ""));
    Time now(seconds(5));
    machine.apply_snapshot(two_gpu_snapshot(), now);
    machine.add_evidence({kGpu, now, SourceNotice{Source::kProbe, "none"}});
    machine.add_evidence({kGpu, now, XidReport{Source::kDriverEvents, 999}});
    const auto poll = [&] {
      now += seconds(1);
      machine.add_evidence({kGpu, now, HandleReading{}});
      if (source != Source::kRecoveryAction) machine.add_evidence({kGpu, now, RecoveryActionReading{}});
      if (source != Source::kEcc) machine.add_evidence({kGpu, now, EccReading{}});
      if (source != Source::kRowRemap) machine.add_evidence({kGpu, now, RowRemapReading{}});
    };
    for (int i = 0; i < 1000; ++i) poll();
    EXPECT_EQ(machine.device_status(kGpu)->state, DeviceState::kRecovering) << enum_name(source);
    machine.add_evidence({kGpu, now, SourceNotice{source, "not supported"}});
    ASSERT_EQ(machine.unavailable_sources(kGpu.gpu).size(), 2u);
    EXPECT_EQ(machine.unavailable_sources(kGpu.gpu)[0].reason, "not supported");
    poll();
    machine.advance_to(now);
    EXPECT_EQ(machine.device_status(kGpu)->state, DeviceState::kHealthy) << enum_name(source);
  }
}

TEST(Recovery, TimeAloneEndsNothing) {
  HealthFeed feed;
  feed.add_xid(kGpu, 999);
  for (int i = 0; i < 1000; ++i) {
    feed.pass_time(minutes(10));
    EXPECT_TRUE(feed.machine.advance_to(feed.now).empty());
  }
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kRecovering);
}

// Without preflights nothing else would end what the last one has found.
TEST(Recovery, AnOperatorReplacesAPreflightThatRunsNoMore) {
  for (const auto& found : {ProbeReading{false, "wrong sum", ""}, ProbeReading{true, "", "9 GB/s"}}) {
    HealthFeed feed;
    feed.feed(kGpu, found);
    feed.pass_time(seconds(1));
    feed.feed(kGpu, OperatorCommand{OperatorAction::kUncordon, ""});
    feed.poll_for(minutes(1));
    EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kQuarantined) << "a preflight is to come";
    feed.feed(kGpu, SourceNotice{Source::kProbe, "gpulet.preflight is not enabled"});
    feed.poll_for(minutes(1));
    EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kQuarantined);
    feed.feed(kGpu, OperatorCommand{OperatorAction::kUncordon, ""});
    EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kRecovering);
    EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(30));
  }
}

TEST(Recovery, ANewFaultStartsOver) {
  HealthFeed feed;
  feed.add_xid(kGpu, 95);
  feed.feed(kGpu, OperatorCommand{OperatorAction::kUncordon, ""});
  feed.poll_for(seconds(20));
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kRecovering);
  feed.add_xid(kGpu, 95);
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kQuarantined);
  EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(32));  // the driver's word, from then on
}

TEST(Relapse, LengthensTheHoldTime) {
  HealthFeed feed;
  const seconds expected[] = {seconds(30),  seconds(60),   seconds(120),  seconds(240), seconds(480),
                              seconds(960), seconds(1920), seconds(3600), seconds(3600)};
  for (const auto& hold : expected) {
    feed.add_xid(kGpu, 999);
    EXPECT_EQ(feed.time_until_allocatable(kGpu), hold);
    feed.poll_for(seconds(5));
  }
  EXPECT_EQ(feed.machine.device_status(kGpu)->relapses, 8u);
  EXPECT_EQ(feed.machine.device_status(kMigGpu)->relapses, 0u);
  feed.pass_time(std::chrono::hours(25));
  feed.add_good_readings(kGpu);
  feed.add_xid(kGpu, 999);
  EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(30));
}

TEST(Relapse, DoesNotCountADriverReload) {
  HealthFeed feed;
  for (int i = 0; i < 3; ++i) {
    feed.feed(kGpu, HandleReading{Reachability::kDriverAway, "the driver has gone"});
    EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kQuarantined);
    feed.pass_time(seconds(1));
    feed.feed(kGpu, HandleReading{});
    EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kHealthy);  // at once
  }
  EXPECT_EQ(feed.machine.device_status(kGpu)->relapses, 0u);
}

}  // namespace

namespace {

// ---- applications ----

TEST(ApplicationErrors, OfOneApplicationWithdrawNothing) {
  HealthFeed feed;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    feed.add_xid(kGpu, 31, Source::kKernelLog, 7);
    feed.add_xid(kGpu, 31);
    feed.pass_time(seconds(2));
  }
  EXPECT_EQ(feed.state_letters(), ".....");
}

TEST(ApplicationErrors, OfSeveralApplicationsInTheWindowWithdraw) {
  struct Row {
    const char* what;
    Policy policy;
    seconds apart;
    std::vector<std::pair<std::uint32_t, std::string>> applications;  // pid, owner
    bool away;
  };
  Policy five, never, wide;
  five.application_error_threshold = 5;
  never.application_error_threshold = 0;
  wide.application_error_window = std::chrono::hours(2);
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
    HealthFeed feed(row.policy);
    for (const auto& [pid, owner] : row.applications) {
      feed.pass_time(row.apart);
      feed.add_xid(kGpu, 31, Source::kKernelLog, pid, owner);
    }
    EXPECT_EQ(feed.state_of_device(kGpu), row.away ? DeviceState::kQuarantined : DeviceState::kHealthy)
        << row.what;
    EXPECT_EQ(feed.state_of_device(kMigGpu), DeviceState::kHealthy) << row.what;
  }
}

TEST(ApplicationErrors, EndWhenProcessesAreGoneAndStartOver) {
  HealthFeed feed;
  for (std::uint32_t pid = 1; pid <= 3; ++pid) feed.add_xid(kGpu, 13, Source::kKernelLog, pid);
  EXPECT_EQ(feed.reason_of_device(kGpu), "errors of several different applications");
  EXPECT_EQ(feed.time_until_allocatable(kGpu, minutes(5)), seconds(-1));
  feed.feed(kGpu, ProcessReading{2});
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kQuarantined);
  feed.pass_time(seconds(1));
  feed.feed(kGpu, ProcessReading{0});
  EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(30));
  feed.pass_time(seconds(1));
  feed.add_xid(kGpu, 13, Source::kKernelLog, 4);
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kHealthy);
}

// ---- the filter ----

TEST(Filter, SelectsXids) {
  struct Row {
    const char *disable, *enable;
    std::uint64_t code;
    DeviceState state;
  };
  const Row rows[] = {
      {"", "", 109, DeviceState::kQuarantined},  // missing in NVIDIA's list, present in its catalogue
      {"109", "", 109, DeviceState::kHealthy},    {"xids", "", 79, DeviceState::kHealthy},
      {"all", "", 79, DeviceState::kUnmonitored}, {"all", "79", 79, DeviceState::kLost},
      {"all", "79", 95, DeviceState::kHealthy},   {"", "13", 13, DeviceState::kRecovering},
      {"", "all", 31, DeviceState::kRecovering},  {"31", "all", 31, DeviceState::kRecovering},
      {"", "all", 79, DeviceState::kLost},
  };
  for (const auto& row : rows) {
    HealthFeed feed({}, XidFilter(row.disable, row.enable));
    feed.add_xid(kGpu, row.code);
    EXPECT_EQ(enum_name(feed.state_of_device(kGpu)), enum_name(row.state))
        << row.disable << "|" << row.enable << " " << row.code;
  }
}

TEST(Filter, AnUnreachableGpuIsWithdrawnWithoutChecks) {
  HealthFeed feed({}, XidFilter("all", ""));
  feed.feed(kGpu, HandleReading{Reachability::kLost, "GPU is lost"});
  EXPECT_EQ(feed.state_letters(), "luuuu");
  feed.feed(kMigGpu, RowRemapReading{false, true, 0, 0});
  EXPECT_EQ(feed.state_letters(), "luuuu");
}

// ---- an operator's hand ----

TEST(Cordon, DrainsThenWaitsForTheOperator) {
  HealthFeed feed;
  feed.feed(kGpu, ProcessReading{1});
  feed.feed(kGpu, OperatorCommand{OperatorAction::kCordon, "new riser"});
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kDraining);
  EXPECT_EQ(feed.reason_of_device(kGpu), "cordoned: new riser");
  feed.feed(kGpu, ProcessReading{0});
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kQuarantined);
  EXPECT_EQ(feed.machine.device_status(kGpu)->recovery_text, "gpulet uncordon");
  feed.poll_for(minutes(10));
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kQuarantined);
  feed.feed(kGpu, OperatorCommand{OperatorAction::kUncordon, ""});
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kHealthy);
}

// ---- the node ----

TEST(Node, UnreadableAndRemovedGpusAreNotAllocatable) {
  struct Row {
    Code code;
    DeviceState state;
  };
  for (const auto& row :
       {Row{Code::kDeviceLost, DeviceState::kLost}, Row{Code::kDeadlineExceeded, DeviceState::kQuarantined},
        Row{Code::kIo, DeviceState::kQuarantined}, Row{Code::kUnavailable, DeviceState::kQuarantined}}) {
    HealthFeed feed;
    auto snapshot = two_gpu_snapshot();
    snapshot.gpus[0].unreadable = Error(row.code, "what happened");
    feed.machine.apply_snapshot(snapshot, feed.now);
    EXPECT_EQ(feed.state_of_device(kGpu), row.state);
    EXPECT_EQ(feed.machine.annotate_health(snapshot).gpus[0].health.reason, "cannot be read: what happened");
    EXPECT_EQ(feed.state_of_device(kMigGpu), DeviceState::kHealthy);
  }
  // A GPU that the state machine does not know.
  auto snapshot = two_gpu_snapshot();
  snapshot.gpus[0].unreadable = Error(Code::kIo, "what happened");
  const auto judged = HealthStateMachine({}, XidFilter("", "")).annotate_health(snapshot);
  EXPECT_EQ(judged.gpus[0].health.reason, "cannot be read: what happened");
  EXPECT_TRUE(judged.gpus[1].health.healthy);
}

TEST(Node, AGpuThatReturnsMustPassItsChecks) {
  HealthFeed feed;
  auto without = two_gpu_snapshot();
  without.gpus.erase(without.gpus.begin());
  feed.machine.apply_snapshot(without, feed.now);
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kLost);
  EXPECT_EQ(feed.reason_of_device(kGpu), "cannot be read: no longer in the node");
  EXPECT_TRUE(feed.machine.withdrawn_gpus().empty());  // there is nothing to ask
  feed.pass_time(minutes(1));
  feed.machine.apply_snapshot(two_gpu_snapshot(), feed.now);
  EXPECT_EQ(feed.state_of_device(kGpu), DeviceState::kRecovering);
  EXPECT_EQ(feed.time_until_allocatable(kGpu), seconds(30));
  // Away for good, it is forgotten.
  feed.machine.apply_snapshot(without, feed.now);
  feed.pass_time(std::chrono::hours(24 * 8));
  feed.machine.advance_to(feed.now);
  EXPECT_FALSE(feed.machine.device_status(kGpu));
}

TEST(Node, AReplacedCardStartsClean) {
  HealthFeed feed;
  feed.add_xid(kGpu, 119);
  auto snapshot = two_gpu_snapshot();
  snapshot.gpus[0].uuid = DeviceUuid("GPU-new");
  feed.machine.apply_snapshot(snapshot, feed.now);
  EXPECT_FALSE(feed.machine.device_status(kGpu));
  EXPECT_TRUE(is_allocatable(feed.state_of_device(make_scope("GPU-new"))));
  // A card that was only moved takes its faults along.
  HealthFeed moved;
  moved.add_xid(kGpu, 119);
  auto other = two_gpu_snapshot();
  other.gpus[0].pci.bus = 0x77;
  moved.machine.apply_snapshot(other, moved.now);
  EXPECT_EQ(moved.state_of_device(kGpu), DeviceState::kQuarantined);
}

TEST(Node, IsUnmonitoredUntilASourceReports) {
  HealthStateMachine machine({}, XidFilter("", ""));
  const Time now(seconds(5));
  machine.apply_snapshot(two_gpu_snapshot(), now);
  EXPECT_EQ(machine.device_status(kGpu)->state, DeviceState::kUnmonitored);
  machine.add_evidence({kGpu, now, SourceNotice{Source::kDriverEvents, std::nullopt}});
  EXPECT_EQ(machine.device_status(kGpu)->state, DeviceState::kHealthy);
  machine.add_evidence({kGpu, now, SourceNotice{Source::kDriverEvents, "this driver has no events"}});
  EXPECT_EQ(machine.device_status(kGpu)->state, DeviceState::kUnmonitored);
}

TEST(Node, MemoryIsBounded) {
  HealthStateMachine machine({}, XidFilter("", ""));
  const Time now(seconds(5));
  for (unsigned i = 0; i < 2000; ++i) {
    machine.add_evidence({make_scope("GPU-" + std::to_string(i)), now, XidReport{Source::kDriverEvents, 95}});
  }
  EXPECT_EQ(machine.device_statuses().size(), kMaxGpus);
  HealthFeed feed;
  for (std::uint64_t i = 0; i < 400; ++i) {
    feed.pass_time(milliseconds(1));
    feed.add_xid(kGpu, 1000 + i, Source::kKernelLog, static_cast<std::uint32_t>(i));
    feed.add_xid(kGpu, 31, Source::kKernelLog, static_cast<std::uint32_t>(i));
  }
  EXPECT_LE(feed.machine.device_status(kGpu)->faults.size(), kMaxFaults + kFaultClassCount);
}

}  // namespace
}  // namespace gpulet::health
