#include "agent/driver/nvml_driver.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"
#include "sim/machine/machine.h"
#include "sim/state/mig.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using health::Reachability;
using inventory::Snapshot;
using nvml::SimRoot;

class NvmlDriverTest : public testing::Test {
 protected:
  void SetUp() override { start_thread(std::make_unique<SimRoot>(4)); }
  void TearDown() override {
    thread_.run_on_loop([&] { driver_.reset(); });
  }

  void start_thread(std::unique_ptr<SimRoot> root, Duration timeout = 500ms) {
    thread_.run_on_loop([&] {
      driver_.reset();
      root_ = std::move(root);
      driver_ = std::make_unique<NvmlDriver>(
          thread_.loop(), NvmlDriverOptions{.driver_root = root_->sim_root(), .call_timeout = timeout});
      driver_->set_events(
          {.evidence = [this](const health::Evidence& evidence) { evidence_.push_value(evidence); },
           .changed = [this] { changes_.push_value(true); },
           .wait_failed = [this](const Error& error) { failures_.push_value(error); }});
    });
  }
  Status open_and_wait() {
    auto opened = thread_.await<Status>([&](auto done) { driver_->open_driver(done); });
    return opened.value_or(fail(Code::kInternal, "open_driver() never returned"));
  }
  Result<Snapshot> read_and_wait() {
    auto snapshot = thread_.await<Result<Snapshot>>([&](auto done) { driver_->read_snapshot(done); });
    return snapshot.value_or(fail(Code::kInternal, "read_snapshot() never returned"));
  }
  Snapshot read_successfully() {
    auto snapshot = read_and_wait();
    EXPECT_TRUE(snapshot) << snapshot.error().full_message();
    return snapshot.value_or(Snapshot{});
  }
  Driver::Evidence probe_and_wait(const DeviceUuid& gpu) {
    auto answer = thread_.await<Driver::Evidence>([&](auto done) { driver_->probe_gpu(gpu, done); });
    EXPECT_TRUE(answer) << "probe_gpu() never returned";
    return answer.value_or(Driver::Evidence{});
  }
  Driver::Evidence poll_and_wait(const health::Scope& scope) {
    auto answer = thread_.await<Driver::Evidence>([&](auto done) { driver_->poll_device(scope, done); });
    EXPECT_TRUE(answer) << "poll_device() never returned";
    return answer.value_or(Driver::Evidence{});
  }
  template <class Body>
  static std::optional<Body> body_of(const Driver::Evidence& evidence) {
    for (const auto& one : evidence) {
      if (const auto* body = std::get_if<Body>(&one.body)) return *body;
    }
    return std::nullopt;
  }
  static std::optional<Reachability> reachability_in(const Driver::Evidence& evidence) {
    const auto handle = body_of<health::HandleReading>(evidence);
    return handle ? std::optional(handle->reachability) : std::nullopt;
  }
  bool is_reachable(const DeviceUuid& gpu) {
    return reachability_in(probe_and_wait(gpu)) == Reachability::kReachable;
  }
  template <class Condition>
  bool becomes_true(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + nvml::kTestPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      changes_.wait_for_values(changes_.size() + 1, 10ms);
    }
    return true;
  }
  // The wait has begun once an event is received.
  void wait_for_events(unsigned gpu = 0) {
    const auto before = reports();
    ASSERT_TRUE(becomes_true([&] {
      sim::post_event(*root_->edit_machine(), gpu, sim::kEventXid, 1);
      return reports() > before;
    }));
  }
  std::size_t reports() {
    const auto is_xid = [](const auto& one) { return std::holds_alternative<health::XidReport>(one.body); };
    return static_cast<std::size_t>(std::ranges::count_if(evidence_.wait_for_values(0), is_xid));
  }
  bool noticed(health::Notice notice) {
    const auto all = evidence_.wait_for_values(0);
    return std::ranges::any_of(all, [&](const auto& one) {
      const auto* body = std::get_if<health::DriverNotice>(&one.body);
      return body != nullptr && body->notice == notice;
    });
  }
  // Whether the GPU was last reported to have events.
  std::optional<bool> has_events(const DeviceUuid& gpu) {
    std::optional<bool> has;
    for (const auto& one : evidence_.wait_for_values(0)) {
      const auto* notice = std::get_if<health::SourceNotice>(&one.body);
      if (notice != nullptr && one.scope.gpu == gpu) has = !notice->unavailable;
    }
    return has;
  }
  std::optional<health::Scope> scope_of_xid(std::uint64_t number) {
    for (std::size_t count = 1;; ++count) {
      const auto all = evidence_.wait_for_values(count);
      for (const auto& one : all) {
        const auto* report = std::get_if<health::XidReport>(&one.body);
        if (report != nullptr && report->code == number) return one.scope;
      }
      if (all.size() < count) return std::nullopt;
    }
  }

  nvml::Collected<health::Evidence> evidence_;
  nvml::Collected<bool> changes_;
  nvml::Collected<Error> failures_;
  std::unique_ptr<SimRoot> root_;
  nvml::LoopThread thread_;
  std::unique_ptr<NvmlDriver> driver_;
};

