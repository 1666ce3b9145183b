// Mode changes on Ampere, which needs a reset for them: in use, in a VM with pass-through, and with the agent
// killed or the node's power cut at every call.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "mig/apply.h"
#include "mig/test_hardware.h"

namespace gpulet::mig {
namespace {

using states::enabled_layout;
using states::kOff;

using How = FailingHardware::How;

TEST(MigMode, WaitsForAMonitorAndResumes) {
  SimHardware sim_gpu("a30", false);
  const auto target = enabled_layout({{"1g.6gb", 4}});
  sim_gpu.add_monitor();
  for (int round = 0; round < 2; ++round) {
    const Report report = sim_gpu.plan_and_apply(target);
    EXPECT_EQ(describe_report(report), "needs-reset: set MIG mode on; in use by a process or a monitor");
    EXPECT_TRUE(report.in_use);
    EXPECT_FALSE(report.error);
    EXPECT_EQ(sim_gpu.current_state().pending, true);
    EXPECT_TRUE(sim_gpu.plan_for(target).needs_reset);
  }
  sim_gpu.remove_monitor();
  EXPECT_EQ(sim_gpu.plan_and_apply(target).outcome, Outcome::kDone);
  EXPECT_EQ(current_layout(sim_gpu.current_state()), target);
}

TEST(MigMode, APendingModeIsCancelledWhileInUse) {
  SimHardware sim_gpu("dgx-a100", false);
  sim_gpu.add_monitor();
  EXPECT_EQ(sim_gpu.plan_and_apply(enabled_layout({{"7g.80gb", 1}})).outcome, Outcome::kNeedsReset);
  EXPECT_EQ(sim_gpu.plan_and_apply(kOff).outcome, Outcome::kDone);
  EXPECT_EQ(sim_gpu.current_state().pending, std::nullopt);
}

TEST(MigMode, NeedsAResetFromOutsideWithPassThrough) {
  for (const bool by_reboot : {false, true}) {
    SimHardware sim_gpu("a30", false);
    sim_gpu.on_gpu([](sim::Gpu& gpu) { gpu.mig.passthrough = 1; });
    const auto target = enabled_layout({{"1g.6gb", 4}});
    for (int round = 0; round < 2; ++round) {
      const Report report = sim_gpu.plan_and_apply(target);
      EXPECT_EQ(report.outcome, Outcome::kNeedsReset);
      EXPECT_FALSE(report.in_use);
    }
    if (by_reboot) {
      sim_gpu.reboot();
    } else {
      EXPECT_TRUE(sim::reset_gpu(*sim_gpu.edit_machine(), 0));
    }
    EXPECT_EQ(sim_gpu.plan_and_apply(target).outcome, Outcome::kDone);
    EXPECT_EQ(current_layout(sim_gpu.current_state()), target);
  }
}

TEST(MigMode, NamesTheProcessesThatHaveTheDeviceNodeOpen) {
  std::string proc = testing::TempDir() + "device_holders.XXXXXX";
  ASSERT_NE(::mkdtemp(proc.data()), nullptr);
  const auto add = [&](const std::string& pid, const std::string& name, const std::string& node) {
    std::filesystem::create_directories(proc + "/" + pid + "/fd");
    ASSERT_TRUE(write_file_atomic(proc + "/" + pid + "/comm", name + "\n"));
    std::filesystem::create_symlink("/dev/null", proc + "/" + pid + "/fd/0");
    std::filesystem::create_symlink(node, proc + "/" + pid + "/fd/4");
  };
  add("812", "nv-hostengine", "/dev/nvidia0");
  add("77", "nvidia-persistenced", "/dev/nvidia0");
  add("78", "other", "/dev/nvidia10");
  add(std::to_string(::getpid()), "gpulet", "/dev/nvidia0");
  std::filesystem::create_directories(proc + "/900");
  EXPECT_EQ(find_device_holders(0, proc), (std::vector<DeviceHolder>{{812, "process 812 (nv-hostengine)"}}));
  EXPECT_EQ(find_device_holders(1, proc), std::vector<DeviceHolder>{});

  SimHardware sim_gpu("a30", false);
  sim_gpu.add_monitor();
  const auto hardware = make_hardware(sim_gpu.shared_session(), 0, sim_gpu.current_state().uuid, proc);
  EXPECT_EQ(describe_report(apply_plan(*hardware, sim_gpu.plan_for(enabled_layout({{"1g.6gb", 4}})))),
            "needs-reset: set MIG mode on; in use by process 812 (nv-hostengine)");
  std::filesystem::remove_all(proc);
}

TEST(MigMode, NamesOfProcessesCanBeRemovedFromATextWhateverTheyAre) {
  std::string proc = testing::TempDir() + "process_names.XXXXXX";
  ASSERT_NE(::mkdtemp(proc.data()), nullptr);
  for (const std::string name :
       {"python3", "a) b", "((", "process 9 (x)", "x\n\"\\)", ") process 1 (y", ""}) {
    std::filesystem::create_directories(proc + "/812");
    ASSERT_TRUE(write_file_atomic(proc + "/812/comm", name + "\n"));
    const std::string text = process_text(812, proc);
    EXPECT_EQ(without_process_names("in use by " + text + ", " + text + "; wait"),
              "in use by process 812, process 812; wait")
        << text;
  }
  for (const std::string text :
       {"process ", "process 7", "process 7 ", "process x (y)", "process 7 (", "", "(process) 7 (a)"})
    EXPECT_EQ(without_process_names(text), text);
  std::filesystem::remove_all(proc);
}

struct Change {
  std::string machine;
  Layout from, to;
};
const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      {"dgx-a100", kOff, enabled_layout({{"1g.10gb", 1}, {"1c.2g.20gb", 2}})},
      {"dgx-a100", enabled_layout({{"1g.10gb", 2}, {"3g.40gb", 1}}), kOff},
      {"dgx-a100", enabled_layout({{"1g.10gb", 2}, {"3g.40gb", 1}}), enabled_layout({{"2g.20gb", 2}})},
      {"a30", kOff, enabled_layout({{"1g.6gb", 2}})},
      {"a30", enabled_layout({{"1g.6gb", 2}}), kOff},
      {"hgx-h100", kOff, enabled_layout({{"1g.10gb", 2}})},
      {"hgx-h100", enabled_layout({{"1g.10gb", 2}}), kOff},
  };
  return all;
}

