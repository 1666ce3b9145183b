#include "cli/commands/commands.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/health/operator_interface.h"
#include "base/file.h"
#include "base/process.h"
#include "health/report/health_report.h"
#include "health/state/cordons.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;
using health::OperatorAction;

constexpr WallTime kNow{std::chrono::seconds(1'763'712'000)};
const std::string kUuid = "GPU-5a2f0c1d-0123-4567-89ab-cdef01234567";

// Two GPUs, the second cut up.
inventory::Snapshot mig_node() {
  inventory::Snapshot snapshot;
  for (unsigned i = 0; i < 2; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::string(1, static_cast<char>('a' + i)) + "1");
    gpu.pci = {0, 0x10 + i, 0, 0};
    snapshot.gpus.push_back(gpu);
  }
  snapshot.gpus[1].mig_enabled = true;
  inventory::MigDevice mig;
  mig.uuid = DeviceUuid("MIG-b1");
  mig.gpu_instance = 2;
  snapshot.gpus[1].mig_devices = {mig};
  return snapshot;
}

class CordonCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "cordon_command.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    options_.health_file = directory_ + "/health.json";
    options_.state_dir = directory_ + "/state";
  }
  void TearDown() override {
    agent_.reset();
    std::filesystem::remove_all(directory_);
  }

  // As an agent would leave it: with XID 95 on GPU 0.
  void hold_agent_lock() {
    auto held = ProcessLock::acquire_lock(agent::presence_path(options_.state_dir));
    ASSERT_TRUE(held) << held.error().full_message();
    agent_.emplace(std::move(*held));
    health::HealthStateMachine machine({}, health::XidFilter("", ""));
    machine.apply_snapshot(mig_node(), Time(1s));
    machine.add_evidence({{DeviceUuid("GPU-a1")}, Time(2s), health::XidReport{.code = 95}});
    const auto view = build_health_view(machine, mig_node(), {Time(3s), kNow});
    ASSERT_TRUE(write_file_atomic(options_.health_file, health::format_report(view)));
  }
  CommandOutput run_cordon_command(OperatorAction action, const std::string& device,
                                   const std::string& reason = {}) {
    options_.device = device;
    options_.reason = reason;
    now_ += 1s;
    return cordon_output(action, options_, now_, [this]() -> Result<inventory::Snapshot> {
      ++driver_reads_;
      if (!driver_) return fail(Code::kUnavailable, "no driver here");
      return mig_node();
    });
  }
  std::string cordons_text() const { return read_file(agent::cordons_path(options_.state_dir)).value_or(""); }

  std::string directory_;
  CordonOptions options_;
  std::optional<ProcessLock> agent_;
  WallTime now_ = kNow;
  bool driver_ = true;
  unsigned driver_reads_ = 0;
};

TEST_F(CordonCommand, WritesTheFileThatTheAgentWatches) {
  hold_agent_lock();
  auto answer = run_cordon_command(OperatorAction::kCordon, "1", "new riser");
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out, "GPU 1 (GPU-b1) cordoned: new riser\n");
  EXPECT_EQ(answer.err, "");
  EXPECT_EQ(cordons_text(), "gpulet-cordons 1\ncordoned GPU-b1 1763712001000 new riser\n");
  EXPECT_EQ(driver_reads_, 0u) << "the agent's report says which one it is";
  EXPECT_EQ(run_cordon_command(OperatorAction::kCordon, "GPU-b").out,
            "GPU 1 (GPU-b1) is already cordoned: new riser\n");
  EXPECT_EQ(run_cordon_command(OperatorAction::kCordon, "GPU-b1", "new fan").out,
            "GPU 1 (GPU-b1) cordoned: new fan\n");
  EXPECT_EQ(cordons_text(), "gpulet-cordons 1\ncordoned GPU-b1 1763712003000 new fan\n");
  answer = run_cordon_command(OperatorAction::kUncordon, "1");
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out, "GPU 1 (GPU-b1) uncordoned\n");
  EXPECT_EQ(cordons_text(), "gpulet-cordons 1\nuncordoned GPU-b1 1763712004000\n");
}

