#include <stdlib.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "agent/mig/mig_manager.h"
#include "agent/mig/test_mig.h"
#include "base/file.h"

namespace gpulet::agent {
namespace {

using mig::states::add_instance;

TEST_F(MigManagerTest, AppliesTheLabelToOneGpuAtATime) {
  std::size_t withdrawn_at_once = 0;
  hardware_.on_apply = [&](std::size_t) {
    withdrawn_at_once = std::max(withdrawn_at_once, withdrawn_.size());
  };
  set_label("all-balanced");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(layout_text(0), layout_text(1));
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 4u);
  EXPECT_EQ(withdrawn_at_once, 1u);
  EXPECT_EQ(ever_withdrawn_.size(), 2u);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(states_, (std::vector<std::string>{"pending", "success"}));
  EXPECT_EQ(events_.count_events("MigApplied"), 2u);
}

TEST_F(MigManagerTest, AMatchingGpuIsNotTouched) {
  set_label("all-disabled");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_TRUE(ever_withdrawn_.empty());
  EXPECT_EQ(states_, std::vector<std::string>{"success"});
}

TEST_F(MigManagerTest, GpuInUseStaysAllocatableAndOthersChange) {
  holders_ =
      std::map<DeviceId, std::string>{{DeviceId(hardware_.mig_state(0).uuid.str() + "::1"), "default/train"}};
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(3));
  EXPECT_FALSE(hardware_.mig_state(0).enabled);
  EXPECT_EQ(hardware_.mig_state(1).instances.size(), 7u);
  EXPECT_EQ(ever_withdrawn_.size(), 1u);
  EXPECT_EQ(states_.back(), "pending");
  EXPECT_EQ(events_.count_events("MigBlocked"), 1u) << "reported once, however often it is tried";
  EXPECT_NE(events_.recorded.front().second.find("default/train"), std::string::npos);

  holders_ = std::map<DeviceId, std::string>{};
  loop_.advance(kMigBackoff.max * 2);
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 7u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerTest, APodFromBeforeTheWithdrawalIsSeen) {
  mig::states::set_mig_mode(hardware_.sim_gpu(0));
  mig::states::set_mig_mode(hardware_.sim_gpu(1));
  ASSERT_NE(add_instance(hardware_.sim_gpu(0), "7g.80gb", 0), nullptr);
  const auto uuid = hardware_.mig_state(0).instances[0].compute[0].uuid;
  set_label("all-1g.10gb");
  // Admitted while the GPU was being withdrawn.
  while (withdrawn_.empty()) loop_.advance(std::chrono::milliseconds(1));
  holders_ = std::map<DeviceId, std::string>{{DeviceId(uuid.str()), "default/late"}};
  loop_.advance(std::chrono::seconds(2));
  ASSERT_EQ(hardware_.mig_state(0).instances.size(), 1u);
  EXPECT_EQ(hardware_.mig_state(0).instances[0].compute[0].uuid, uuid);
  EXPECT_TRUE(withdrawn_.empty());
}

TEST_F(MigManagerTest, AnUnknownLayoutIsRefused) {
  set_label("all-balancd");
  loop_.advance(std::chrono::minutes(3));
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_EQ(states_, std::vector<std::string>{"failed"});
  ASSERT_EQ(events_.count_events("MigRefused"), 1u);
  EXPECT_NE(events_.recorded[0].second.find("all-balanced"), std::string::npos) << events_.recorded[0].second;
}

TEST_F(MigManagerTest, AFailedStepIsRetried) {
  hardware_.fail_next = true;
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(1));
  EXPECT_EQ(states_.back(), "failed");
  EXPECT_EQ(hardware_.mig_state(1).instances.size(), 7u);
  loop_.advance(kMigBackoff.max * 2);
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 7u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerTest, NothingIsTouchedWithoutTheKubelet) {
  holders_ = fail(Code::kUnavailable, "no kubelet");
  set_label("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_EQ(states_.back(), "pending");
}

TEST_F(MigManagerTest, ANewTargetIsAppliedNext) {
  set_label("all-1g.10gb");
  while (hardware_.applied.empty()) loop_.advance(std::chrono::milliseconds(1));
  set_label("all-balanced");
  loop_.advance(std::chrono::seconds(5));
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 4u);
  EXPECT_EQ(hardware_.mig_state(1).instances.size(), 4u);
  EXPECT_EQ(states_.back(), "success");
}

}  // namespace

