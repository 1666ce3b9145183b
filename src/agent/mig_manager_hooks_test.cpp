#include "agent/test_mig.h"

namespace gpulet::agent {
namespace {

using mig::HookPoint;

// One log of all that is done to the node, in order.
class MigManagerHooksTest : public MigManagerTest {
 protected:
  MigManagerHooksTest() {
    hooks_.there = true;
    hooks_.name_of = [this](const MigHooks::About& about) {
      std::string text;
      for (const auto& gpu : about.gpus) text += " " + std::to_string(gpu == hardware_.state(0).uuid ? 0 : 1);
      return text + " " + about.layout;
    };
    hardware_.on_apply = [this](std::size_t gpu) {
      EXPECT_EQ(withdrawn_.size(), 1u);
      hooks_.log.push_back("apply " + std::to_string(gpu));
    };
  }
  void enable_both() {
    mig::states::enable(hardware_.gpu(0));
    mig::states::enable(hardware_.gpu(1));
  }
  std::size_t ran(const std::string& line) const {
    return static_cast<std::size_t>(std::ranges::count(hooks_.log, line));
  }
  using Lines = std::vector<std::string>;
};

TEST_F(MigManagerHooksTest, RunAroundTheRoundAndBeforeEachChange) {
  hooks_.on_run = [this](HookPoint point) {
    const bool around = point == HookPoint::kApplyStart || point == HookPoint::kApplyExit;
    EXPECT_EQ(withdrawn_.size(), around ? 0u : 1u) << mig::name(point);
    EXPECT_TRUE(point != HookPoint::kApplyStart || ever_withdrawn_.empty());
  };
  want("all-balanced");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-balanced", "pre-apply-mode 0 all-balanced",
                               "pre-apply-config 0 all-balanced", "apply 0", "pre-apply-mode 1 all-balanced",
                               "pre-apply-config 1 all-balanced", "apply 1", "apply-exit 0 1 all-balanced"}));
  EXPECT_EQ(states_, (Lines{"pending", "success"}));
}

TEST_F(MigManagerHooksTest, WhereTheModeStaysOnlyTheInstancesHaveTheirs) {
  enable_both();
  want("all-7g.80gb");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-7g.80gb", "pre-apply-config 0 all-7g.80gb", "apply 0",
                               "pre-apply-config 1 all-7g.80gb", "apply 1", "apply-exit 0 1 all-7g.80gb"}));
  hooks_.log.clear();
  enable_both();
  want("all-enabled");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(ran("pre-apply-config 1 all-enabled"), 1u);
  hooks_.log.clear();
  want("all-disabled");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-disabled", "pre-apply-mode 0 all-disabled", "apply 0",
                               "pre-apply-mode 1 all-disabled", "apply 1", "apply-exit 0 1 all-disabled"}));
}

TEST_F(MigManagerHooksTest, NoneRunWhereNothingIsToBeDoneOrCanBe) {
  want("all-disabled");
  loop_.advance(std::chrono::seconds(2));
  want("all-balancd");
  loop_.advance(std::chrono::seconds(2));
  hold({{0, "default/train"}, {1, "default/other"}});
  want("all-balanced");
  loop_.advance(std::chrono::minutes(5));
  EXPECT_EQ(hooks_.log, Lines{});
}

