#include "agent/nvml_driver.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"
#include "sim/machine/machine.h"
#include "sim/state/mig.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using health::Answer;
using inventory::PcieDistance;
using inventory::Snapshot;
using nvml::Gathered;
using nvml::kTestPatience;
using nvml::LoopThread;
using nvml::SimRoot;

class NvmlDriverTest : public testing::Test {
 protected:
  void SetUp() override { start(std::make_unique<SimRoot>(4)); }
  void TearDown() override {
    thread_.run([&] { driver_.reset(); });
  }

  void start(std::unique_ptr<SimRoot> root, Duration timeout = 500ms) {
    thread_.run([&] {
      driver_.reset();
      root_ = std::move(root);
      driver_ = std::make_unique<NvmlDriver>(
          thread_.loop(), NvmlDriverOptions{.driver_root = root_->path(), .call_timeout = timeout});
      driver_->set_events({.evidence = [this](const health::Evidence& evidence) { evidence_.add(evidence); },
                           .changed = [this] { changes_.add(true); },
                           .wait_failed = [this](const Error& error) { failures_.add(error); }});
    });
  }
  Status open() {
    auto opened = thread_.await<Status>([&](auto done) { driver_->open(done); });
    return opened.value_or(fail(Code::kInternal, "open() never answered"));
  }
  Result<Snapshot> read() {
    auto snapshot = thread_.await<Result<Snapshot>>([&](auto done) { driver_->read(done); });
    return snapshot.value_or(fail(Code::kInternal, "read() never answered"));
  }
  Snapshot read_well() {
    auto snapshot = read();
    EXPECT_TRUE(snapshot) << snapshot.error().text();
    return snapshot.value_or(Snapshot{});
  }
  Driver::Evidence ask(const DeviceUuid& gpu) {
    auto answer = thread_.await<Driver::Evidence>([&](auto done) { driver_->ask(gpu, done); });
    EXPECT_TRUE(answer) << "ask() never answered";
    return answer.value_or(Driver::Evidence{});
  }
  Driver::Evidence poll(const health::Scope& scope) {
    auto answer = thread_.await<Driver::Evidence>([&](auto done) { driver_->poll(scope, done); });
    EXPECT_TRUE(answer) << "poll() never answered";
    return answer.value_or(Driver::Evidence{});
  }
  template <class Body>
  static std::optional<Body> body_of(const Driver::Evidence& evidence) {
    for (const auto& one : evidence) {
      if (const auto* body = std::get_if<Body>(&one.body)) return *body;
    }
    return std::nullopt;
  }
  static std::optional<Answer> answer_in(const Driver::Evidence& evidence) {
    const auto handle = body_of<health::HandleReading>(evidence);
    return handle ? std::optional(handle->answer) : std::nullopt;
  }
  bool answers(const DeviceUuid& gpu) { return answer_in(ask(gpu)) == Answer::kAnswers; }
  template <class Condition>
  bool eventually(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + kTestPatience;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      changes_.wait(changes_.size() + 1, 10ms);
    }
    return true;
  }
  // The wait has begun when an event comes through; those before it are nobody's.
  void wait_for_events(unsigned gpu = 0) {
    const auto before = reports();
    ASSERT_TRUE(eventually([&] {
      sim::post_event(*root_->edit(), gpu, sim::kEventXid, 1);
      return reports() > before;
    }));
  }
  std::vector<health::Evidence> told() { return evidence_.wait(0); }
  std::size_t reports() {
    const auto is_xid = [](const auto& one) { return std::holds_alternative<health::XidReport>(one.body); };
    return static_cast<std::size_t>(std::ranges::count_if(evidence_.wait(0), is_xid));
  }
  bool noticed(health::Notice notice) {
    const auto all = told();
    return std::ranges::any_of(all, [&](const auto& one) {
      const auto* body = std::get_if<health::DriverNotice>(&one.body);
      return body != nullptr && body->notice == notice;
    });
  }
  // What was last said of the GPU's events: nullopt nothing, else whether there are any.
  std::optional<bool> has_events(const DeviceUuid& gpu) {
    std::optional<bool> has;
    for (const auto& one : told()) {
      const auto* notice = std::get_if<health::SourceNotice>(&one.body);
      if (notice != nullptr && one.scope.gpu == gpu) has = !notice->absent;
    }
    return has;
  }
  std::optional<health::Scope> xid(std::uint64_t number) {
    for (std::size_t count = 1;; ++count) {
      const auto all = evidence_.wait(count);
      for (const auto& one : all) {
        const auto* report = std::get_if<health::XidReport>(&one.body);
        if (report != nullptr && report->code == number) return one.scope;
      }
      if (all.size() < count) return std::nullopt;
    }
  }

  Gathered<health::Evidence> evidence_;
  Gathered<bool> changes_;
  Gathered<Error> failures_;
  std::unique_ptr<SimRoot> root_;
  LoopThread thread_;
  std::unique_ptr<NvmlDriver> driver_;
};