enum class Around { kNothing, kMonitor, kPassThrough };
enum class Cut { kAgent, kPower };

// Plans and applies as an agent does that starts now, until the GPU has the layout. What a mode waits for
// comes once: the monitor leaves, the hypervisor resets the GPU.
void finish(SimHardware& sim_gpu, const Layout& layout) {
  for (int round = 0; round < 3; ++round) {
    const Report report = sim_gpu.plan_and_apply(layout);
    ASSERT_NE(report.outcome, Outcome::kInBetween) << describe_report(report);
    if (report.outcome == Outcome::kDone) break;
    ASSERT_LT(round, 2) << describe_report(report);
    sim_gpu.remove_monitor();
    if (report.outcome == Outcome::kNeedsReset && !report.in_use) {
      ASSERT_TRUE(sim::reset_gpu(*sim_gpu.edit_machine(), 0));
    }
  }
  ASSERT_EQ(current_layout(sim_gpu.current_state()), layout);
  ASSERT_EQ(sim_gpu.current_state().pending, std::nullopt);
  ASSERT_TRUE(sim_gpu.plan_for(layout).is_noop());
}

// Returns false if the change made fewer calls.
bool change_with_cut(SimHardware& sim_gpu, const Change& change, Around around, std::size_t call, How how) {
  sim_gpu.on_gpu([&](sim::Gpu& gpu) { gpu.mig.passthrough = around == Around::kPassThrough ? 1 : 0; });
  if (around == Around::kMonitor) sim_gpu.add_monitor();
  FailingHardware hardware(sim_gpu.hardware(), call, how);
  try {
    apply_plan(hardware, sim_gpu.plan_for(change.to));
  } catch (const FailingHardware::Killed&) {
    return true;
  }
  return false;
}

TEST(MigMode, EndsInTheWantedOrThePreviousLayoutAfterACutAtAnyCall) {
  std::size_t cuts = 0;
  for (const auto& change : changes()) {
    SimHardware sim_gpu(change.machine);
    ASSERT_EQ(sim_gpu.plan_and_apply(change.from).outcome, Outcome::kDone);
    const State start = sim_gpu.current_state();
    for (const auto around : {Around::kNothing, Around::kMonitor, Around::kPassThrough}) {
      // The rest makes no difference to changes that need no reset.
      const bool resets = start.enabled != change.to.enabled && change.machine != "hgx-h100";
      if (around != Around::kNothing && !resets) continue;
      for (const auto cut : {Cut::kAgent, Cut::kPower}) {
        for (const auto how : {How::kDieBefore, How::kDieAfter}) {
          for (const bool goes_back : {false, true}) {
            for (std::size_t call = 0;; ++call) {
              SCOPED_TRACE(change.machine + " to " + layout_text(change.to) + ", around " +
                           std::to_string(static_cast<int>(around)) + ", cut " +
                           std::to_string(static_cast<int>(cut)) + ", call " + std::to_string(call) +
                           (how == How::kDieAfter ? " after" : " before") + (goes_back ? ", goes back" : ""));
              sim_gpu.remove_monitor();
              sim_gpu.set_state(start);
              if (!change_with_cut(sim_gpu, change, around, call, how)) break;
              ++cuts;
              if (cut == Cut::kPower) sim_gpu.reboot();
              finish(sim_gpu, goes_back ? change.from : change.to);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
  EXPECT_GE(cuts, 300u);
}

}  // namespace
}  // namespace gpulet::mig
