// Closing the driver leaves no client of it, and it can be opened again.
#include <gtest/gtest.h>

#include "agent/driver/nvml_driver.h"
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
    thread_.run_on_loop([&] {
      driver_ = std::make_unique<NvmlDriver>(
          thread_.loop(), NvmlDriverOptions{.driver_root = root_.sim_root(), .events = false});
    });
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

}  // namespace
}  // namespace gpulet::agent