TEST_F(NvmlDriverTest, ReadsAWholeMachine) {
  start(std::make_unique<SimRoot>(**sim::load_machine("dgx1-v100")), 10s);
  ASSERT_TRUE(open());
  const auto first = read_well();
  ASSERT_EQ(first.gpus.size(), 8u);
  for (const auto& gpu : first.gpus) EXPECT_FALSE(gpu.unreadable);
  EXPECT_EQ(first.pcie.size(), 64u);
  EXPECT_EQ(first.pcie_between(0, 7), PcieDistance::kSystem);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(first.pcie_between(i, i), PcieDistance::kInternal);
  EXPECT_EQ(std::ranges::count(first.pcie, PcieDistance::kUnknown), 0);
  EXPECT_GT(read_well().generation, first.generation);
}

TEST_F(NvmlDriverTest, ReadingBeforeOpeningIsUnavailable) {
  EXPECT_EQ(read().error().code(), Code::kUnavailable);
}

TEST_F(NvmlDriverTest, WaitsForADriverThatComesLater) {
  start(SimRoot::unfinished());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(open().error().code(), Code::kUnavailable);
  root_->install(GPULET_SIM_LIBRARY, "570.124.06");
  ASSERT_TRUE(open());
  EXPECT_EQ(read_well().gpus.size(), 4u);
}

TEST_F(NvmlDriverTest, ADriverThatIsTooOldIsRefused) {
  auto machine = sim::small_machine(1);
  sim::set_text(machine->driver.version, "390.46");
  start(std::make_unique<SimRoot>(*machine));
  const auto status = open();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::kUnsupported);
  EXPECT_EQ(status.error().message(), "NVIDIA driver 390.46 is too old: 418.81.07 or later is needed");
}

TEST_F(NvmlDriverTest, AGpuThatHangsLeavesTheOthersWhole) {
  ASSERT_TRUE(open());
  const auto before = read_well();
  root_->edit()->gpus[1].faults.hang = 1;
  const auto during = read_well();
  ASSERT_EQ(during.gpus.size(), 4u);
  ASSERT_TRUE(during.gpus[1].unreadable);
  EXPECT_EQ(during.gpus[1].unreadable->code(), Code::kDeadlineExceeded);
  EXPECT_EQ(during.gpus[1].uuid, before.gpus[1].uuid) << "it keeps what was known of it";
  EXPECT_EQ(during.gpus[1].nvlinks, before.gpus[1].nvlinks);
  EXPECT_EQ(during.pcie, before.pcie);
  for (const std::size_t i : {0, 2, 3}) EXPECT_FALSE(during.gpus[i].unreadable);

  // It is not called again, so the answer comes at once; the others are still asked.
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(answers(before.gpus[1].uuid));
  EXPECT_TRUE(answers(before.gpus[2].uuid));
  EXPECT_TRUE(read_well().gpus[1].unreadable);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 400ms);

  root_->edit()->gpus[1].faults.hang = 0;
  EXPECT_TRUE(eventually([&] { return answers(before.gpus[1].uuid); }));
  const auto after = read_well();
  EXPECT_FALSE(after.gpus[1].unreadable);
  std::size_t hanging = 1;
  thread_.run([&] { hanging = driver_->hanging_calls(); });
  EXPECT_EQ(hanging, 0u);
}

