// Closing the driver leaves no client of it, and it can be opened again: on request, around work that needs
// the driver alone, and on demand.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "agent/driver/nvml_driver.h"
#include "nvml/return_codes.h"
#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"
#include "sim/state/clients.h"

namespace gpulet::agent {
namespace {

class NvmlDriverCloseTest : public testing::Test {
 protected:
  void SetUp() override {
    auto state = sim::StateFile::open_state(root_.sim_root() + "/" + std::string(sim::kStatePathInRoot));
    ASSERT_TRUE(state) << state.error().full_message();
    state_ = std::move(*state);
    make_driver({.driver_root = root_.sim_root(), .events = false});
  }
  void make_driver(NvmlDriverOptions options) {
    thread_.run_on_loop([&] { driver_ = std::make_unique<NvmlDriver>(thread_.loop(), std::move(options)); });
  }
  void TearDown() override {
    thread_.run_on_loop([&] { driver_.reset(); });
  }
  Status open_and_wait() {
    return thread_.await<Status>([&](auto done) { driver_->open_driver(done); })
        .value_or(fail(Code::kInternal, "open_driver() never returned"));
  }
  Status close_and_wait() {
    return thread_.await<Status>([&](auto done) { driver_->close_driver(done); })
        .value_or(fail(Code::kInternal, "close_driver() never returned"));
  }
  Result<inventory::Snapshot> read_and_wait() {
    return thread_.await<Result<inventory::Snapshot>>([&](auto done) { driver_->read_snapshot(done); })
        .value_or(fail(Code::kInternal, "read_snapshot() never returned"));
  }
  using WeakSession = std::weak_ptr<const nvml::Session>;
  // The session that calls for GPU 0 get.
  Result<WeakSession> session_of_calls(const DeviceUuid& gpu) {
    return thread_
        .await<Result<WeakSession>>([&](auto done) {
          driver_->run_on_gpu<WeakSession>(
              gpu, "asking", kLimit,
              [](const NvmlDriver::SessionPtr& session, unsigned) { return WeakSession(session); }, done);
        })
        .value_or(fail(Code::kInternal, "run_on_gpu() never returned"));
  }
  health::Reachability probe_and_wait(const DeviceUuid& gpu) {
    const auto evidence = thread_.await<Driver::Evidence>([&](auto done) { driver_->probe_gpu(gpu, done); });
    EXPECT_TRUE(evidence);
    return std::get<health::HandleReading>(evidence->at(0).body).reachability;
  }
  bool becomes_unheld() {
    const auto limit = std::chrono::steady_clock::now() + nvml::kTestPatience;
    while (is_held() && std::chrono::steady_clock::now() < limit)
      state_.wait_for_change(state_.change_count(), 10);
    return !is_held();
  }
  static constexpr Duration kLimit = std::chrono::seconds(10);
  bool is_held() { return !sim::check_unused(state_, *state_.lock_for_read(), std::nullopt); }

