#include "health/state/cordons.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/file.h"
#include "base/text.h"
#include "health/state/test_feed.h"

namespace gpulet::health {
namespace {

const DeviceUuid kUuid("GPU-0");

CordonEntry cordon_entry(OperatorAction action, std::int64_t at_ms, std::string reason = {}) {
  return {action, WallTime(milliseconds(at_ms)), std::move(reason)};
}

TEST(Cordons, HaveOneLinePerDevice) {
  const Cordons cordons{{DeviceUuid("GPU-a"), cordon_entry(OperatorAction::kCordon, 12, "new riser")},
                        {DeviceUuid("MIG-b"), cordon_entry(OperatorAction::kUncordon, 1763712000123)},
                        {DeviceUuid("GPU-c"), cordon_entry(OperatorAction::kCordon, 0)}};
  const std::string text =
      "gpulet-cordons 1\n"
      "cordoned GPU-a 12 new riser\n"
      "cordoned GPU-c 0\n"
      "uncordoned MIG-b 1763712000123\n";
  EXPECT_EQ(format_cordons(cordons), text);
  const auto back = parse_cordons(text);
  ASSERT_TRUE(back) << back.error().full_message();
  EXPECT_EQ(*back, cordons);
  EXPECT_TRUE(parse_cordons("gpulet-cordons 1\n"));
}

TEST(Cordons, ErrorsHaveTheLine) {
  const auto refused = [](const std::string& text) {
    const auto cordons = parse_cordons(text);
    return cordons ? "read" : cordons.error().message();
  };
  EXPECT_EQ(refused(""), "line 1 is not 'gpulet-cordons 1'");
  EXPECT_EQ(refused("gpulet-cordons 2\n"), "line 1 is not 'gpulet-cordons 1'");
  EXPECT_EQ(refused("gpulet-cordons 1"), "line 1 is truncated");
  const std::string head = "gpulet-cordons 1\ncordoned GPU-a 1\n";
  EXPECT_EQ(refused(head + "cordoned GPU-b 1"), "line 3 is truncated");
  for (const auto* line :
       {"", "cordoned", "cordoned GPU-b", "cordoned GPU-b -1", "cordoned GPU-b x why", "cordon GPU-b 1",
        "cordoned  1", "cordoned GPU-b 99999999999999", "cordoned GPU-a 2", "cordoned GPU-b 1  why",
        "cordoned GPU-b 1 why\t", "cordoned GPU-\xff 1"}) {
    EXPECT_EQ(refused(head + line + "\n"), "line 3 is not a cordon entry") << line;
  }
  std::string many = "gpulet-cordons 1\n";
  for (std::size_t i = 0; i <= kMaxCordons; ++i) many += "cordoned GPU-" + std::to_string(i) + " 1\n";
  EXPECT_EQ(refused(many), "line 1026 exceeds the limit of lines");
}

TEST(Cordons, AReasonIsOneShortLine) {
  EXPECT_EQ(sanitize_cordon_reason("  new\nriser\x1b[2J "), "new riser [2J");
  EXPECT_EQ(sanitize_cordon_reason(std::string(400, 'x')).size(), kMaxCordonReason);
  const auto cut = sanitize_cordon_reason(std::string(kMaxCordonReason - 1, 'x') + "ä");
  EXPECT_EQ(cut.size(), kMaxCordonReason - 1) << "no half character";
}

class CordonsFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "cordons.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    path_ = directory_ + "/state/cordons";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_, path_;
};

TEST_F(CordonsFile, IsUpdatedAndReadBack) {
  const WallTime now{milliseconds(5000)};
  EXPECT_TRUE(read_cordons(path_)->empty()) << "there is none yet";
  ASSERT_TRUE(update_cordons(
      path_, now, [](Cordons& all) { all[kUuid] = cordon_entry(OperatorAction::kCordon, 5000, "why"); }));
  EXPECT_EQ(read_cordons(path_)->at(kUuid).reason, "why");
  const auto written = std::filesystem::last_write_time(path_);
  ASSERT_TRUE(update_cordons(path_, now, [](Cordons&) {}));
  EXPECT_EQ(std::filesystem::last_write_time(path_), written) << "nothing differs";
  ASSERT_TRUE(update_cordons(
      path_, now, [](Cordons& all) { all[kUuid] = cordon_entry(OperatorAction::kUncordon, 5000); }));
  const auto much_later =
      now + std::chrono::duration_cast<WallTime::duration>(kUncordonedRetention) + seconds(1);
  ASSERT_TRUE(update_cordons(path_, much_later, [](Cordons& all) {
    all[DeviceUuid("GPU-b")] = cordon_entry(OperatorAction::kCordon, 6000);
  }));
  EXPECT_EQ(read_cordons(path_)->size(), 1u) << "an old word of the end is forgotten";
}

TEST_F(CordonsFile, ADamagedFileIsNotChanged) {
  ASSERT_TRUE(write_file_atomic(path_, "gpulet-cordons 1\nx\n"));
  const auto status = update_cordons(path_, {}, [](Cordons& all) { all.clear(); });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().full_message(), path_ + ": line 2 is not a cordon entry");
  EXPECT_EQ(*read_file(path_), "gpulet-cordons 1\nx\n");
}

