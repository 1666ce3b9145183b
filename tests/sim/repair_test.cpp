// A faulty GPU is reset once nothing holds it, and returns by its own recovery; where no reset helps, a
// reboot of the node is requested, and taken back after it.
#include <linux/capability.h>

#include "base/file.h"
#include "base/process.h"
#include "health/state/persisted_state.h"
#include "repair/repair_record.h"
#include "sim/control/answers.h"
#include "tests/sim/release_fixture.h"

namespace gpulet::tests {
namespace {

constexpr std::uint64_t kUncontained = 95, kDoubleBit = 48;

class SimRepair : public SimRelease {
 protected:
  void SetUp() override {
    if (!has_capability(CAP_SYS_ADMIN)) GTEST_SKIP() << "needs CAP_SYS_ADMIN: no reset is tried without it";
  }
  // Resets within a second of the GPU being empty are what takes time here.
  static std::vector<std::string> repair_environment() {
    return {"GPULET_REPAIR_RESET=true", "GPULET_REPAIR_REBOOT_REQUEST=true",
            "GPULET_REPAIR_RESET_COOLDOWN=1s", "GPULET_HEALTH_RECOVERY_HOLD=1s",
            // Only the reset itself, and the counters that it sets back, prove it.
            "GPULET_HEALTH_TRUST_RECOVERY_ACTION=never"};
  }
  void start_repairing_node(const std::string& machine, std::vector<std::string> more = {}) {
    auto environment = repair_environment();
    environment.insert(environment.end(), more.begin(), more.end());
    start_node(machine, {.environment = environment});
  }
  std::string next_step(std::uint32_t gpu) {
    const auto report = health::read_report(sim_node().health_file());
    const auto* device = report ? report->find({DeviceUuid(gpu_uuid(gpu))}) : nullptr;
    return device == nullptr ? "" : health::next_step(*device);
  }
  bool is_next_step(std::uint32_t gpu, const std::string& part) {
    return becomes_true([&] { return next_step(gpu).find(part) != std::string::npos; });
  }
  // What the next boot finds: another boot id in the files of gpulet.stateDir, and GPUs without their faults.
  void pretend_reboot() {
    const auto health_path = sim_node().state_dir() + "/health-state";
    auto saved = health::read_persisted_state(health_path);
    ASSERT_TRUE(saved) << saved.error().full_message();
    saved->boot_id = "another-boot";
    ASSERT_TRUE(health::write_persisted_state(health_path, *saved));
    auto record = repair::read_record(repair::record_path(sim_node().state_dir()));
    ASSERT_TRUE(record && record->reboot) << agent_log();
    record->reboot->boot_id = "another-boot";
    ASSERT_TRUE(repair::write_record(repair::record_path(sim_node().state_dir()), *record));
    ASSERT_TRUE(control::heal_faults(machine_state(), std::nullopt));
  }
  std::uint64_t energy_of(std::uint32_t gpu) {
    return machine_state().lock_for_read()->gpus[gpu].energy_since_ns;
  }
};

TEST_F(SimRepair, AGpuIsResetOnceItsPodHasEnded) {
  start_repairing_node("hgx-h100");
  const auto pod = admit_pod("trainer", 1);
  const std::uint32_t gpu = gpu_index(granted_ids(pod).at(0)), other = gpu == 0 ? 1 : 0;
  const auto before = energy_of(gpu), before_other = energy_of(other);
  ASSERT_TRUE(control::post_xid(machine_state(), gpu, kUncontained));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(gpu)}));
  EXPECT_TRUE(is_next_step(gpu, "resets it once it is empty: held by Pod default/trainer")) << agent_log();
  EXPECT_EQ(energy_of(gpu), before);
  ASSERT_TRUE(sim_kubelet().remove_pod(pod.uid));
  EXPECT_NE(wait_for_log("GpuReset", gpu_uuid(gpu)), "") << agent_log();
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_NE(energy_of(gpu), before);
  EXPECT_EQ(energy_of(other), before_other) << "Hopper: alone";
  EXPECT_TRUE(is_driver_held()) << "the agent has it again";
  EXPECT_EQ(agent_log().find("GpuResetFailed"), std::string::npos) << agent_log();
}