TEST_F(NvmlDriverTest, ReadsAWholeMachine) {
  start_thread(std::make_unique<SimRoot>(**sim::load_machine("dgx1-v100")), 10s);
  ASSERT_TRUE(open_and_wait());
  const auto first = read_successfully();
  ASSERT_EQ(first.gpus.size(), 8u);
  for (const auto& gpu : first.gpus) EXPECT_FALSE(gpu.unreadable);
  EXPECT_EQ(first.pcie.size(), 64u);
  EXPECT_EQ(first.pcie_between(0, 7), inventory::PcieDistance::kSystem);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(first.pcie_between(i, i), inventory::PcieDistance::kInternal);
  EXPECT_EQ(std::ranges::count(first.pcie, inventory::PcieDistance::kUnknown), 0);
  EXPECT_GT(read_successfully().generation, first.generation);
}

TEST_F(NvmlDriverTest, ReadingBeforeOpeningIsUnavailable) {
  EXPECT_EQ(read_and_wait().error().code(), Code::kUnavailable);
}

TEST_F(NvmlDriverTest, OpensADriverThatIsLoadedLater) {
  start_thread(SimRoot::without_library());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(open_and_wait().error().code(), Code::kUnavailable);
  root_->install(GPULET_SIM_LIBRARY, "570.124.06");
  ASSERT_TRUE(open_and_wait());
  EXPECT_EQ(read_successfully().gpus.size(), 4u);
}

TEST_F(NvmlDriverTest, RejectsADriverThatIsTooOld) {
  auto machine = sim::small_machine(1);
  sim::set_text(machine->driver.version, "390.46");
  start_thread(std::make_unique<SimRoot>(*machine));
  const auto status = open_and_wait();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kUnsupported);
  EXPECT_EQ(status.error().message(), "NVIDIA driver 390.46 is too old: 418.81.07 or later is needed");
}

TEST_F(NvmlDriverTest, AHangingGpuDoesNotAffectOthers) {
  ASSERT_TRUE(open_and_wait());
  const auto before = read_successfully();
  root_->edit_machine()->gpus[1].faults.hang = 1;
  const auto during = read_successfully();
  ASSERT_EQ(during.gpus.size(), 4u);
  ASSERT_TRUE(during.gpus[1].unreadable);
  EXPECT_EQ(during.gpus[1].unreadable->code(), Code::kDeadlineExceeded);
  EXPECT_EQ(during.gpus[1].uuid, before.gpus[1].uuid) << "it keeps what was known of it";
  EXPECT_EQ(during.gpus[1].nvlinks, before.gpus[1].nvlinks);
  EXPECT_EQ(during.pcie, before.pcie);
  for (const std::size_t i : {0, 2, 3}) EXPECT_FALSE(during.gpus[i].unreadable);

  // It is not called again, so the result is immediate; the others are still read.
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(is_reachable(before.gpus[1].uuid));
  EXPECT_TRUE(is_reachable(before.gpus[2].uuid));
  EXPECT_TRUE(read_successfully().gpus[1].unreadable);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 400ms);

  root_->edit_machine()->gpus[1].faults.hang = 0;
  EXPECT_TRUE(becomes_true([&] { return is_reachable(before.gpus[1].uuid); }));
  const auto after = read_successfully();
  EXPECT_FALSE(after.gpus[1].unreadable);
  std::size_t hanging = 1;
  thread_.run_on_loop([&] { hanging = driver_->hanging_calls(); });
  EXPECT_EQ(hanging, 0u);
}