TEST_F(NvmlDriverTest, AGpuThatHangsFromTheStartIsNotWaitedForForEver) {
  root_->edit()->gpus[0].faults.hang = 1;
  ASSERT_TRUE(open());
  const auto snapshot = read_well();
  ASSERT_TRUE(snapshot.gpus[0].unreadable);
  EXPECT_TRUE(snapshot.gpus[0].uuid.empty());
  EXPECT_FALSE(snapshot.gpus[3].unreadable);
  wait_for_events(3);
}

TEST_F(NvmlDriverTest, AGpuThatAnswersLateIsReadAnew) {
  start(std::make_unique<SimRoot>(3u), 30s);
  ASSERT_TRUE(open());
  read_well();
  root_->edit()->gpus[2].faults.hang = 1;
  const auto changes = changes_.size();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_TRUE(read_well().gpus[2].unreadable) << "not waited for longer than kReadPatience";
  EXPECT_LT(std::chrono::steady_clock::now() - before, 10s);
  root_->edit()->gpus[2].faults.hang = 0;
  EXPECT_GT(changes_.wait(changes + 1).size(), changes);
  EXPECT_FALSE(read_well().gpus[2].unreadable);
}

TEST_F(NvmlDriverTest, ALostGpuIsUnreadableUntilItIsHealed) {
  ASSERT_TRUE(open());
  const auto before = read_well();
  root_->edit()->gpus[2].faults.lost = 1;
  const auto lost = read_well();
  ASSERT_TRUE(lost.gpus[2].unreadable);
  EXPECT_EQ(lost.gpus[2].unreadable->code(), Code::kDeviceLost);
  EXPECT_EQ(lost.gpus[2].uuid, before.gpus[2].uuid);
  EXPECT_FALSE(answers(before.gpus[2].uuid));
  sim::heal_gpu(root_->edit()->gpus[2]);
  EXPECT_TRUE(answers(before.gpus[2].uuid));
  EXPECT_FALSE(read_well().gpus[2].unreadable);
}

TEST_F(NvmlDriverTest, AQuestionTellsTheRecoveryAction) {
  ASSERT_TRUE(open());
  const auto uuid = read_well().gpus[0].uuid;
  EXPECT_EQ(body_of<health::RecoveryActionReading>(ask(uuid))->action, 0u);
  root_->edit()->gpus[0].recovery_action = 2;
  const auto marked = ask(uuid);
  EXPECT_EQ(answer_in(marked), Answer::kAnswers);
  for (const auto& one : marked) EXPECT_EQ(one.scope, health::Scope{uuid});
  EXPECT_EQ(body_of<health::RecoveryActionReading>(marked)->action, 2u);
  EXPECT_EQ(answer_in(ask(DeviceUuid("GPU-unknown"))), Answer::kLost);
}

TEST_F(NvmlDriverTest, APollTellsEverySource) {
  ASSERT_TRUE(open());
  const auto uuid = read_well().gpus[0].uuid;
  const auto all = poll({uuid});
  EXPECT_EQ(answer_in(all), Answer::kAnswers);
  EXPECT_TRUE(body_of<health::PcieReading>(all));
  EXPECT_TRUE(body_of<health::ProcessReading>(all));
  root_->edit()->gpus[0].faults.lost = 1;
  const auto lost = poll({uuid});
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(answer_in(lost), Answer::kLost);
}