TEST_F(MigManagerHooksTest, AStartThatFailsRefusesTheWholeRound) {
  hooks_.fail[HookPoint::kApplyStart] = 1;
  want("all-balanced");
  loop_.advance(std::chrono::milliseconds(400));
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-balanced", "apply-exit 0 1 all-balanced"}));
  EXPECT_TRUE(ever_withdrawn_.empty());
  EXPECT_EQ(states_, (Lines{"pending", "failed"}));
  ASSERT_EQ(events_.count("MigHookFailed"), 1u);
  EXPECT_EQ(events_.said[0].second, "hooks.yaml:4:7: /bin/false: exit code 1; nothing was changed");

  loop_.advance(kMigBackoff.longest);
  EXPECT_EQ(hardware_.applied.size(), 2u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerHooksTest, OneBeforeAChangeThatFailsRefusesThatGpu) {
  for (const auto point : {HookPoint::kPreApplyMode, HookPoint::kPreApplyConfig}) {
    hooks_.log.clear();
    hardware_.applied.clear();
    hooks_.fail[point] = 1;
    want(point == HookPoint::kPreApplyMode ? "all-balanced" : "all-1g.10gb");
    loop_.advance(std::chrono::milliseconds(600));
    EXPECT_EQ(hardware_.applied, std::vector<std::size_t>{1}) << mig::name(point);
    EXPECT_TRUE(withdrawn_.empty());
    EXPECT_EQ(states_.back(), "failed");
    EXPECT_TRUE(hooks_.log.back().starts_with("apply-exit"));
    loop_.advance(kMigBackoff.longest);
    EXPECT_EQ(hardware_.applied, (std::vector<std::size_t>{1, 0}));
    EXPECT_EQ(states_.back(), "success");
  }
  EXPECT_EQ(events_.count("MigHookFailed"), 2u);
}

TEST_F(MigManagerHooksTest, TheExitRunsAfterAFailedChangeToo) {
  hardware_.fail_next = true;
  want("all-balanced");
  loop_.advance(std::chrono::milliseconds(600));
  EXPECT_EQ(states_.back(), "failed");
  EXPECT_EQ(ran("apply-exit 0 1 all-balanced"), 1u);
}

TEST_F(MigManagerHooksTest, TheExitIsTriedUntilItSucceeds) {
  hooks_.fail[HookPoint::kApplyExit] = 3;
  want("all-balanced");
  loop_.advance(std::chrono::milliseconds(600));
  EXPECT_EQ(hardware_.applied.size(), 2u);
  EXPECT_EQ(states_.back(), "failed");
  loop_.advance(kMigBackoff.longest);
  EXPECT_EQ(states_.back(), "success");
  EXPECT_EQ(ran("apply-exit 0 1 all-balanced"), 4u);
  EXPECT_EQ(ran("apply-start 0 1 all-balanced"), 1u) << "nothing was left to be done";
  EXPECT_EQ(hardware_.applied.size(), 2u);
  EXPECT_EQ(events_.count("MigHookFailed"), 1u);
}

TEST_F(MigManagerHooksTest, MayStopTheProcessesThatAreInTheWay) {
  hardware_.processes[0] = "process 4711 (nv-hostengine)";
  hooks_.on_run = [this](HookPoint point) {
    if (point == HookPoint::kPreApplyMode) hardware_.processes.clear();
  };
  want("all-balanced");
  loop_.advance(std::chrono::seconds(1));
  EXPECT_EQ(hardware_.applied, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(states_.back(), "success");
  EXPECT_EQ(events_.count("MigBlocked"), 0u);
}

TEST_F(MigManagerHooksTest, AreNotRunAgainAndAgainForAProcessThatStays) {
  hardware_.processes[0] = "process 4711 (python3)";
  want("all-balanced");
  loop_.advance(std::chrono::minutes(10));
  EXPECT_EQ(ran("pre-apply-mode 0 all-balanced"), 1u);
  EXPECT_EQ(ran("apply-start 0 1 all-balanced"), 1u);
  EXPECT_EQ(ran("apply-exit 0 1 all-balanced"), 1u);
  EXPECT_EQ(hardware_.applied, std::vector<std::size_t>{1});
  EXPECT_EQ(states_.back(), "pending");
  EXPECT_EQ(events_.count("MigBlocked"), 1u);
  EXPECT_TRUE(withdrawn_.empty());

  hardware_.processes.clear();
  loop_.advance(kMigBackoff.longest);
  EXPECT_EQ(ran("pre-apply-mode 0 all-balanced"), 2u) << "now that it changes, they are due";
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerHooksTest, AModeThatWaitsForAResetHadItsHooks) {
  hardware_.modes_need_reset = true;
  want("all-balanced");
  loop_.advance(std::chrono::minutes(5));
  EXPECT_EQ(ran("pre-apply-mode 0 all-balanced"), 1u);
  EXPECT_EQ(ran("apply-start 0 1 all-balanced"), 1u);
  EXPECT_EQ(states_.back(), "pending");
  hardware_.modes_need_reset = false;
  mig::states::enable(hardware_.gpu(0));
  mig::states::enable(hardware_.gpu(1));
  hooks_.log.clear();
  loop_.advance(kMigBackoff.longest);
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-balanced", "pre-apply-config 0 all-balanced", "apply 0",
                               "pre-apply-config 1 all-balanced", "apply 1", "apply-exit 0 1 all-balanced"}));
}

TEST_F(MigManagerHooksTest, WhoCameWhileTheyRanIsSeen) {
  hooks_.on_run = [this](HookPoint point) {
    if (point == HookPoint::kPreApplyConfig) hold({{0, "default/late"}});
  };
  want("all-balanced");
  loop_.advance(std::chrono::milliseconds(600));
  EXPECT_EQ(hardware_.applied, std::vector<std::size_t>{1});
  EXPECT_EQ(states_.back(), "pending");
  EXPECT_EQ(events_.count("MigBlocked"), 1u);
}

TEST_F(MigManagerHooksTest, AnotherWishWhileTheyRunComesAfterTheExit) {
  bool changed = false;
  hooks_.on_run = [&](HookPoint) {
    if (!std::exchange(changed, true)) want("all-1g.10gb");
  };
  want("all-balanced");
  loop_.advance(std::chrono::seconds(2));
  ASSERT_GE(hooks_.log.size(), 3u);
  EXPECT_EQ(hooks_.log[0], "apply-start 0 1 all-balanced");
  EXPECT_EQ(hooks_.log[1], "apply-exit 0 1 all-balanced");
  EXPECT_EQ(hooks_.log[2], "apply-start 0 1 all-1g.10gb");
  EXPECT_EQ(hardware_.state(0).instances.size(), 7u);
  EXPECT_EQ(states_.back(), "success");
}

}  // namespace
}  // namespace gpulet::agent