TEST_F(NvmlDriverTest, DoesNotWaitForeverForAGpuThatHangsFromTheStart) {
  root_->edit_machine()->gpus[0].faults.hang = 1;
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_successfully();
  ASSERT_TRUE(snapshot.gpus[0].unreadable);
  EXPECT_TRUE(snapshot.gpus[0].uuid.empty());
  EXPECT_FALSE(snapshot.gpus[3].unreadable);
  wait_for_events(3);
}

TEST_F(NvmlDriverTest, ReadsAgainWhenAGpuRespondsLate) {
  start_thread(std::make_unique<SimRoot>(3u), 30s);
  ASSERT_TRUE(open_and_wait());
  read_successfully();
  root_->edit_machine()->gpus[2].faults.hang = 1;
  const auto changes = changes_.size();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_TRUE(read_successfully().gpus[2].unreadable) << "not waited for longer than kReadPatience";
  EXPECT_LT(std::chrono::steady_clock::now() - before, 10s);
  root_->edit_machine()->gpus[2].faults.hang = 0;
  EXPECT_GT(changes_.wait_for_values(changes + 1).size(), changes);
  EXPECT_FALSE(read_successfully().gpus[2].unreadable);
}

TEST_F(NvmlDriverTest, ALostGpuIsUnreadableUntilItRecovers) {
  ASSERT_TRUE(open_and_wait());
  const auto before = read_successfully();
  root_->edit_machine()->gpus[2].faults.lost = 1;
  const auto lost = read_successfully();
  ASSERT_TRUE(lost.gpus[2].unreadable);
  EXPECT_EQ(lost.gpus[2].unreadable->code(), Code::kDeviceLost);
  EXPECT_EQ(lost.gpus[2].uuid, before.gpus[2].uuid);
  EXPECT_FALSE(is_reachable(before.gpus[2].uuid));
  sim::heal_gpu(root_->edit_machine()->gpus[2]);
  EXPECT_TRUE(is_reachable(before.gpus[2].uuid));
  EXPECT_FALSE(read_successfully().gpus[2].unreadable);
}

TEST_F(NvmlDriverTest, AProbeReadsTheRecoveryAction) {
  ASSERT_TRUE(open_and_wait());
  const auto uuid = read_successfully().gpus[0].uuid;
  EXPECT_EQ(body_of<health::RecoveryActionReading>(probe_and_wait(uuid))->action, 0u);
  root_->edit_machine()->gpus[0].recovery_action = 2;
  const auto marked = probe_and_wait(uuid);
  EXPECT_EQ(reachability_in(marked), Reachability::kReachable);
  for (const auto& one : marked) EXPECT_EQ(one.scope, health::Scope{uuid});
  EXPECT_EQ(body_of<health::RecoveryActionReading>(marked)->action, 2u);
  EXPECT_EQ(reachability_in(probe_and_wait(DeviceUuid("GPU-unknown"))), Reachability::kLost);
}

TEST_F(NvmlDriverTest, APollReadsEverySource) {
  ASSERT_TRUE(open_and_wait());
  const auto uuid = read_successfully().gpus[0].uuid;
  const auto all = poll_and_wait({uuid});
  EXPECT_EQ(reachability_in(all), Reachability::kReachable);
  EXPECT_TRUE(body_of<health::PcieReading>(all));
  EXPECT_TRUE(body_of<health::ProcessReading>(all));
  root_->edit_machine()->gpus[0].faults.lost = 1;
  const auto lost = poll_and_wait({uuid});
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(reachability_in(lost), Reachability::kLost);
}