namespace {

using mig::HookPoint;

// One log of all that is done to the node, in order.
class MigManagerHooksTest : public MigManagerTest {
 protected:
  MigManagerHooksTest() {
    hooks_.configured = true;
    hooks_.name_of = [this](const MigHooks::HookSubject& about) {
      std::string text;
      for (const auto& gpu : about.gpus)
        text += " " + std::to_string(gpu == hardware_.mig_state(0).uuid ? 0 : 1);
      return text + " " + about.layout;
    };
    hardware_.on_apply = [this](std::size_t gpu) {
      EXPECT_EQ(withdrawn_.size(), 1u);
      hooks_.log.push_back("apply " + std::to_string(gpu));
    };
  }
  void enable_both() {
    mig::states::set_mig_mode(hardware_.sim_gpu(0));
    mig::states::set_mig_mode(hardware_.sim_gpu(1));
  }
  std::size_t ran(const std::string& line) const {
    return static_cast<std::size_t>(std::ranges::count(hooks_.log, line));
  }
  using Lines = std::vector<std::string>;
};

TEST_F(MigManagerHooksTest, RunAroundTheRoundAndBeforeEachChange) {
  hooks_.on_run = [this](HookPoint point) {
    const bool around = point == HookPoint::kApplyStart || point == HookPoint::kApplyExit;
    EXPECT_EQ(withdrawn_.size(), around ? 0u : 1u) << mig::hook_point_name(point);
    EXPECT_TRUE(point != HookPoint::kApplyStart || ever_withdrawn_.empty());
  };
  set_label("all-balanced");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-balanced", "pre-apply-mode 0 all-balanced",
                               "pre-apply-config 0 all-balanced", "apply 0", "pre-apply-mode 1 all-balanced",
                               "pre-apply-config 1 all-balanced", "apply 1", "apply-exit 0 1 all-balanced"}));
  EXPECT_EQ(states_, (Lines{"pending", "success"}));
}

TEST_F(MigManagerHooksTest, OnlyInstanceHooksRunIfTheModeStays) {
  enable_both();
  set_label("all-7g.80gb");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-7g.80gb", "pre-apply-config 0 all-7g.80gb", "apply 0",
                               "pre-apply-config 1 all-7g.80gb", "apply 1", "apply-exit 0 1 all-7g.80gb"}));
  hooks_.log.clear();
  enable_both();
  set_label("all-enabled");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(ran("pre-apply-config 1 all-enabled"), 1u);
  hooks_.log.clear();
  set_label("all-disabled");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-disabled", "pre-apply-mode 0 all-disabled", "apply 0",
                               "pre-apply-mode 1 all-disabled", "apply 1", "apply-exit 0 1 all-disabled"}));
}

TEST_F(MigManagerHooksTest, NoneRunWithoutAPossibleChange) {
  set_label("all-disabled");
  loop_.advance(std::chrono::seconds(2));
  set_label("all-balancd");
  loop_.advance(std::chrono::seconds(2));
  hold_gpus({{0, "default/train"}, {1, "default/other"}});
  set_label("all-balanced");
  loop_.advance(std::chrono::minutes(5));
  EXPECT_EQ(hooks_.log, Lines{});
}