TEST_F(NvmlDriverTest, AMigDeviceIsPolledByItself) {
  ASSERT_TRUE(open());
  {
    auto machine = root_->edit();
    ASSERT_EQ(sim::set_mig_mode(machine->gpus[0], true), sim::MigOutcome::kOk);
    sim::GpuInstance* instance = nullptr;
    sim::ComputeInstance* compute = nullptr;
    ASSERT_EQ(sim::create_gpu_instance(machine->gpus[0], 9, std::nullopt, &instance), sim::MigOutcome::kOk);
    ASSERT_EQ(sim::create_compute_instance(machine->gpus[0], *instance, 2, std::nullopt, &compute),
              sim::MigOutcome::kOk);
  }
  const auto gpu = read_well().gpus[0];
  ASSERT_EQ(gpu.mig_devices.size(), 1u);
  const health::Scope scope{gpu.uuid, gpu.mig_devices[0].gpu_instance, gpu.mig_devices[0].compute_instance};
  const auto answer = poll(scope);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].scope, scope);
  EXPECT_TRUE(body_of<health::ProcessReading>(answer));
  EXPECT_TRUE(poll({gpu.uuid, 12, 0}).empty()) << "there is no such instance";
}

TEST_F(NvmlDriverTest, AQuestionSeesThatTheCardOrItsMigLayoutIsAnother) {
  ASSERT_TRUE(open());
  const auto before = read_well();
  const auto changes = changes_.size();
  {
    auto machine = root_->edit();
    ASSERT_EQ(sim::set_mig_mode(machine->gpus[0], true), sim::MigOutcome::kOk);
  }
  EXPECT_TRUE(answers(before.gpus[0].uuid));
  EXPECT_GT(changes_.wait(changes + 1).size(), changes);
  EXPECT_TRUE(read_well().gpus[0].mig_enabled);
  sim::replace_gpu(*root_->edit(), 1);
  EXPECT_EQ(answer_in(ask(before.gpus[1].uuid)), Answer::kLost);
  const auto after = read_well();
  EXPECT_NE(after.gpus[1].uuid, before.gpus[1].uuid);
  EXPECT_FALSE(after.gpus[1].unreadable);
}

TEST_F(NvmlDriverTest, XidsComeWithTheirGpuAndInstances) {
  ASSERT_TRUE(open());
  const auto snapshot = read_well();
  wait_for_events();
  sim::post_event(*root_->edit(), 2, sim::kEventXid, 79);
  sim::post_event(*root_->edit(), 1, sim::kEventXid, 94, 3, 0);
  const auto whole = xid(79);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->gpu, snapshot.gpus[2].uuid);
  EXPECT_EQ(whole->gpu_instance, health::kNoInstance);
  EXPECT_EQ(whole->compute_instance, health::kNoInstance);
  const auto part = xid(94);
  ASSERT_TRUE(part);
  EXPECT_EQ(part->gpu, snapshot.gpus[1].uuid);
  EXPECT_EQ(part->gpu_instance, 3u);
  EXPECT_EQ(part->compute_instance, 0u);
}

TEST_F(NvmlDriverTest, NoXidIsMissedOnceAReadingIsTold) {
  // Slow calls make long what lies between the last reading of a GPU and the registration of its events.
  root_->edit()->driver.delay_us = 500;
  ASSERT_TRUE(open());
  ASSERT_EQ(read_well().gpus.size(), 4u);
  sim::post_event(*root_->edit(), 3, sim::kEventXid, 79);
  EXPECT_TRUE(xid(79));
}

TEST_F(NvmlDriverTest, EventsOfALostGpuStillNameIt) {
  ASSERT_TRUE(open());
  const auto snapshot = read_well();
  wait_for_events();
  root_->edit()->gpus[3].faults.lost = 1;
  EXPECT_TRUE(read_well().gpus[3].unreadable);
  sim::post_event(*root_->edit(), 3, sim::kEventXid, 79);
  const auto event = xid(79);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->gpu, snapshot.gpus[3].uuid);
}