TEST_F(NvmlDriverTest, PollsAMigDeviceOnItsOwn) {
  ASSERT_TRUE(open_and_wait());
  {
    auto machine = root_->edit_machine();
    ASSERT_EQ(sim::set_mig_mode(machine->gpus[0], true), sim::MigOutcome::kOk);
    sim::GpuInstance* instance = nullptr;
    sim::ComputeInstance* compute = nullptr;
    ASSERT_EQ(sim::create_gpu_instance(machine->gpus[0], 9, std::nullopt, &instance), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_compute_instance(machine->gpus[0], *instance, 2, std::nullopt, &compute),
              sim::MigOutcome::kOk);
  }
  const auto gpu = read_successfully().gpus[0];
  ASSERT_EQ(gpu.mig_devices.size(), 1u);
  const health::Scope scope{gpu.uuid, gpu.mig_devices[0].gpu_instance, gpu.mig_devices[0].compute_instance};
  const auto answer = poll_and_wait(scope);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].scope, scope);
  EXPECT_TRUE(body_of<health::ProcessReading>(answer));
  EXPECT_TRUE(poll_and_wait({gpu.uuid, 12, 0}).empty()) << "there is no such instance";
}

TEST_F(NvmlDriverTest, AProbeDetectsAReplacedGpuOrANewMigLayout) {
  ASSERT_TRUE(open_and_wait());
  const auto before = read_successfully();
  const auto changes = changes_.size();
  {
    auto machine = root_->edit_machine();
    ASSERT_EQ(sim::set_mig_mode(machine->gpus[0], true), sim::MigOutcome::kOk);
  }
  EXPECT_TRUE(is_reachable(before.gpus[0].uuid));
  EXPECT_GT(changes_.wait_for_values(changes + 1).size(), changes);
  EXPECT_TRUE(read_successfully().gpus[0].mig_enabled);
  sim::replace_gpu(*root_->edit_machine(), 1);
  EXPECT_EQ(reachability_in(probe_and_wait(before.gpus[1].uuid)), Reachability::kLost);
  const auto after = read_successfully();
  EXPECT_NE(after.gpus[1].uuid, before.gpus[1].uuid);
  EXPECT_FALSE(after.gpus[1].unreadable);
}

TEST_F(NvmlDriverTest, XidsNameTheirGpuAndInstances) {
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_successfully();
  wait_for_events();
  sim::post_event(*root_->edit_machine(), 2, sim::kEventXid, 79);
  sim::post_event(*root_->edit_machine(), 1, sim::kEventXid, 94, 3, 0);
  const auto whole = scope_of_xid(79);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->gpu, snapshot.gpus[2].uuid);
  EXPECT_EQ(whole->gpu_instance, health::kNoInstance);
  EXPECT_EQ(whole->compute_instance, health::kNoInstance);
  const auto part = scope_of_xid(94);
  ASSERT_TRUE(part);
  EXPECT_EQ(part->gpu, snapshot.gpus[1].uuid);
  EXPECT_EQ(part->gpu_instance, 3u);
  EXPECT_EQ(part->compute_instance, 0u);
}

TEST_F(NvmlDriverTest, NoXidIsMissedAfterAReadingIsReturned) {
  // Slow calls lengthen the time between the last reading of a GPU and the registration of its events.
  root_->edit_machine()->driver.delay_us = 500;
  ASSERT_TRUE(open_and_wait());
  ASSERT_EQ(read_successfully().gpus.size(), 4u);
  sim::post_event(*root_->edit_machine(), 3, sim::kEventXid, 79);
  EXPECT_TRUE(scope_of_xid(79));
}

TEST_F(NvmlDriverTest, EventsOfALostGpuStillNameIt) {
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_successfully();
  wait_for_events();
  root_->edit_machine()->gpus[3].faults.lost = 1;
  EXPECT_TRUE(read_successfully().gpus[3].unreadable);
  sim::post_event(*root_->edit_machine(), 3, sim::kEventXid, 79);
  const auto event = scope_of_xid(79);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->gpu, snapshot.gpus[3].uuid);
}