TEST_F(MigManagerHooksTest, AFailedStartHookRefusesTheRound) {
  hooks_.fail[HookPoint::kApplyStart] = 1;
  set_label("all-balanced");
  loop_.advance(std::chrono::milliseconds(400));
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-balanced", "apply-exit 0 1 all-balanced"}));
  EXPECT_TRUE(ever_withdrawn_.empty());
  EXPECT_EQ(states_, (Lines{"pending", "failed"}));
  ASSERT_EQ(events_.count_events("MigHookFailed"), 1u);
  EXPECT_EQ(events_.recorded[0].second, "hooks.yaml:4:7: /bin/false: exit code 1; nothing was changed");

  loop_.advance(kMigBackoff.max);
  EXPECT_EQ(hardware_.applied.size(), 2u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerHooksTest, AFailedChangeHookRefusesThatGpu) {
  for (const auto point : {HookPoint::kPreApplyMode, HookPoint::kPreApplyConfig}) {
    hooks_.log.clear();
    hardware_.applied.clear();
    hooks_.fail[point] = 1;
    set_label(point == HookPoint::kPreApplyMode ? "all-balanced" : "all-1g.10gb");
    loop_.advance(std::chrono::milliseconds(600));
    EXPECT_EQ(hardware_.applied, std::vector<std::size_t>{1}) << mig::hook_point_name(point);
    EXPECT_TRUE(withdrawn_.empty());
    EXPECT_EQ(states_.back(), "failed");
    EXPECT_TRUE(hooks_.log.back().starts_with("apply-exit"));
    loop_.advance(kMigBackoff.max);
    EXPECT_EQ(hardware_.applied, (std::vector<std::size_t>{1, 0}));
    EXPECT_EQ(states_.back(), "success");
  }
  EXPECT_EQ(events_.count_events("MigHookFailed"), 2u);
}

TEST_F(MigManagerHooksTest, TheExitHookRunsAfterAFailedChangeToo) {
  hardware_.fail_next = true;
  set_label("all-balanced");
  loop_.advance(std::chrono::milliseconds(600));
  EXPECT_EQ(states_.back(), "failed");
  EXPECT_EQ(ran("apply-exit 0 1 all-balanced"), 1u);
}

TEST_F(MigManagerHooksTest, TheExitHookIsRetriedUntilItSucceeds) {
  hooks_.fail[HookPoint::kApplyExit] = 3;
  set_label("all-balanced");
  loop_.advance(std::chrono::milliseconds(600));
  EXPECT_EQ(hardware_.applied.size(), 2u);
  EXPECT_EQ(states_.back(), "failed");
  loop_.advance(kMigBackoff.max);
  EXPECT_EQ(states_.back(), "success");
  EXPECT_EQ(ran("apply-exit 0 1 all-balanced"), 4u);
  EXPECT_EQ(ran("apply-start 0 1 all-balanced"), 1u) << "nothing was left to be done";
  EXPECT_EQ(hardware_.applied.size(), 2u);
  EXPECT_EQ(events_.count_events("MigHookFailed"), 1u);
}

TEST_F(MigManagerHooksTest, HooksMayStopBlockingProcesses) {
  hardware_.processes[0] = "process 4711 (nv-hostengine)";
  hooks_.on_run = [this](HookPoint point) {
    if (point == HookPoint::kPreApplyMode) hardware_.processes.clear();
  };
  set_label("all-balanced");
  loop_.advance(std::chrono::seconds(1));
  EXPECT_EQ(hardware_.applied, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(states_.back(), "success");
  EXPECT_EQ(events_.count_events("MigBlocked"), 0u);
}

TEST_F(MigManagerHooksTest, HooksAreNotRepeatedForAProcessThatStays) {
  hardware_.processes[0] = "process 4711 (python3)";
  set_label("all-balanced");
  loop_.advance(std::chrono::minutes(10));
  EXPECT_EQ(ran("pre-apply-mode 0 all-balanced"), 1u);
  EXPECT_EQ(ran("apply-start 0 1 all-balanced"), 1u);
  EXPECT_EQ(ran("apply-exit 0 1 all-balanced"), 1u);
  EXPECT_EQ(hardware_.applied, std::vector<std::size_t>{1});
  EXPECT_EQ(states_.back(), "pending");
  EXPECT_EQ(events_.count_events("MigBlocked"), 1u);
  EXPECT_TRUE(withdrawn_.empty());

  hardware_.processes.clear();
  loop_.advance(kMigBackoff.max);
  EXPECT_EQ(ran("pre-apply-mode 0 all-balanced"), 2u) << "now that it changes, they are due";
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerHooksTest, HooksAreNotRepeatedForAModeThatWaitsForAReset) {
  hardware_.modes_need_reset = true;
  set_label("all-balanced");
  loop_.advance(std::chrono::minutes(5));
  EXPECT_EQ(ran("pre-apply-mode 0 all-balanced"), 1u);
  EXPECT_EQ(ran("apply-start 0 1 all-balanced"), 1u);
  EXPECT_EQ(states_.back(), "pending");
  hardware_.modes_need_reset = false;
  mig::states::set_mig_mode(hardware_.sim_gpu(0));
  mig::states::set_mig_mode(hardware_.sim_gpu(1));
  hooks_.log.clear();
  update_manager();
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(hooks_.log, (Lines{"apply-start 0 1 all-balanced", "pre-apply-config 0 all-balanced", "apply 0",
                               "pre-apply-config 1 all-balanced", "apply 1", "apply-exit 0 1 all-balanced"}));
}

TEST_F(MigManagerHooksTest, APodThatArrivesDuringHooksIsSeen) {
  hooks_.on_run = [this](HookPoint point) {
    if (point == HookPoint::kPreApplyConfig) hold_gpus({{0, "default/late"}});
  };
  set_label("all-balanced");
  loop_.advance(std::chrono::milliseconds(600));
  EXPECT_EQ(hardware_.applied, std::vector<std::size_t>{1});
  EXPECT_EQ(states_.back(), "pending");
  EXPECT_EQ(events_.count_events("MigBlocked"), 1u);
}

TEST_F(MigManagerHooksTest, ANewTargetDuringHooksFollowsTheExitHook) {
  bool changed = false;
  hooks_.on_run = [&](HookPoint) {
    if (!std::exchange(changed, true)) set_label("all-1g.10gb");
  };
  set_label("all-balanced");
  loop_.advance(std::chrono::seconds(2));
  ASSERT_GE(hooks_.log.size(), 3u);
  EXPECT_EQ(hooks_.log[0], "apply-start 0 1 all-balanced");
  EXPECT_EQ(hooks_.log[1], "apply-exit 0 1 all-balanced");
  EXPECT_EQ(hooks_.log[2], "apply-start 0 1 all-1g.10gb");
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 7u);
  EXPECT_EQ(states_.back(), "success");
}

}  // namespace

