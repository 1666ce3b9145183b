#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/file.h"
#include "health/state/persisted_state.h"
#include "health/state/test_feed.h"

namespace gpulet::health {
namespace {

WallTime wall_at(std::int64_t milliseconds) { return WallTime(std::chrono::milliseconds(milliseconds)); }

PersistedState example() {
  PersistedState saved{"boot-1", {}};
  saved.gpus.push_back({DeviceUuid("GPU-0"), "0000:3b:00.0", 2, wall_at(1763712000123), {}});
  saved.gpus[0].faults.push_back({FaultClass::kXidReboot, 79, kNoInstance, kNoInstance,
                                  wall_at(1763711990000), wall_at(1763711990500), 3, true, ""});
  saved.gpus.push_back({DeviceUuid("GPU-1"), "", 0, std::nullopt, {}});
  saved.gpus[1].faults.push_back(
      {FaultClass::kCordoned, 0, 2, 0, wall_at(5), wall_at(6), 1, false, "waits for its new riser"});
  return saved;
}

constexpr const char* kExample =
    "gpulet-health 1\n"
    "boot boot-1\n"
    "gpu GPU-0 0000:3b:00.0 2 1763712000123\n"
    "fault xid-reboot 79 - - 1763711990000 1763711990500 3 1\n"
    "gpu GPU-1 - 0 -\n"
    "fault cordoned 0 2 0 5 6 1 0 waits for its new riser\n"
    "end\n";

TEST(PersistedState, ParsesWhatItFormats) {
  EXPECT_EQ(format_persisted_state(example()), kExample);
  const auto read = parse_persisted_state(kExample);
  ASSERT_TRUE(read) << read.error().full_message();
  EXPECT_EQ(*read, example());
}

TEST(PersistedState, ErrorsHaveTheLine) {
  const std::string head = "gpulet-health 1\nboot b\n";
  const std::pair<std::string, const char*> rows[] = {
      {"", "line 1 "},
      {"gpulet-health 2\nboot b\nend\n", "line 1 "},
      {"gpulet-health 1\nend\n", "line 2 "},
      {head, "line 3 "},
      {head + "gpu\nend\n", "line 3 "},
      {head + "gpu GPU-0 - 0\nend\n", "line 3 "},
      {head + "gpu GPU-0 - -1 -\nend\n", "line 3 "},
      {head + "gpu GPU-0 - 0 soon\nend\n", "line 3 "},
      {head + "gpu GPU-0 - 0 99999999999999\nend\n", "line 3 "},
      {head + "fault lost 0 - - 1 1 1 0\nend\n", "line 3 "},  // of no GPU
      {head + "gpu GPU-0 - 0 -\nfault sick 0 - - 1 1 1 0\nend\n", "line 4 "},
      {head + "gpu GPU-0 - 0 -\nfault lost 0 - 1 1 1 1 0\nend\n", "line 4 "},
      {head + "gpu GPU-0 - 0 -\nfault lost 0 - - 2 1 1 0\nend\n", "line 4 "},
      {head + "gpu GPU-0 - 0 -\nfault lost 0 - - 1 1 1 2\nend\n", "line 4 "},
      {head + "gpu GPU-0 - 0 -\nfault lost 0 - - 1 1 1 0\n", "line 5 "},  // cut off
  };
  for (const auto& [text, line] : rows) {
    const auto read = parse_persisted_state(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(read.error().message().starts_with(line)) << read.error().full_message() << " for " << text;
  }
}

RC_GTEST_PROP(PersistedState, AnyTextIsFormattedAsOneLine,
              (const std::string& detail, const std::string& uuid)) {
  PersistedState saved = example();
  saved.gpus[0].faults[0].detail = detail;
  saved.gpus[0].uuid = DeviceUuid(uuid);
  const auto read = parse_persisted_state(format_persisted_state(saved));
  RC_ASSERT(read.has_value());
  RC_ASSERT(format_persisted_state(*read) == format_persisted_state(saved));
}

class StateFileOnDisk : public ::testing::Test {
 protected:
  StateFileOnDisk() {
    char name[] = "/tmp/gpulet-state-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~StateFileOnDisk() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(StateFileOnDisk, IsWrittenAtomically) {
  const auto path = directory_ + "/a/state";
  const auto missing = read_persisted_state(path);
  ASSERT_TRUE(missing) << missing.error().full_message();
  EXPECT_TRUE(missing->gpus.empty());
  ASSERT_TRUE(write_persisted_state(path, example()));
  const auto read = read_persisted_state(path);
  ASSERT_TRUE(read) << read.error().full_message();
  EXPECT_EQ(*read, example());
  struct stat status{};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(StateFileOnDisk, ErrorsHaveThePath) {
  const auto path = directory_ + "/state";
  ASSERT_TRUE(write_file_atomic(path, "nonsense"));
  const auto read = read_persisted_state(path);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().full_message(), path + ": line 1 is not 'gpulet-health 1'");
}

TEST_F(StateFileOnDisk, ReadsTheBootId) {
  ASSERT_TRUE(write_file_atomic(directory_ + "/boot_id", "0123-4567\n"));
  EXPECT_EQ(read_boot_id(directory_ + "/boot_id").value_or("?"), "0123-4567");
  EXPECT_FALSE(read_boot_id(directory_ + "/none"));
}

}  // namespace

// The state that outlives the process, and the effect of a reboot or of another card on it.

namespace {

const std::string kBoot = "boot-1";

ClockPair clock_of(const HealthFeed& feed) { return {feed.now, WallTime(std::chrono::hours(490'000))}; }

// A new process, some time later, on the same node.
HealthStateMachine restarted(const HealthFeed& feed, const std::string& boot,
                             const inventory::Snapshot& snapshot, Time now = Time(seconds(9))) {
  HealthStateMachine machine({}, XidFilter("", ""));
  const ClockPair clock{now, clock_of(feed).wall + seconds(60)};
  machine.restore_state(feed.machine.to_persisted_state(clock_of(feed), kBoot), boot, clock);
  machine.apply_snapshot(snapshot, now);
  return machine;
}

TEST(RestoredState, FaultsSurviveTheProcess) {
  HealthFeed feed;
  feed.add_xid(make_scope("GPU-1", 1, 1), 119);
  feed.feed(kGpu, OperatorCommand{OperatorAction::kCordon, "new riser"});
  feed.pass_time(seconds(30));
  const auto machine = restarted(feed, kBoot, two_gpu_snapshot());
  const auto broken = *machine.device_status(make_scope("GPU-1", 1, 1));
  EXPECT_EQ(broken.state, DeviceState::kQuarantined);
  EXPECT_EQ(broken.reason, "XID 119: GSP did not answer a call in time");
  EXPECT_EQ(broken.since, Time(seconds(9)) - seconds(90));
  EXPECT_TRUE(is_allocatable(machine.device_status(make_scope("GPU-1", 1, 0))->state));
  EXPECT_EQ(machine.device_status(kGpu)->reason, "cordoned: new riser");
}

TEST(RestoredState, ARebootMeetsResetConditions) {
  HealthFeed feed;
  feed.add_xid(kGpu, 119);
  feed.feed(make_scope("GPU-1"), OperatorCommand{OperatorAction::kCordon, ""});
  const auto machine = restarted(feed, "boot-2", two_gpu_snapshot());
  EXPECT_EQ(machine.device_status(kGpu)->state, DeviceState::kRecovering);
  EXPECT_EQ(machine.device_status(make_scope("GPU-1"))->state,
            DeviceState::kDraining);  // an operator's cordon stays
}

TEST(RestoredState, RelapsesAreKept) {
  HealthFeed feed;
  for (int i = 0; i < 3; ++i) {
    feed.add_xid(kGpu, 999);
    feed.time_until_allocatable(kGpu);
  }
  auto machine = restarted(feed, kBoot, two_gpu_snapshot());
  EXPECT_EQ(machine.device_status(kGpu)->relapses, 2u);
  machine.add_evidence({kGpu, Time(seconds(10)), XidReport{Source::kDriverEvents, 999}});
  EXPECT_EQ(machine.device_status(kGpu)->relapses, 3u);
}

TEST(RestoredState, AReplacedCardStartsClean) {
  HealthFeed feed;
  feed.add_xid(kGpu, 119);
  auto snapshot = two_gpu_snapshot();
  snapshot.gpus[0].uuid = DeviceUuid("GPU-new");
  const auto machine = restarted(feed, "boot-2", snapshot);
  EXPECT_FALSE(machine.device_status(kGpu));
  EXPECT_TRUE(is_allocatable(machine.device_status(make_scope("GPU-new"))->state));
  EXPECT_EQ(machine.device_status(make_scope("GPU-new"))->relapses, 0u);
}

TEST(RestoredState, AClockSetBackMakesNothingNewerThanNow) {
  HealthFeed feed;
  feed.add_xid(kGpu, 119);
  HealthStateMachine machine({}, XidFilter("", ""));
  const ClockPair clock{Time(seconds(9)), WallTime(std::chrono::hours(1))};
  machine.restore_state(feed.machine.to_persisted_state(clock_of(feed), kBoot), "boot-2", clock);
  machine.apply_snapshot(two_gpu_snapshot(), clock.now);
  EXPECT_EQ(machine.device_status(kGpu)->state, DeviceState::kRecovering);
  EXPECT_LT(machine.device_status(kGpu)->since, clock.now);
}

TEST(RestoredState, TheRevisionChangesWithThePersistedState) {
  HealthFeed feed;
  auto moved = [&, last = feed.machine.revision()]() mutable {
    return std::exchange(last, feed.machine.revision()) != feed.machine.revision();
  };
  feed.add_good_readings(kGpu);
  feed.add_xid(kGpu, 31);
  EXPECT_FALSE(moved());
  feed.add_xid(kGpu, 999);
  EXPECT_TRUE(moved());
  feed.add_xid(kGpu, 999);
  EXPECT_FALSE(moved());
  feed.time_until_allocatable(kGpu);
  EXPECT_TRUE(moved());
  feed.feed(kGpu, OperatorCommand{OperatorAction::kCordon, ""});
  EXPECT_TRUE(moved());
  EXPECT_TRUE(HealthFeed().machine.to_persisted_state({}, kBoot).gpus.empty());
}

}  // namespace
}  // namespace gpulet::health