TEST_F(NvmlDriverTest, ReportsOtherEventsAsNotices) {
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_successfully();
  for (const auto& gpu : snapshot.gpus) EXPECT_EQ(has_events(gpu.uuid), true);
  wait_for_events();
  const auto changes = changes_.size();
  sim::post_event(*root_->edit_machine(), 1, sim::kEventSingleBitEcc, 0);
  sim::post_event(*root_->edit_machine(), 1, sim::kEventDoubleBitEcc, 0);
  sim::post_event(*root_->edit_machine(), 1, sim::kEventGpuRecoveryAction, 1);
  sim::post_event(*root_->edit_machine(), 1, sim::kEventMigConfig, 0);
  sim::post_event(*root_->edit_machine(), 1, sim::kEventXid, 63);
  ASSERT_TRUE(scope_of_xid(63));
  EXPECT_TRUE(noticed(health::Notice::kDoubleBitEcc));
  EXPECT_TRUE(noticed(health::Notice::kRecoveryChanged));
  EXPECT_TRUE(noticed(health::Notice::kMigChanged));
  EXPECT_FALSE(noticed(health::Notice::kSingleBitEcc)) << "a corrected error is no change";
  EXPECT_EQ(changes_.size(), changes + 1) << "only a MIG change needs a new reading";
}

TEST_F(NvmlDriverTest, DetectsAReloadAndOpensTheDriverAgain) {
  ASSERT_TRUE(open_and_wait());
  const auto before = read_successfully();
  wait_for_events();
  const auto changes = changes_.size();
  sim::unload_driver(*root_->edit_machine());
  EXPECT_GT(changes_.wait_for_values(changes + 1).size(), changes);
  EXPECT_EQ(failures_.size(), 0u) << "a reload is no failure of the wait";
  EXPECT_EQ(read_and_wait().error().code(), Code::kUnavailable);
  EXPECT_EQ(open_and_wait().error().code(), Code::kUnavailable);
  EXPECT_EQ(open_and_wait().error().code(), Code::kUnavailable);
  sim::load_driver(*root_->edit_machine());
  ASSERT_TRUE(open_and_wait());
  const auto after = read_successfully();
  ASSERT_EQ(after.gpus.size(), before.gpus.size());
  EXPECT_EQ(after.gpus[0].uuid, before.gpus[0].uuid);
  EXPECT_GT(after.generation, before.generation);
  EXPECT_EQ(after.pcie, before.pcie);
  const auto seen = reports();
  EXPECT_TRUE(becomes_true([&] {
    sim::post_event(*root_->edit_machine(), 0, sim::kEventXid, 2);
    return reports() > seen;
  }));
}

TEST_F(NvmlDriverTest, SurvivesAReloadWhileAGpuHangs) {
  ASSERT_TRUE(open_and_wait());
  const auto before = read_successfully();
  root_->edit_machine()->gpus[1].faults.hang = 1;
  EXPECT_TRUE(read_successfully().gpus[1].unreadable);
  sim::unload_driver(*root_->edit_machine());
  {
    auto machine = root_->edit_machine();
    sim::load_driver(*machine);
    machine->gpus[1].faults.hang = 0;
  }
  ASSERT_TRUE(open_and_wait());
  const auto after = read_successfully();
  EXPECT_FALSE(after.gpus[1].unreadable);
  EXPECT_EQ(after.gpus[1].uuid, before.gpus[1].uuid);
  // The late call released the old initialisation, not the new one.
  std::size_t hanging = 1;
  EXPECT_TRUE(becomes_true([&] {
    thread_.run_on_loop([&] { hanging = driver_->hanging_calls(); });
    return hanging == 0;
  }));
  EXPECT_EQ(read_successfully().gpus.size(), 4u);
}

