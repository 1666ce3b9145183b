// A MIG mode is switched on and off next to a running agent: by `gpulet mig apply`, by a client like
// nvidia-smi, and by the agent itself. The driver activates it only on a GPU that no other process holds.
// Pods of other GPUs keep what they have.
#include "tests/sim/release_fixture.h"

namespace gpulet::tests {
namespace {

constexpr const char* kSlices = "all-1g.10gb";

class SimMigMode : public SimReleaseByLabel, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { bring_up_cluster(GetParam()); }
  void start(std::vector<std::string> arguments) {
    start_agent_in_cluster(std::move(arguments));
    trainer_ = admit_pod("trainer", 2);
    const auto held = granted_ids(trainer_);
    while (std::ranges::count(held, gpu_uuid(free_gpu_)) != 0) ++free_gpu_;
  }
  std::string gpu() const { return std::to_string(free_gpu_); }

  // `gpulet mig apply`, with the reset that some machines need.
  void apply_layout(const std::string& layout) {
    const std::vector<std::string> command = {"mig", "apply", "-c", layout, "--gpu", gpu()};
    RunningCommand applying(command, command_environment());
    const int code = applying.exit_code();
    EXPECT_EQ(applying.output_text().find("in use"), std::string::npos) << applying.output_text();
    if (code == 0) return;
    EXPECT_EQ(code, 2) << applying.output_text();
    EXPECT_NE(applying.output_text().find("needs a reset"), std::string::npos) << applying.output_text();
    reset_gpu();
    run_gpulet(0, command);
  }
  void reset_gpu() {
    run_gpulet(0, {"driver", "release"});
    EXPECT_EQ(smi_error({"-r", "-i", gpu()}), "");
    run_gpulet(0, {"driver", "acquire"});
  }
  // Below `gpulet:`. Returns the path of the config.
  std::string write_rule(const std::string& text) {
    write_config("version: v1\ngpulet:\n  logLevel: info\n" + text);
    return config_path();
  }
  void check_nothing_else_changed() {
    EXPECT_EQ(granted_ids(sim_kubelet().kubelet_state().grants.at("trainer")), granted_ids(trainer_));
    EXPECT_TRUE(request_bodies("/eviction").empty());
    EXPECT_EQ(registration_count(), 1u);
    EXPECT_TRUE(is_driver_held());
    EXPECT_FALSE(reported_release());
  }
  sim::PodGrant trainer_;
  std::uint32_t free_gpu_ = 0;
};

TEST_P(SimMigMode, GpuletMigApplyNeedsNothingElse) {
  start({"--mig-strategy=mixed"});
  for (int round = 0; round < 2; ++round) {
    print_time("gpulet mig apply, on", [this] { apply_layout(kSlices); });
    print_time("devices back after it", [this] {
      EXPECT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
      EXPECT_TRUE(becomes_allocatable(7)) << agent_log();
    });
    check_nothing_else_changed();
    print_time("gpulet mig apply, off", [this] { apply_layout("all-disabled"); });
    print_time("devices back after it", [this] { EXPECT_TRUE(becomes_allocatable(8)) << agent_log(); });
    check_nothing_else_changed();
  }
}

TEST_P(SimMigMode, AClientLikeNvidiaSmiBetweenReleaseAndAcquire) {
  start({"--mig-strategy=mixed"});
  for (const char* mode : {"1", "0"}) {
    run_gpulet(0, {"driver", "release"});
    EXPECT_EQ(smi_error({"-mig", mode, "-i", gpu()}), "");
    const auto mig = [this] { return machine_state().lock_for_read()->gpus[free_gpu_].mig; };
    EXPECT_EQ(mig().pending, *mode - '0');
    if (mig().current != mig().pending) {
      EXPECT_EQ(smi_error({"-r", "-i", gpu()}), "");
    }
    EXPECT_EQ(mig().current, *mode - '0') << "no other client is in the way";
    run_gpulet(0, {"driver", "acquire"});
    EXPECT_TRUE(becomes_allocatable(*mode == '1' ? 7 : 8)) << agent_log();
    check_nothing_else_changed();
  }
}

TEST_P(SimMigMode, AKilledCommandLeavesTheDriverToTheAgent) {
  start({"--mig-strategy=mixed"});
  ASSERT_TRUE(control::hang_mig(machine_state(), free_gpu_));
  {
    RunningCommand applying({"mig", "apply", "-c", kSlices, "--gpu", gpu()}, command_environment());
    ASSERT_TRUE(becomes_released()) << agent_log();
    EXPECT_EQ(reported_release()->reason, "gpulet mig apply");
    EXPECT_NE(run_gpulet(1, {"mig", "apply", "-c", kSlices, "--gpu", gpu()}).find("another process"),
              std::string::npos);
  }
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_TRUE(becomes_true([this] { return !reported_release(); }));
  ASSERT_TRUE(control::heal_faults(machine_state(), std::nullopt));
  check_nothing_else_changed();
}

// Where the command does not find the agent, the driver refuses as on a real node.
TEST_P(SimMigMode, AnAgentThatIsNotFoundIsInTheWay) {
  start({"--mig-strategy=mixed"});
  const std::vector<std::string> command = {"mig", "apply", "-c", kSlices, "--gpu", gpu()};
  auto elsewhere = command;
  elsewhere.insert(elsewhere.end(), {"--state-dir", sim_node().directory() + "/elsewhere"});
  RunningCommand refused(elsewhere, command_environment());
  EXPECT_NE(refused.exit_code(), 0) << refused.output_text();
  EXPECT_EQ(machine_state().lock_for_read()->gpus[free_gpu_].mig.current, 0u);
  run_gpulet(0, command);
  EXPECT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
  check_nothing_else_changed();
}

// The other GPUs stay allocatable all the time.
TEST_P(SimMigMode, TheAgentChangesOneGpuAndKeepsTheOthers) {
  start({"--config-file=" + write_rule("")});
  write_rule("  partition:\n  - {devices: [" + gpu() + "], mig: {layout: " + std::string(kSlices) + "}}\n");
  const auto mig = [this] { return machine_state().lock_for_read()->gpus[free_gpu_].mig; };
  ASSERT_TRUE(becomes_true([&] { return mig().pending == 1; })) << agent_log();
  const bool needs_reset = mig().current == 0;
  if (needs_reset) reset_gpu();
  ASSERT_TRUE(becomes_allocatable(7, kSmall)) << agent_log();
  ASSERT_TRUE(becomes_allocatable(7)) << agent_log();
  if (!needs_reset) {
    EXPECT_EQ(sim_node().logged_message("GPUUnhealthy"), "");
    EXPECT_EQ(sim_node().logged_message("DriverReleased"), "");
  }
  check_nothing_else_changed();
  // Events are received again.
  ASSERT_TRUE(control::post_xid(machine_state(), free_gpu_ == 7 ? 6 : 7, kFallenOffTheBus));
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(free_gpu_ == 7 ? 6 : 7)})) << agent_log();
}

INSTANTIATE_TEST_SUITE_P(Machines, SimMigMode, testing::Values("hgx-h100", "dgx-a100"),
                         [](const auto& machine) {
                           std::string name = machine.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace gpulet::tests