namespace {

using mig::HookPoint;

class ConfiguredHooksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "mig_hooks.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    settings_.config_file = "/etc/mig.yaml";
    settings_.hooks_file = directory_ + "/hooks.yaml";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void hooks(const std::string& text) {
    ASSERT_TRUE(write_file_atomic(settings_.hooks_file, "version: v1\nhooks:\n" + text));
  }
  Status run_point(HookPoint point, MigHooks::HookSubject about = {{DeviceUuid("GPU-1"), DeviceUuid("GPU-2")},
                                                                   "all-balanced"}) {
    Status result = fail(Code::kInternal, "never ended");
    hooks_.run_hooks(point, about, [&](const Status& status) {
      result = status;
      loop_.stop_loop();
    });
    loop_.run_loop();
    return result;
  }
  std::string wrote() const { return read_file(directory_ + "/out").value_or("nothing"); }

  EpollLoop loop_;
  std::string directory_;
  config::MigSettings settings_;
  ConfiguredMigHooks hooks_{loop_, [this] { return settings_; }};
};

TEST_F(ConfiguredHooksTest, CommandsGetTheirVariables) {
  hooks(
      "  pre-apply-mode:\n    - command: /bin/sh\n      args: [-c, 'env | grep -e ^MIG_ -e ^GPULET_ | sort "
      ">" +
      directory_ + "/out']\n      envs: {PATH: /usr/bin:/bin}\n");
  EXPECT_TRUE(hooks_.are_configured());
  ASSERT_TRUE(run_point(HookPoint::kApplyStart));
  EXPECT_EQ(wrote(), "nothing");
  ASSERT_TRUE(run_point(HookPoint::kPreApplyMode));
  EXPECT_EQ(wrote(),
            "GPULET_GPU=GPU-1,GPU-2\nGPULET_HOOK=pre-apply-mode\nMIG_PARTED_CONFIG_FILE=/etc/mig.yaml\n"
            "MIG_PARTED_HOOKS_FILE=" +
                settings_.hooks_file +
                "\nMIG_PARTED_MODE_CHANGE_ONLY=false\nMIG_PARTED_SELECTED_CONFIG=all-balanced\n"
                "MIG_PARTED_SKIP_RESET=true\n");
}