TEST_F(NvmlDriverTest, ReturnsErrorsWhileTheWholeDriverHangsAndRecovers) {
  ASSERT_TRUE(open_and_wait());
  read_successfully();
  root_->edit_machine()->driver.hang = 1;
  EXPECT_EQ(read_and_wait().error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(open_and_wait().error().code(), Code::kDeadlineExceeded);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(open_and_wait().error().code(), Code::kDeadlineExceeded) << "refused: the first one still hangs";
  EXPECT_LT(std::chrono::steady_clock::now() - before, 400ms);
  root_->edit_machine()->driver.hang = 0;
  EXPECT_TRUE(becomes_true([&] { return open_and_wait().has_value(); }));
  EXPECT_EQ(read_successfully().gpus.size(), 4u);
}

TEST_F(NvmlDriverTest, ReportsAFailingEventWaitOnceAndRetries) {
  ASSERT_TRUE(open_and_wait());
  read_successfully();
  wait_for_events();
  root_->edit_machine()->driver.event_wait_error = 999;
  ASSERT_EQ(failures_.wait_for_values(1).size(), 1u);
  EXPECT_EQ(failures_.wait_for_values(1)[0].code(), Code::kIo);
  const auto uuid = read_successfully().gpus[0].uuid;
  EXPECT_EQ(has_events(uuid), false);
  // Reading continues meanwhile and reports nothing more.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(read_successfully().gpus.size(), 4u);
  failures_.wait_for_values(2, 700ms);  // several attempts
  EXPECT_EQ(failures_.size(), 1u);
  root_->edit_machine()->driver.event_wait_error = 0;
  const auto seen = reports();
  EXPECT_TRUE(becomes_true([&] {
    sim::post_event(*root_->edit_machine(), 0, sim::kEventXid, 2);
    return reports() > seen;
  }));
}

TEST_F(NvmlDriverTest, CompletesAllConcurrentReadings) {
  ASSERT_TRUE(open_and_wait());
  nvml::Collected<std::uint64_t> generations;
  thread_.run_on_loop([&] {
    for (int i = 0; i < 5; ++i) {
      driver_->read_snapshot([&](const Result<Snapshot>& snapshot) {
        generations.push_value(snapshot ? snapshot->generation : 0);
      });
    }
  });
  auto all = generations.wait_for_values(5);
  std::ranges::sort(all);
  EXPECT_EQ(all, (std::vector<std::uint64_t>{1, 2, 2, 2, 2}))
      << "one reading serves all that came during the first";
}

TEST_F(NvmlDriverTest, OpeningEndsAReadingInProgress) {
  ASSERT_TRUE(open_and_wait());
  root_->edit_machine()->gpus[0].faults.hang = 1;
  nvml::Collected<Error> ended;
  thread_.run_on_loop([&] {
    driver_->read_snapshot([&](const Result<Snapshot>& snapshot) {
      ended.push_value(snapshot ? Error(Code::kInternal, "read well") : snapshot.error());
    });
  });
  ASSERT_TRUE(open_and_wait());
  ASSERT_EQ(ended.wait_for_values(1).size(), 1u);
  EXPECT_EQ(ended.wait_for_values(1)[0].code(), Code::kUnavailable);
}

TEST_F(NvmlDriverTest, DestructionWaitsForNoCall) {
  ASSERT_TRUE(open_and_wait());
  read_successfully();
  root_->edit_machine()->driver.hang = 1;
  thread_.run_on_loop(
      [&] { driver_->read_snapshot([](const Result<Snapshot>&) { FAIL() << "called after the end"; }); });
  const auto before = std::chrono::steady_clock::now();
  thread_.run_on_loop([&] { driver_.reset(); });
  EXPECT_LT(std::chrono::steady_clock::now() - before, 100ms);
}

TEST_F(NvmlDriverTest, ExcludesDisplayGpus) {
  sim::set_text(root_->edit_machine()->gpus[1].name, "NVIDIA DGX Display");
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_successfully();
  ASSERT_EQ(snapshot.gpus.size(), 3u);
  EXPECT_EQ(snapshot.gpus[1].index, 2u);
  EXPECT_EQ(snapshot.pcie_between(0, 1), inventory::PcieDistance::kSystem);
}

TEST(ReadSnapshot, NeedsNoAgent) {
  const SimRoot root(2);
  const auto snapshot = read_snapshot_once({.driver_root = root.sim_root()});
  ASSERT_TRUE(snapshot) << snapshot.error().full_message();
  EXPECT_EQ(snapshot->gpus.size(), 2u);
  const auto none = SimRoot::without_library();
  EXPECT_EQ(read_snapshot_once({.driver_root = none->sim_root()}).error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace gpulet::agent
