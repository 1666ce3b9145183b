// Mode changes that the driver leaves pending (Ampere): the agent waits for what it can wait for, and
// resumes.
#include <gtest/gtest.h>

#include "agent/mig/mig_manager.h"
#include "agent/mig/test_mig.h"

#include <sys/wait.h>
#include <unistd.h>

namespace gpulet::agent {
namespace {

class MigModeTest : public MigManagerTest {
 protected:
  // From then on the driver may reset the GPUs for their mode.
  void activate_modes() {
    hardware_.monitors.reset();
    hardware_.modes_need_reset = false;
  }
  void reset_gpus() {
    for (std::size_t i = 0; i < 2; ++i) {
      auto& mig = hardware_.sim_gpu(i).mig;
      mig.current = mig.pending;
    }
    update_manager();
  }
  std::size_t attempts() const { return hardware_.applied.size(); }
  void expect_applied() {
    EXPECT_EQ(hardware_.mig_state(0).instances.size(), 7u);
    EXPECT_EQ(hardware_.mig_state(1).instances.size(), 7u);
    EXPECT_EQ(states_.back(), "success");
    EXPECT_TRUE(withdrawn_.empty());
  }
};

TEST_F(MigModeTest, ResumesWhenTheHolderHasEnded) {
  hardware_.monitors = {{812, "process 812 (nv-hostengine)"}, {900, "process 900 (exporter)"}};
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(20));
  EXPECT_EQ(attempts(), 2u) << "one for each GPU";
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(states_.back(), "pending");
  ASSERT_EQ(events_.count_events("MigNeedsReset"), 2u);
  EXPECT_EQ(
      events_.recorded[0].second,
      "GPU 0: its MIG mode is pending: in use by process 812 (nv-hostengine), process 900 (exporter); it "
      "takes effect when nothing holds the GPU any more (the label mig.config=all-1g.10gb)");

  end_process(812);
  loop_.advance(std::chrono::milliseconds(100));
  EXPECT_EQ(attempts(), 2u) << "one still holds it";
  activate_modes();
  end_process(900);
  loop_.advance(std::chrono::seconds(2));
  expect_applied();
  EXPECT_EQ(events_.count_events("MigNeedsReset"), 2u);
  EXPECT_EQ(events_.count_events("MigApplied"), 2u);
}

TEST_F(MigModeTest, IsRetriedRarelyForAnUnknownHolder) {
  hardware_.monitors.emplace();
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::hours(24));
  EXPECT_LE(attempts(), 2u * 110u);
  EXPECT_GE(attempts(), 2u * 45u);
  EXPECT_EQ(events_.count_events("MigNeedsReset"), 2u) << "reported once, however often it is tried";
  activate_modes();
  loop_.advance(kMigModeBackoff.max);
  expect_applied();
}

// A command like nvidia-smi has ended before its process is looked for.
TEST_F(MigModeTest, IsRetriedSoonForAHolderThatIsGone) {
  hardware_.monitors.emplace();
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(1));
  ASSERT_EQ(events_.count_events("MigNeedsReset"), 2u);
  activate_modes();
  loop_.advance(std::chrono::seconds(5));
  expect_applied();
}

TEST_F(MigModeTest, IsRetriedRarelyForAHolderThatCannotBeWatched) {
  watchable_ = false;
  hardware_.monitors = {{812, "process 812"}};
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  activate_modes();
  loop_.advance(kMigModeBackoff.max);
  expect_applied();
}

TEST_F(MigModeTest, WaitsForAResetFromOutsideWithoutPolling) {
  hardware_.modes_need_reset = true;
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  EXPECT_EQ(attempts(), 2u);
  EXPECT_EQ(loop_.pending_timers(), 0u);
  EXPECT_EQ(states_.back(), "pending");
  activate_modes();
  reset_gpus();
  loop_.advance(std::chrono::seconds(2));
  expect_applied();
}

TEST_F(MigModeTest, ResumesAtTheNextStart) {
  for (const bool by_reset : {false, true}) {
    activate_modes();
    set_label("all-disabled");
    loop_.advance(std::chrono::seconds(2));
    hardware_.monitors = {{812, "process 812"}};
    set_label("all-1g.10gb");
    loop_.advance(std::chrono::seconds(5));
    ASSERT_EQ(hardware_.mig_state(0).pending, true);
    activate_modes();
    if (by_reset) reset_gpus();
    restart_manager();
    loop_.advance(std::chrono::seconds(2));
    expect_applied();
  }
}

TEST_F(MigModeTest, AGpuThatAPodTookMeanwhileIsBlocked) {
  hardware_.monitors = {{812, "process 812"}};
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  hold_gpus({{0, "default/train"}, {1, "default/other"}});
  activate_modes();
  end_process(812);
  loop_.advance(std::chrono::hours(1));
  EXPECT_EQ(attempts(), 2u);
  EXPECT_EQ(events_.count_events("MigBlocked"), 2u);
  EXPECT_EQ(states_.back(), "pending");
  hold_gpus({});
  loop_.advance(kMigBackoff.max * 2);
  expect_applied();
}

TEST_F(MigModeTest, ResumesWhenTheDriverIsAcquired) {
  hardware_.monitors.emplace();
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  const auto before = attempts();
  manager_->set_driver_open(false);
  loop_.advance(std::chrono::hours(2));
  EXPECT_EQ(attempts(), before) << "nothing is tried while the driver is released";
  activate_modes();
  manager_->set_driver_open(true);
  loop_.advance(std::chrono::seconds(2));
  expect_applied();
}

TEST_F(MigModeTest, ANewTargetCancelsThePendingMode) {
  hardware_.monitors = {{812, "process 812"}};
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  ASSERT_EQ(hardware_.mig_state(0).pending, true);
  set_label("all-disabled");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(hardware_.mig_state(0).pending, std::nullopt);
  EXPECT_EQ(states_.back(), "success");
  EXPECT_TRUE(exits_.empty());
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

TEST_F(MigModeTest, AModeThatSomebodyCancelsIsSetAgain) {
  hardware_.modes_need_reset = true;
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  hardware_.sim_gpu(0).mig.pending = 0;
  update_manager();
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(hardware_.mig_state(0).pending, true);
  EXPECT_EQ(attempts(), 3u);
}

TEST_F(MigModeTest, HooksRunAgainForARetry) {
  hooks_.configured = true;
  hardware_.monitors = {{812, "process 812"}};
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  const auto modes = [&] { return std::ranges::count(hooks_.log, "pre-apply-mode"); };
  EXPECT_EQ(modes(), 2);
  activate_modes();
  end_process(812);
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(modes(), 4) << "what a hook stops has been started by apply-exit";
  expect_applied();
}

TEST(WatchProcessExit, ReportsTheEndOnce) {
  EpollLoop loop;
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(pipe_ends[1]);
    char byte;
    ::_exit(::read(pipe_ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  int ended = 0;
  Subscription watch = watch_process_exit(loop, static_cast<unsigned>(child), [&] {
    ++ended;
    watch.reset();
    loop.stop_loop();
  });
  ASSERT_TRUE(watch);
  ::close(pipe_ends[1]);
  ::close(pipe_ends[0]);
  loop.run_loop();
  EXPECT_EQ(ended, 1);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(watch_process_exit(loop, static_cast<unsigned>(child), [] {}));
}

}  // namespace
}  // namespace gpulet::agent