TEST_F(CordonCommand, UncordonMarksPendingFaultsAsRepaired) {
  hold_agent_lock();
  EXPECT_EQ(run_cordon_command(OperatorAction::kUncordon, "0").out,
            "GPU 0 (GPU-a1) was not cordoned; marked as repaired, health checks follow: XID 95: uncontained "
            "memory error\n");
  EXPECT_EQ(cordons_text(), "gpulet-cordons 1\nuncordoned GPU-a1 1763712001000\n");
  EXPECT_EQ(run_cordon_command(OperatorAction::kUncordon, "1").out, "GPU 1 (GPU-b1) was not cordoned\n");
  EXPECT_EQ(cordons_text(), "gpulet-cordons 1\nuncordoned GPU-a1 1763712001000\n") << "nothing to keep of it";
}

TEST_F(CordonCommand, CordonsAMigDeviceOrItsGpu) {
  hold_agent_lock();
  EXPECT_EQ(run_cordon_command(OperatorAction::kCordon, "1:0").out, "MIG 1:0 (MIG-b1) cordoned\n");
  EXPECT_EQ(cordons_text(), "gpulet-cordons 1\ncordoned MIG-b1 1763712001000\n");
  EXPECT_EQ(run_cordon_command(OperatorAction::kUncordon, "1").out, "GPU 1 (GPU-b1) uncordoned\n");
  EXPECT_EQ(cordons_text(), "gpulet-cordons 1\n");
}

TEST_F(CordonCommand, ResolvesTheDeviceByTheDriverWithoutAnAgent) {
  hold_agent_lock();
  agent_.reset();
  auto answer = run_cordon_command(OperatorAction::kCordon, "0");
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out, "GPU 0 (GPU-a1) cordoned\nsaved; takes effect when the agent starts on this node\n");
  EXPECT_EQ(driver_reads_, 1u);
  driver_ = false;
  answer = run_cordon_command(OperatorAction::kCordon, "0");
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(answer.err,
            "gpulet cordon: cannot resolve device '0': no agent is running; driver: no driver "
            "here; use its full UUID\n");
  answer = run_cordon_command(OperatorAction::kCordon, kUuid);
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out, kUuid + " cordoned\nsaved; takes effect when the agent starts on this node\n");
  EXPECT_EQ(run_cordon_command(OperatorAction::kUncordon, kUuid).exit_code, 0);
  EXPECT_NE(cordons_text().find("\nuncordoned " + kUuid + " "), std::string::npos) << cordons_text();
}

TEST_F(CordonCommand, CordonsAMissingGpuByItsFullUuid) {
  hold_agent_lock();
  EXPECT_EQ(run_cordon_command(OperatorAction::kCordon, kUuid).out, kUuid + " (not on this node) cordoned\n");
  const auto answer = run_cordon_command(OperatorAction::kCordon, "GPU-zz");
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(answer.err,
            "gpulet cordon: there is no device 'GPU-zz' on this node; there are GPU 0 (GPU-a1), "
            "GPU 1 (GPU-b1)\n");
}

TEST_F(CordonCommand, ReportsErrorsAndChangesNothing) {
  hold_agent_lock();
  EXPECT_EQ(run_cordon_command(OperatorAction::kCordon, "0", std::string(300, 'x')).exit_code, 2);
  EXPECT_EQ(cordons_text(), "");
  ASSERT_TRUE(write_file_atomic(agent::cordons_path(options_.state_dir), "x\n"));
  const auto answer = run_cordon_command(OperatorAction::kCordon, "0");
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(answer.err,
            "gpulet cordon: " + options_.state_dir + "/cordons: line 1 is not 'gpulet-cordons 1'\n");
  EXPECT_EQ(cordons_text(), "x\n");
  options_.state_dir.clear();
  EXPECT_EQ(run_cordon_command(OperatorAction::kUncordon, "0").exit_code, 2);
}

TEST_F(CordonCommand, ALaterCordonIsNewerWhateverTheClock) {
  hold_agent_lock();
  run_cordon_command(OperatorAction::kCordon, "1");
  now_ = kNow - 1h;
  run_cordon_command(OperatorAction::kUncordon, "1");
  EXPECT_EQ(cordons_text(), "gpulet-cordons 1\nuncordoned GPU-b1 1763712001001\n");
}

}  // namespace
}  // namespace gpulet::cli