TEST_F(NvmlDriverTest, OtherEventsAreNotices) {
  ASSERT_TRUE(open());
  const auto snapshot = read_well();
  for (const auto& gpu : snapshot.gpus) EXPECT_EQ(has_events(gpu.uuid), true);
  wait_for_events();
  const auto changes = changes_.size();
  sim::post_event(*root_->edit(), 1, sim::kEventSingleBitEcc, 0);
  sim::post_event(*root_->edit(), 1, sim::kEventDoubleBitEcc, 0);
  sim::post_event(*root_->edit(), 1, sim::kEventGpuRecoveryAction, 1);
  sim::post_event(*root_->edit(), 1, sim::kEventMigConfig, 0);
  sim::post_event(*root_->edit(), 1, sim::kEventXid, 63);
  ASSERT_TRUE(xid(63));
  EXPECT_TRUE(noticed(health::Notice::kDoubleBitEcc));
  EXPECT_TRUE(noticed(health::Notice::kRecoveryChanged));
  EXPECT_TRUE(noticed(health::Notice::kMigChanged));
  EXPECT_FALSE(noticed(health::Notice::kSingleBitEcc)) << "a corrected error is no change";
  EXPECT_EQ(changes_.size(), changes + 1) << "only what MIG changed is to be read anew";
}

TEST_F(NvmlDriverTest, AReloadIsSeenAndTheDriverOpenedAnew) {
  ASSERT_TRUE(open());
  const auto before = read_well();
  wait_for_events();
  const auto changes = changes_.size();
  sim::unload_driver(*root_->edit());
  EXPECT_GT(changes_.wait(changes + 1).size(), changes);
  EXPECT_EQ(failures_.size(), 0u) << "a reload is no failure of the wait";
  EXPECT_EQ(read().error().code(), Code::kUnavailable);
  EXPECT_EQ(open().error().code(), Code::kUnavailable);
  EXPECT_EQ(open().error().code(), Code::kUnavailable);
  sim::load_driver(*root_->edit());
  ASSERT_TRUE(open());
  const auto after = read_well();
  ASSERT_EQ(after.gpus.size(), before.gpus.size());
  EXPECT_EQ(after.gpus[0].uuid, before.gpus[0].uuid);
  EXPECT_GT(after.generation, before.generation);
  EXPECT_EQ(after.pcie, before.pcie);
  const auto seen = reports();
  EXPECT_TRUE(eventually([&] {
    sim::post_event(*root_->edit(), 0, sim::kEventXid, 2);
    return reports() > seen;
  }));
}

TEST_F(NvmlDriverTest, AReloadWhileAGpuHangs) {
  ASSERT_TRUE(open());
  const auto before = read_well();
  root_->edit()->gpus[1].faults.hang = 1;
  EXPECT_TRUE(read_well().gpus[1].unreadable);
  sim::unload_driver(*root_->edit());
  {
    auto machine = root_->edit();
    sim::load_driver(*machine);
    machine->gpus[1].faults.hang = 0;
  }
  ASSERT_TRUE(open());
  const auto after = read_well();
  EXPECT_FALSE(after.gpus[1].unreadable);
  EXPECT_EQ(after.gpus[1].uuid, before.gpus[1].uuid);
  // What the late call let go of was not the new initialisation.
  std::size_t hanging = 1;
  EXPECT_TRUE(eventually([&] {
    thread_.run([&] { hanging = driver_->hanging_calls(); });
    return hanging == 0;
  }));
  EXPECT_EQ(read_well().gpus.size(), 4u);
}