// V100 with direct NVLinks: all that they reach, or none.
TEST_F(SimRepair, LinkedGpusBeforeAmpereAreResetTogether) {
  start_repairing_node("dgx1-v100");
  const auto pod = admit_pod("trainer", 1);
  const std::uint32_t held = gpu_index(granted_ids(pod).at(0)), broken = held == 0 ? 1 : 0;
  EXPECT_NE(smi_error({"-r", "-i", std::to_string(broken)}), "") << "as the real one";
  ASSERT_TRUE(control::post_xid(machine_state(), broken, kDoubleBit));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(broken)}));
  EXPECT_TRUE(is_next_step(broken, "GPU " + std::to_string(held) + ", which is reset with it"))
      << next_step(broken);
  ASSERT_TRUE(sim_kubelet().remove_pod(pod.uid));
  const auto reset = wait_for_log("GpuReset");
  for (std::uint32_t gpu = 0; gpu < 8; ++gpu)
    EXPECT_NE(reset.find(gpu_uuid(gpu)), std::string::npos) << reset;
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
}

TEST_F(SimRepair, AResetThatHangsEndsInARebootRequestUntilTheReboot) {
  bring_up_node();
  NodeApi api(sim_node().directory());
  const auto sentinel = sim_node().directory() + "/reboot-required";
  auto environment = repair_environment();
  for (const auto& more :
       {"GPULET_REPAIR_RESET_TIMEOUT=1s", "GPULET_REPAIR_RESET_MAX_ATTEMPTS=1", "NODE_NAME=node-1"})
    environment.emplace_back(more);
  environment.push_back("KUBECONFIG=" + api.kubeconfig());
  environment.push_back("GPULET_REPAIR_REBOOT_REQUEST_SENTINEL_FILE=" + sentinel);
  start_agent({.environment = environment});
  ASSERT_TRUE(becomes_allocatable(8));
  ASSERT_TRUE(control::set_reset_fault(machine_state(), 3, {.hangs = true}));
  ASSERT_TRUE(control::post_xid(machine_state(), 3, kUncontained));
  EXPECT_NE(wait_for_log("GpuResetFailed", "did not end in 1 s"), "") << agent_log();
  EXPECT_NE(wait_for_log("GpuRebootRequested", gpu_uuid(3)), "") << agent_log();
  const auto was_sent = [&](const std::string& path, const std::string& part) {
    return becomes_true([&] {
      return std::ranges::any_of(api.request_bodies(path),
                                 [&](const auto& body) { return body.find(part) != std::string::npos; });
    });
  };
  EXPECT_TRUE(was_sent("/status", "\"GpuRebootRequired\""));
  EXPECT_TRUE(was_sent("/nodes/node-1", R"("gpulet.io/reboot-required":"true")"));
  EXPECT_TRUE(
      becomes_true([&] { return read_file(sentinel).value_or("").find("XID 95") != std::string::npos; }));
  EXPECT_TRUE(is_next_step(3, "Reboot the node"));
  admit_pod("others", 7);

  ASSERT_TRUE(sim_node().stop_agent());
  pretend_reboot();
  start_agent({.environment = environment});
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_TRUE(was_sent("/nodes/node-1", R"("gpulet.io/reboot-required":null)"));
  EXPECT_TRUE(becomes_true([&] { return read_file(sentinel).error().code() == Code::kNotFound; }));
  EXPECT_TRUE(was_sent("/status", "NoRebootRequired"));
}

TEST_F(SimRepair, AnAgentThatIsKilledDuringAResetIsFollowedByOneThatKnows) {
  start_repairing_node("hgx-h100");
  ASSERT_TRUE(control::set_reset_fault(machine_state(), 2, {.hangs = true}));
  ASSERT_TRUE(control::post_xid(machine_state(), 2, kUncontained));
  const auto path = repair::record_path(sim_node().state_dir());
  ASSERT_TRUE(becomes_true([&] {
    const auto record = repair::read_record(path);
    return record && record->resetting;
  })) << agent_log();
  allow_agent_exit();
  sim_node().kill_agent();
  ASSERT_TRUE(control::set_reset_fault(machine_state(), 2, {}));
  // Its GPU stays withdrawn until nvidia-smi would have been ended.
  auto environment = repair_environment();
  environment.emplace_back("GPULET_REPAIR_RESET_TIMEOUT=1s");
  start_agent({.environment = environment});
  EXPECT_NE(wait_for_log("GpuResetFailed", "whose outcome is not known"), "") << agent_log();
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
}

TEST_F(SimRepair, ADryRunResetsNothing) {
  start_repairing_node("hgx-h100", {"GPULET_REPAIR_RESET_DRY_RUN=true"});
  const auto before = energy_of(2);
  ASSERT_TRUE(control::post_xid(machine_state(), 2, kUncontained));
  EXPECT_NE(wait_for_log("GpuResetPlanned", gpu_uuid(2)), "") << agent_log();
  EXPECT_TRUE(is_next_step(2, "would reset it")) << next_step(2);
  EXPECT_EQ(energy_of(2), before);
}

}  // namespace
}  // namespace gpulet::tests