  nvml::SimRoot root_{4};
  sim::StateFile state_;
  nvml::LoopThread thread_;
  std::unique_ptr<NvmlDriver> driver_;
};

TEST_F(NvmlDriverCloseTest, HoldsNothingUntilOpenedAgain) {
  EXPECT_TRUE(close_and_wait()) << "it was never open";
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(open_and_wait());
    const auto snapshot = read_and_wait();
    ASSERT_TRUE(snapshot) << snapshot.error().full_message();
    EXPECT_EQ(snapshot->gpus.size(), 4u);
    EXPECT_TRUE(is_held());
    const auto closed = close_and_wait();
    EXPECT_TRUE(closed) << closed.error().full_message();
    EXPECT_FALSE(is_held());
    EXPECT_EQ(read_and_wait().error().code(), Code::kUnavailable);
    const auto evidence =
        thread_.await<Driver::Evidence>([&](auto done) { driver_->probe_gpu(snapshot->gpus[0].uuid, done); });
    ASSERT_TRUE(evidence);
    const auto* handle = std::get_if<health::HandleReading>(&evidence->at(0).body);
    ASSERT_NE(handle, nullptr);
    EXPECT_EQ(handle->reachability, health::Reachability::kDriverAway);
  }
}

TEST_F(NvmlDriverCloseTest, AReadingInProgressEndsWithTheDriver) {
  ASSERT_TRUE(open_and_wait());
  std::optional<Result<inventory::Snapshot>> read;
  const auto closed = thread_.await<Status>([&](auto done) {
    driver_->read_snapshot([&](auto snapshot) { read = std::move(snapshot); });
    driver_->close_driver(done);
  });
  ASSERT_TRUE(closed && *closed);
  EXPECT_FALSE(is_held());
  thread_.run_on_loop([&] {
    ASSERT_TRUE(read);
    EXPECT_EQ(read->error().code(), Code::kUnavailable);
  });
}

TEST_F(NvmlDriverCloseTest, WorksAloneWhileCallsWait) {
  make_driver({.driver_root = root_.sim_root()});
  nvml::Collected<std::string> seen;
  thread_.run_on_loop([&] {
    driver_->set_events({.evidence =
                             [&](const health::Evidence& one) {
                               if (std::holds_alternative<health::XidReport>(one.body))
                                 seen.push_value("xid");
                             },
                         .changed = [&] { seen.push_value("changed"); },
                         .wait_failed = {}});
  });
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_and_wait();
  ASSERT_TRUE(snapshot);
  const DeviceUuid gpu = snapshot->gpus[1].uuid;
  const auto before = session_of_calls(gpu);
  ASSERT_TRUE(before);

  nvml::Collected<std::string> answers;
  const auto alone = thread_.await<Result<bool>>([&](auto done) {
    driver_->run_alone_on_gpu<bool>(
        gpu, "changing", kLimit,
        [&](const NvmlDriver::SessionPtr& session, unsigned index) -> Result<bool> {
          answers.push_value("alone");
          return before->expired() && session && index == 1;
        },
        [&, done](const Result<bool>& result) {
          answers.push_value("done");
          done(result);
        });
    // These come in the order of the calls, after it.
    driver_->probe_gpu(snapshot->gpus[0].uuid, [&](const Driver::Evidence& evidence) {
      const auto* handle = std::get_if<health::HandleReading>(&evidence.at(0).body);
      answers.push_value(handle != nullptr && handle->reachability == health::Reachability::kReachable
                             ? "reachable"
                             : "unreachable");
    });
    driver_->read_snapshot([&](const Result<inventory::Snapshot>& read) {
      answers.push_value(read && read->gpus.size() == 4 && !read->gpus[0].unreadable ? "read" : "unread");
    });
    driver_->close_driver([&](const Status& closed) { answers.push_value(closed ? "closed" : "refused"); });
  });
  ASSERT_TRUE(alone && *alone);
  EXPECT_TRUE(**alone) << "the session of before was closed first";
  auto order = answers.wait_for_values(5);
  ASSERT_EQ(order.size(), 5u);
  EXPECT_EQ(std::ranges::count(order, "refused"), 1);
  std::erase(order, "refused");
  EXPECT_EQ(order, (std::vector<std::string>{"alone", "done", "reachable", "read"}));
  EXPECT_TRUE(before->expired());
  EXPECT_EQ(seen.wait_for_values(1), std::vector<std::string>{"changed"});
  // The reading after it waits for events again.
  ASSERT_TRUE(read_and_wait());
  sim::post_event(*root_.edit_machine(), 2, sim::kEventXid, 13);
  EXPECT_EQ(seen.wait_for_values(2).back(), "xid");
  EXPECT_TRUE(close_and_wait());
  EXPECT_FALSE(is_held());
}

// Four changes that come together, as of a MIG layout for the node: one closing and one opening around all.
TEST_F(NvmlDriverCloseTest, WorkAloneOfSeveralGpusClosesTheDriverOnce) {
  const auto opened = [] {
    std::uint64_t count = 0;
    for (const auto& call : nvml::call_counts()) {
      if (std::string_view(call.function).starts_with("nvmlInit")) count += call.count;
    }
    return count;
  };
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_and_wait();
  ASSERT_TRUE(snapshot);
  const auto opened_before = opened();
  nvml::Collected<std::string> order;
  thread_.run_on_loop([&] {
    for (unsigned i = 0; i < 4; ++i) {
      driver_->run_alone_on_gpu<unsigned>(
          snapshot->gpus[i].uuid, "changing", kLimit,
          [i, &order](const NvmlDriver::SessionPtr& session, unsigned index) -> Result<unsigned> {
            order.push_value("work " + std::to_string(index));
            if (!session || i == 1) return fail(Code::kFailedPrecondition, "in use");
            return index;
          },
          [i, &order](const Result<unsigned>& result) {
            order.push_value((result ? "done " : "failed ") + std::to_string(i));
          });
    }
    driver_->read_snapshot([&](const auto& read) { order.push_value(read ? "read" : "unread"); });
  });
  EXPECT_EQ(order.wait_for_values(9),
            (std::vector<std::string>{"work 0", "work 1", "work 2", "work 3", "done 0", "failed 1", "done 2",
                                      "done 3", "read"}));
  EXPECT_EQ(opened() - opened_before, 5u);  // one for each, one for the agent
  EXPECT_TRUE(close_and_wait());
}

TEST_F(NvmlDriverCloseTest, WorkAloneNeedsAnOpenDriver) {
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_and_wait();
  ASSERT_TRUE(snapshot);
  ASSERT_TRUE(close_and_wait());
  const auto alone = thread_.await<Result<bool>>([&](auto done) {
    driver_->run_alone_on_gpu<bool>(
        snapshot->gpus[0].uuid, "changing", kLimit,
        [](const NvmlDriver::SessionPtr&, unsigned) -> Result<bool> { return true; }, done);
  });
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->error().message(), "the driver is released");
  const auto called = session_of_calls(snapshot->gpus[0].uuid);
  EXPECT_EQ(called.error().message(), "the driver is released");
  EXPECT_EQ(called.error().code(), Code::kUnavailable);
  EXPECT_FALSE(is_held());
}