TEST_F(CordonsFile, ConcurrentUpdatesAreAllKept) {
  constexpr unsigned kThreads = 4, kEach = 20;
  std::atomic<unsigned> failed = 0;
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (unsigned i = 0; i < kEach; ++i) {
        const DeviceUuid uuid("GPU-" + std::to_string(thread) + "-" + std::to_string(i));
        const auto status = update_cordons(
            path_, {}, [&](Cordons& all) { all[uuid] = cordon_entry(OperatorAction::kCordon, 1); });
        if (!status) ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(read_cordons(path_)->size(), kThreads * kEach);
}

// The state machine, updated from the cordons until they require no more changes.
class PendingCommands : public testing::Test {
 protected:
  ClockPair clocks_now() const {
    return {feed_.now, WallTime(seconds(1'763'712'000)) + feed_.now.time_since_epoch()};
  }
  WallTime wall_time() const { return std::chrono::floor<milliseconds>(clocks_now().wall); }
  HealthView view_now() const { return build_health_view(feed_.machine, feed_.there, clocks_now()); }
  // Returns the number of commands.
  std::size_t apply_pending() {
    const auto commands = pending_operator_commands(view_now(), cordons_, clocks_now());
    for (const auto& command : commands) feed_.machine.add_evidence(command);
    feed_.machine.advance_to(feed_.now);
    EXPECT_TRUE(pending_operator_commands(view_now(), cordons_, clocks_now()).empty()) << "issued once";
    return commands.size();
  }
  void restart_machine() {
    const auto saved = feed_.machine.to_persisted_state(clocks_now(), "boot");
    feed_.machine = HealthStateMachine({}, XidFilter("", ""));
    feed_.pass_time(minutes(5));
    feed_.machine.restore_state(saved, "boot", clocks_now());
    feed_.machine.apply_snapshot(feed_.there, feed_.now);
    feed_.add_good_readings(kGpu);
    feed_.feed(kGpu, SourceNotice{Source::kDriverEvents, std::nullopt});
  }

  HealthFeed feed_;
  Cordons cordons_;
};

TEST_F(PendingCommands, ACordonStaysUntilUncordon) {
  EXPECT_EQ(apply_pending(), 0u);
  cordons_[kUuid] = {OperatorAction::kCordon, wall_time(), "new riser"};
  EXPECT_EQ(apply_pending(), 1u);
  EXPECT_EQ(feed_.state_of_device(kGpu), DeviceState::kDraining);
  EXPECT_EQ(feed_.reason_of_device(kGpu), "cordoned: new riser");
  EXPECT_EQ(feed_.state_letters(), "d....");
  feed_.pass_time(minutes(1));
  EXPECT_EQ(apply_pending(), 0u);
  cordons_[kUuid] = {OperatorAction::kCordon, wall_time(), "new fan"};
  EXPECT_EQ(apply_pending(), 1u);
  EXPECT_EQ(feed_.reason_of_device(kGpu), "cordoned: new fan");
  feed_.pass_time(minutes(1));
  cordons_[kUuid] = {OperatorAction::kUncordon, wall_time(), {}};
  EXPECT_EQ(apply_pending(), 1u);
  EXPECT_EQ(feed_.state_of_device(kGpu), DeviceState::kHealthy);
  feed_.pass_time(minutes(1));
  EXPECT_EQ(apply_pending(), 0u);
}

TEST_F(PendingCommands, SurviveARestart) {
  cordons_[kUuid] = {OperatorAction::kCordon, wall_time(), "new riser"};
  apply_pending();
  restart_machine();
  EXPECT_EQ(feed_.state_of_device(kGpu), DeviceState::kDraining);
  EXPECT_EQ(apply_pending(), 0u) << "the state file has it";
  cordons_[kUuid] = {OperatorAction::kUncordon, wall_time(), {}};
  restart_machine();
  EXPECT_EQ(apply_pending(), 1u) << "entered while no agent ran";
  EXPECT_EQ(feed_.state_of_device(kGpu), DeviceState::kHealthy);
}

TEST_F(PendingCommands, ARemovedLineEndsTheCordon) {
  cordons_[kUuid] = {OperatorAction::kCordon, wall_time(), {}};
  apply_pending();
  feed_.pass_time(seconds(1));
  feed_.add_xid(kGpu, 95);
  feed_.pass_time(seconds(1));
  cordons_.clear();
  EXPECT_EQ(apply_pending(), 1u);
  EXPECT_EQ(feed_.reason_of_device(kGpu).substr(0, 6), "XID 95") << "a line that is gone vouches for nothing";
  EXPECT_EQ(feed_.state_of_device(kGpu), DeviceState::kQuarantined);
}

TEST_F(PendingCommands, AnUncordonVouchesOnlyForEarlierFaults) {
  feed_.add_xid(kGpu, 95);
  feed_.pass_time(seconds(2));
  cordons_[kUuid] = {OperatorAction::kUncordon, wall_time(), {}};
  EXPECT_EQ(apply_pending(), 1u);
  EXPECT_EQ(feed_.state_of_device(kGpu), DeviceState::kRecovering);
  feed_.pass_time(seconds(2));
  feed_.add_xid(kGpu, 95);
  EXPECT_EQ(apply_pending(), 0u);
  EXPECT_EQ(feed_.state_of_device(kGpu), DeviceState::kQuarantined);
  restart_machine();
  EXPECT_EQ(apply_pending(), 0u) << "an old word says nothing of a new fault";
}

TEST_F(PendingCommands, ACordonOfAMigDeviceCoversOnlyIt) {
  for (auto& mig : feed_.there.gpus[1].mig_devices) mig.uuid = DeviceUuid("MIG-" + std::to_string(mig.index));
  cordons_[DeviceUuid("MIG-1")] = {OperatorAction::kCordon, wall_time(), {}};
  EXPECT_EQ(apply_pending(), 1u);
  EXPECT_EQ(feed_.state_letters(), "...d.");
  cordons_[DeviceUuid("GPU-1")] = {OperatorAction::kCordon, wall_time(), {}};
  apply_pending();
  EXPECT_EQ(feed_.state_letters(), ".dddd");
  feed_.pass_time(seconds(1));
  cordons_.erase(DeviceUuid("MIG-1"));
  cordons_[DeviceUuid("GPU-1")] = {OperatorAction::kUncordon, wall_time(), {}};
  apply_pending();
  EXPECT_EQ(feed_.state_letters(), ".....");
}

TEST_F(PendingCommands, AnEntryForAnAbsentDeviceWaits) {
  cordons_[DeviceUuid("GPU-9")] = {OperatorAction::kCordon, wall_time(), {}};
  EXPECT_EQ(apply_pending(), 0u);
  auto late = feed_.there.gpus[0];
  late.uuid = DeviceUuid("GPU-9");
  late.pci.bus = 0x20;
  feed_.there.gpus.insert(feed_.there.gpus.begin(), late);
  feed_.machine.apply_snapshot(feed_.there, feed_.now);
  EXPECT_EQ(apply_pending(), 1u);
  EXPECT_EQ(feed_.state_of_device(make_scope("GPU-9")), DeviceState::kDraining);
}

TEST_F(PendingCommands, AnEntryFromTheFutureCountsAsNow) {
  cordons_[kUuid] = {OperatorAction::kCordon, wall_time() + std::chrono::hours(9), {}};
  EXPECT_EQ(apply_pending(), 1u);
  EXPECT_EQ(feed_.state_of_device(kGpu), DeviceState::kDraining);
  feed_.pass_time(seconds(1));
  cordons_[kUuid] = {OperatorAction::kUncordon, wall_time() + std::chrono::hours(9), {}};
  EXPECT_EQ(apply_pending(), 1u);
  EXPECT_EQ(feed_.state_of_device(kGpu), DeviceState::kHealthy);
}

}  // namespace
}  // namespace gpulet::health