TEST_F(NvmlDriverTest, ADriverThatHangsAsAWholeAnswersWithErrorsAndComesBack) {
  ASSERT_TRUE(open());
  read_well();
  root_->edit()->driver.hang = 1;
  EXPECT_EQ(read().error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(open().error().code(), Code::kDeadlineExceeded);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(open().error().code(), Code::kDeadlineExceeded) << "refused: the first one still hangs";
  EXPECT_LT(std::chrono::steady_clock::now() - before, 400ms);
  root_->edit()->driver.hang = 0;
  EXPECT_TRUE(eventually([&] { return open().has_value(); }));
  EXPECT_EQ(read_well().gpus.size(), 4u);
}

TEST_F(NvmlDriverTest, AFailingWaitIsToldOnceAndTriedAgain) {
  ASSERT_TRUE(open());
  read_well();
  wait_for_events();
  root_->edit()->driver.event_wait_error = 999;
  ASSERT_EQ(failures_.wait(1).size(), 1u);
  EXPECT_EQ(failures_.wait(1)[0].code(), Code::kIo);
  const auto uuid = read_well().gpus[0].uuid;
  EXPECT_EQ(has_events(uuid), false);
  // Reading goes on meanwhile, and tells of nothing more.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(read_well().gpus.size(), 4u);
  failures_.wait(2, 700ms);  // several tries
  EXPECT_EQ(failures_.size(), 1u);
  root_->edit()->driver.event_wait_error = 0;
  const auto seen = reports();
  EXPECT_TRUE(eventually([&] {
    sim::post_event(*root_->edit(), 0, sim::kEventXid, 2);
    return reports() > seen;
  }));
}

TEST_F(NvmlDriverTest, ReadingsAskedForAtOnceAreAllAnswered) {
  ASSERT_TRUE(open());
  Gathered<std::uint64_t> generations;
  thread_.run([&] {
    for (int i = 0; i < 5; ++i) {
      driver_->read(
          [&](const Result<Snapshot>& snapshot) { generations.add(snapshot ? snapshot->generation : 0); });
    }
  });
  auto all = generations.wait(5);
  std::ranges::sort(all);
  EXPECT_EQ(all, (std::vector<std::uint64_t>{1, 2, 2, 2, 2}))
      << "one reading serves all that came during the first";
}

TEST_F(NvmlDriverTest, OpeningEndsAReadingUnderWay) {
  ASSERT_TRUE(open());
  root_->edit()->gpus[0].faults.hang = 1;
  Gathered<Error> ended;
  thread_.run([&] {
    driver_->read([&](const Result<Snapshot>& snapshot) {
      ended.add(snapshot ? Error(Code::kInternal, "read well") : snapshot.error());
    });
  });
  ASSERT_TRUE(open());
  ASSERT_EQ(ended.wait(1).size(), 1u);
  EXPECT_EQ(ended.wait(1)[0].code(), Code::kUnavailable);
}

TEST_F(NvmlDriverTest, ItsEndWaitsForNoCall) {
  ASSERT_TRUE(open());
  read_well();
  root_->edit()->driver.hang = 1;
  thread_.run([&] { driver_->read([](const Result<Snapshot>&) { FAIL() << "called after the end"; }); });
  const auto before = std::chrono::steady_clock::now();
  thread_.run([&] { driver_.reset(); });
  EXPECT_LT(std::chrono::steady_clock::now() - before, 100ms);
}

TEST_F(NvmlDriverTest, DisplaysAreLeftOut) {
  sim::set_text(root_->edit()->gpus[1].name, "NVIDIA DGX Display");
  ASSERT_TRUE(open());
  const auto snapshot = read_well();
  ASSERT_EQ(snapshot.gpus.size(), 3u);
  EXPECT_EQ(snapshot.gpus[1].index, 2u);
  EXPECT_EQ(snapshot.pcie_between(0, 1), PcieDistance::kSystem);
}

TEST(ReadSnapshot, NeedsNoAgent) {
  const SimRoot root(2);
  const auto snapshot = read_snapshot({.driver_root = root.path()});
  ASSERT_TRUE(snapshot) << snapshot.error().text();
  EXPECT_EQ(snapshot->gpus.size(), 2u);
  const auto none = SimRoot::unfinished();
  EXPECT_EQ(read_snapshot({.driver_root = none->path()}).error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace gpulet::agent