// As nvidia-smi's reset, which the driver would refuse.
TEST_F(NvmlDriverCloseTest, WorkWithoutASessionIsNotRunWhileACallHoldsOne) {
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_and_wait();
  ASSERT_TRUE(snapshot);
  auto held = thread_.await<Result<NvmlDriver::SessionPtr>>([&](auto done) {
    driver_->run_on_gpu<NvmlDriver::SessionPtr>(
        snapshot->gpus[0].uuid, "holding", kLimit,
        [](const NvmlDriver::SessionPtr& session, unsigned) { return session; }, done);
  });
  ASSERT_TRUE(held && *held);
  std::atomic<int> runs = 0;
  const auto run_closed = [&] {
    return thread_
        .await<Result<bool>>([&](auto done) {
          driver_->run_closed<bool>(
              "working", kLimit,
              [&]() -> Result<bool> {
                ++runs;
                return true;
              },
              done);
        })
        .value_or(fail(Code::kInternal, "run_closed() never returned"));
  };
  EXPECT_EQ(run_closed().error().code(), Code::kUnavailable);
  EXPECT_EQ(runs, 0);
  held.reset();
  const auto done = run_closed();
  EXPECT_TRUE(done) << done.error().full_message();
  EXPECT_EQ(runs, 1);
}