TEST_F(ConfiguredHooksTest, AnInvalidFileFailsApplyStart) {
  hooks("  apply-exit:\n    - command: touch\n");
  const auto status = run_point(HookPoint::kApplyStart);
  ASSERT_FALSE(status);
  EXPECT_EQ(
      status.error().full_message(),
      settings_.hooks_file + ":4:16: hooks.apply-exit[0].command: expected an absolute path, found 'touch'");
  hooks("  apply-exit:\n    - {command: /bin/touch, args: [" + directory_ + "/out]}\n");
  EXPECT_TRUE(run_point(HookPoint::kApplyExit));
  EXPECT_EQ(wrote(), "nothing") << "what never started has no end";
}

TEST_F(ConfiguredHooksTest, AMissingFileFailsApplyStart) {
  const auto status = run_point(HookPoint::kApplyStart);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().subject(), settings_.hooks_file);
}

TEST_F(ConfiguredHooksTest, AFixedExitHookIsUsed) {
  hooks("  apply-exit:\n    - command: /bin/false\n");
  ASSERT_TRUE(run_point(HookPoint::kApplyStart));
  EXPECT_FALSE(run_point(HookPoint::kApplyExit));
  ASSERT_TRUE(write_file_atomic(settings_.hooks_file, "half a fi"));
  EXPECT_FALSE(run_point(HookPoint::kApplyExit)) << "the one that is known, as long as there is no other";
  hooks("  apply-exit:\n    - {command: /bin/touch, args: [" + directory_ + "/out]}\n");
  EXPECT_TRUE(run_point(HookPoint::kApplyExit));
  EXPECT_EQ(wrote(), "");
}

TEST(MigTargets, ExcludedGpusHaveNone) {
  inventory::Snapshot snapshot;
  for (unsigned i = 0; i < 3; ++i) {
    auto& gpu = snapshot.gpus.emplace_back();
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.mig_capable = true;
  }
  config::Config config;
  config.gpulet.mig.manage = true;
  config.gpulet.partition = {{.devices = config::GpuRefs{{1, 1, {}}},
                              .model = std::nullopt,
                              .node_label = std::nullopt,
                              .display = std::nullopt,
                              .mode = config::Exclude{},
                              .position = "x.yaml:3:5"}};
  EXPECT_TRUE(mig_targets(snapshot, config, {}).empty());
  std::vector<std::string> by_label;
  for (const auto& target : mig_targets(snapshot, config, {{std::string(kMigConfigLabel), "all-balanced"}}))
    by_label.push_back(target.gpu.str());
  EXPECT_EQ(by_label, (std::vector<std::string>{"GPU-0", "GPU-2"}));
  // Claims make the instances of this one.
  config.gpulet.partition[0].mode = config::DynamicMig{{"1g.10gb"}};
  EXPECT_TRUE(mig_targets(snapshot, config, {}).empty());
  EXPECT_EQ(mig_targets(snapshot, config, {{std::string(kMigConfigLabel), "all-balanced"}}).size(), 2u);
}

TEST_F(ConfiguredHooksTest, NoneWithoutAFile) {
  settings_.hooks_file.clear();
  EXPECT_FALSE(hooks_.are_configured());
}

}  // namespace
}  // namespace gpulet::agent