TEST_F(NvmlDriverCloseTest, AMissingDriverAfterWorkAloneIsReported) {
  nvml::Collected<std::string> seen;
  thread_.run_on_loop([&] {
    driver_->set_events({.evidence = {}, .changed = [&] { seen.push_value("changed"); }, .wait_failed = {}});
  });
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_and_wait();
  ASSERT_TRUE(snapshot);
  const auto alone = thread_.await<Result<bool>>([&](auto done) {
    driver_->run_alone_on_gpu<bool>(
        snapshot->gpus[0].uuid, "changing", kLimit,
        [&](const NvmlDriver::SessionPtr&, unsigned) -> Result<bool> {
          sim::unload_driver(*root_.edit_machine());
          return true;
        },
        done);
  });
  ASSERT_TRUE(alone && *alone && **alone);
  EXPECT_EQ(seen.wait_for_values(2).size(), 2u) << "of the work, and of the missing session";
  EXPECT_EQ(probe_and_wait(snapshot->gpus[0].uuid), health::Reachability::kDriverAway);
  sim::load_driver(*root_.edit_machine());
  ASSERT_TRUE(open_and_wait());
  EXPECT_EQ(probe_and_wait(snapshot->gpus[0].uuid), health::Reachability::kReachable);
}

TEST_F(NvmlDriverCloseTest, OnDemandClosesBetweenUses) {
  make_driver({.driver_root = root_.sim_root(), .hold = config::DriverHold::kOnDemand});
  nvml::Collected<std::string> absent;
  thread_.run_on_loop([&] {
    driver_->set_events({.evidence =
                             [&](const health::Evidence& one) {
                               const auto* notice = std::get_if<health::SourceNotice>(&one.body);
                               if (notice != nullptr)
                                 absent.push_value(notice->unavailable.value_or("present"));
                             },
                         .changed = {},
                         .wait_failed = {}});
  });
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_and_wait();
  ASSERT_TRUE(snapshot);
  EXPECT_EQ(absent.wait_for_values(4), std::vector<std::string>(4, "gpulet.driver.hold is on-demand"))
      << "no events";
  const DeviceUuid gpu = snapshot->gpus[0].uuid;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(becomes_unheld());
    EXPECT_EQ(probe_and_wait(gpu), health::Reachability::kReachable);
    EXPECT_TRUE(is_held());
  }
  ASSERT_TRUE(becomes_unheld());
  const auto alone = thread_.await<Result<bool>>([&](auto done) {
    driver_->run_alone_on_gpu<bool>(
        gpu, "changing", kLimit, [](const auto&, unsigned) -> Result<bool> { return true; }, done);
  });
  ASSERT_TRUE(alone && *alone);
  ASSERT_TRUE(becomes_unheld());
  // A release is a release.
  ASSERT_TRUE(close_and_wait());
  EXPECT_EQ(probe_and_wait(gpu), health::Reachability::kDriverAway);
  EXPECT_FALSE(is_held());
  ASSERT_TRUE(open_and_wait());
  EXPECT_EQ(probe_and_wait(gpu), health::Reachability::kReachable);
}

TEST_F(NvmlDriverCloseTest, OnDemandReportsADriverThatIsGone) {
  make_driver({.driver_root = root_.sim_root(), .hold = config::DriverHold::kOnDemand});
  nvml::Collected<std::string> seen;
  thread_.run_on_loop([&] {
    driver_->set_events({.evidence = {}, .changed = [&] { seen.push_value("changed"); }, .wait_failed = {}});
  });
  ASSERT_TRUE(open_and_wait());
  const auto snapshot = read_and_wait();
  ASSERT_TRUE(snapshot);
  ASSERT_TRUE(becomes_unheld());
  sim::unload_driver(*root_.edit_machine());
  EXPECT_EQ(probe_and_wait(snapshot->gpus[0].uuid), health::Reachability::kDriverAway);
  EXPECT_EQ(seen.wait_for_values(1).size(), 1u);
  EXPECT_EQ(read_and_wait().error().code(), Code::kUnavailable);
  sim::load_driver(*root_.edit_machine());
  ASSERT_TRUE(open_and_wait());
  EXPECT_TRUE(read_and_wait());
}

}  // namespace
}  // namespace gpulet::agent
