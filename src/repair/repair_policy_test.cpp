#include "repair/repair_policy.h"

#include <gtest/gtest.h>

#include "repair/test_repairs.h"

namespace gpulet::repair {
namespace {

using health::FaultClass;
using std::chrono::hours;
using std::chrono::minutes;

const WallTime kNow{hours(500'000)};
constexpr const char* kBoot = "boot-1";

health::Fault reset_fault() { return test_fault(FaultClass::kXidReset, {}, 95); }

TEST(RepairPolicy, ResetsOnlyWhatAResetEnds) {
  using enum Action;
  // By class; the others get kNone.
  const std::map<FaultClass, Action> actions = {
      {FaultClass::kXidReset, kReset},           {FaultClass::kXidEcc, kReset},
      {FaultClass::kXidNvLink, kReset},          {FaultClass::kSwitch, kReset},
      {FaultClass::kResetRequired, kReset},      {FaultClass::kXidReboot, kReboot},
      {FaultClass::kXidVirtualMachine, kReboot}, {FaultClass::kLost, kReboot}};
  for (const auto& rule : health::fault_rules()) {
    const auto found = actions.find(rule.fault_class);
    EXPECT_EQ(action_for(test_fault(rule.fault_class)), found == actions.end() ? kNone : found->second)
        << rule.name;
    auto ended = test_fault(rule.fault_class);
    ended.condition_met_at = Time(hours(1));
    EXPECT_EQ(action_for(ended), kNone) << rule.name << ": its recovery condition is met";
    auto flagged = test_fault(rule.fault_class);
    flagged.effect = health::Effect::kFlag;
    EXPECT_EQ(action_for(flagged), kNone) << rule.name << ": it withdraws nothing";
  }
}

TEST(RepairPolicy, DoesWhatTheDriverAsksFor) {
  using enum Action;
  const Action actions[] = {kNone, kReset, kReboot, kNone, kReset, kNone, kNone, kReboot};
  for (unsigned action = 0; action < std::size(actions); ++action) {
    for (const auto fault_class : {FaultClass::kRecoveryAction, FaultClass::kRecoveryDrain}) {
      const auto fault = test_fault(fault_class, std::string(health::recovery_action_text(action)));
      EXPECT_EQ(action_for(fault), actions[action]) << action;
    }
  }
}

TEST(RepairPolicy, AGpuNeedsWhatItsWorstFaultOrInstanceNeeds) {
  const auto gpu = test_uuid(0);
  auto view = test_view(1, {{0, {reset_fault(), test_fault(FaultClass::kXidReboot, {}, 79)}}});
  EXPECT_EQ(needed_repair(view, gpu).action, Action::kReboot);
  EXPECT_NE(needed_repair(view, gpu).fault.find("XID 79"), std::string::npos);
  view = test_view(1, {});
  EXPECT_EQ(needed_repair(view, gpu).action, Action::kNone);
  auto instance = test_device(0, {reset_fault()});
  instance.scope.gpu_instance = 3;
  view.devices.push_back(instance);
  EXPECT_EQ(needed_repair(view, gpu).action, Action::kReset) << "only the whole GPU can be reset";
  view.devices.back().gpu_index.reset();
  EXPECT_EQ(needed_repair(view, gpu).action, Action::kNone) << "it has left the node";
  view = test_view(1, {{0, {test_fault(FaultClass::kXidNvLink, {}, 74)}}});
  EXPECT_TRUE(needed_repair(view, gpu).with_partners);
}

// One node of eight H100 whose GPU 0 needs a reset, and what each row changes.
struct Case {
  health::HealthView view = test_view(8, {{0, {reset_fault()}}});
  inventory::Snapshot snapshot = test_snapshot(8);
  Record record{};
  Policy policy{};
  std::string busy{};
  std::vector<DeviceUuid> unmanaged{};
  unsigned percent = 50;

  Case() { policy.reset.enabled = policy.reboot_request.enabled = true; }
  std::vector<RepairDecision> decide() const {
    return decide_repairs({.view = view,
                           .snapshot = snapshot,
                           .record = record,
                           .now = kNow,
                           .boot_id = kBoot,
                           .max_unhealthy_gpus_percent = percent,
                           .busy = busy,
                           .unmanaged_instances = unmanaged},
                          policy);
  }
  // "reset", "wait: REASON"; empty without a decision for GPU 0.
  std::string outcome() const {
    static constexpr const char* kNames[] = {"wait", "reset", "reboot", "give up"};
    for (const auto& one : decide()) {
      if (one.gpu != test_uuid(0)) continue;
      const std::string name = kNames[static_cast<int>(one.kind)];
      return one.reason.empty() ? name : name + ": " + one.reason;
    }
    return {};
  }
};

TEST(RepairPolicy, WhenAGpuIsReset) {
  struct Row {
    const char* expected;  // the beginning of the outcome
    void (*change)(Case&);
  };
  const Row rows[] = {
      {"reset", [](Case&) {}},
      {"", [](Case& c) { c.policy = {}; }},
      {"", [](Case& c) { c.policy.reset.enabled = false; }},
      {"reset", [](Case& c) { c.policy.reboot_request.enabled = false; }},
      {"reset", [](Case& c) { c.policy.reset.dry_run = true; }},
      {"", [](Case& c) { c.view = test_view(8, {}); }},
      {"wait: an operator cordoned it",
       [](Case& c) { c.view = test_view(8, {{0, {reset_fault(), test_fault(FaultClass::kCordoned)}}}); }},
      {"wait: the driver does not answer",
       [](Case& c) { c.view = test_view(8, {{0, {reset_fault(), test_fault(FaultClass::kSilent)}}}); }},
      {"wait: a MIG layout", [](Case& c) { c.busy = "a MIG layout is being changed"; }},
      {"wait: a reset destroys the MIG instances of GPU 0", [](Case& c) { c.unmanaged = {test_uuid(0)}; }},
      {"reset", [](Case& c) { c.unmanaged = {test_uuid(1)}; }},
      {"wait: it cannot be read",
       [](Case& c) { c.snapshot.gpus[0].unreadable = Error(Code::kInternal, "no"); }},
      {"reset", [](Case& c) { c.record.attempts[test_uuid(0)] = {kNow - minutes(5)}; }},
      {"wait: the last reset is less than",
       [](Case& c) { c.record.attempts[test_uuid(0)] = {kNow - minutes(5) + std::chrono::seconds(1)}; }},
      {"reset",
       [](Case& c) { c.record.attempts[test_uuid(0)] = {kNow + hours(3)}; }},  // the clock was set back
      {"reset", [](Case& c) { c.record.attempts[test_uuid(1)] = {kNow - minutes(20), kNow - minutes(10)}; }},
      {"reboot: 2 resets did not repair it",
       [](Case& c) { c.record.attempts[test_uuid(0)] = {kNow - minutes(20), kNow - minutes(10)}; }},
      {"give up: 2 resets did not repair it",
       [](Case& c) {
         c.record.attempts[test_uuid(0)] = {kNow - minutes(20), kNow - minutes(10)};
         c.policy.reboot_request.enabled = false;
       }},
      {"reboot: no reset ends its fault",
       [](Case& c) { c.view = test_view(8, {{0, {test_fault(FaultClass::kXidReboot)}}}); }},
      {"reboot: no reset ends its fault",
       [](Case& c) {
         c.view = test_view(8, {{0, {test_fault(FaultClass::kXidReboot)}}});
         c.policy.reset.enabled = false;
         c.record.reboot = Record::Reboot{kBoot, kNow - hours(1)};  // requested, and not done yet
       }},
      {"",
       [](Case& c) {
         c.view = test_view(8, {{0, {test_fault(FaultClass::kXidReboot)}}});
         c.policy.reboot_request.enabled = false;
       }},
      {"wait: an operator cordoned it",
       [](Case& c) {
         c.view =
             test_view(8, {{0, {test_fault(FaultClass::kXidReboot), test_fault(FaultClass::kCordoned)}}});
       }},
      {"give up: the reboot that was requested less than a day ago",
       [](Case& c) {
         c.view = test_view(8, {{0, {test_fault(FaultClass::kXidReboot)}}});
         c.record.reboot = Record::Reboot{"boot-0", kNow - hours(1)};
       }},
  };
  for (const auto& row : rows) {
    Case one;
    row.change(one);
    const auto outcome = one.outcome();
    EXPECT_TRUE(outcome.starts_with(row.expected) && outcome.empty() == (*row.expected == 0))
        << "row " << &row - rows << ": " << outcome << "; expected " << row.expected;
  }
}

// With most GPUs unhealthy the cause is the node.
TEST(RepairPolicy, TooManyUnhealthyGpusOutsideTheGroupHoldResets) {
  for (const auto& [others, held] :
       {std::pair(0u, false), {1u, false}, {4u, false}, {5u, true}, {7u, true}}) {
    std::map<unsigned, std::vector<health::Fault>> faults;
    for (unsigned i = 0; i <= others; ++i) faults[i] = {reset_fault()};
    Case one;
    one.view = test_view(8, faults);
    EXPECT_EQ(one.outcome().starts_with("wait: more than 50%"), held) << others << ": " << one.outcome();
  }
  // A cordon, and a driver that is away, say nothing about the GPUs.
  Case cordoned;
  for (unsigned i = 1; i < 8; ++i)
    cordoned.view.devices[i] =
        test_device(i, {test_fault(i % 2 ? FaultClass::kCordoned : FaultClass::kDriverAway)});
  EXPECT_EQ(cordoned.outcome(), "reset");
  // A fatal NVSwitch takes all of its GPUs, which are one group.
  Case on_switch;
  std::map<unsigned, std::vector<health::Fault>> faults;
  for (unsigned i = 0; i < 8; ++i) {
    faults[i] = {test_fault(FaultClass::kSwitch)};
    on_switch.snapshot.gpus[i].nvlinks = {{0, inventory::NvLinkRemote::kSwitch, {0, 0xF0, 0, 0}}};
  }
  on_switch.view = test_view(8, faults);
  EXPECT_EQ(on_switch.outcome(), "reset");
  EXPECT_EQ(on_switch.decide().front().group.gpus.size(), 8u);
  // One of two GPUs is half of them, and never too many.
  Case two;
  two.snapshot = test_snapshot(2);
  two.view = test_view(2, {{0, {reset_fault()}}, {1, {reset_fault()}}});
  EXPECT_EQ(two.outcome(), "reset");
}

TEST(RepairPolicy, WhatHoldsAGroup) {
  const auto snapshot = test_snapshot(3);
  const ResetGroup alone{{test_uuid(0)}, {}}, pair{{test_uuid(0), test_uuid(1)}, "linked"};
  struct Row {
    ResetGroup group;
    std::map<DeviceUuid, GpuUse> uses;
    const char* expected;
  };
  const std::string trainer = "default/trainer", server = "process 812 (nv-hostengine)";
  const Row rows[] = {
      {alone, {}, ""},
      {alone, {{test_uuid(0), {}}}, ""},
      {alone, {{test_uuid(1), {{trainer}, {server}}}}, ""},
      {alone, {{test_uuid(0), {{trainer}, {}}}}, "held by Pod default/trainer"},
      {alone, {{test_uuid(0), {{trainer, "default/b"}, {server}}}}, "held by Pod default/trainer, default/b"},
      {alone, {{test_uuid(0), {{}, {server}}}}, "held by process 812 (nv-hostengine)"},
      {pair,
       {{test_uuid(1), {{trainer}, {}}}},
       "GPU 1, which is reset with it (linked), is held by Pod default/trainer"},
      {pair, {{test_uuid(2), {{trainer}, {}}}}, ""},
  };
  for (const auto& row : rows)
    EXPECT_EQ(holding_reason(row.group, test_uuid(0), row.uses, snapshot), row.expected);
}

TEST(RepairPolicy, AttemptsCountForADay) {
  Record record;
  record.attempts[test_uuid(0)] = {kNow - hours(3), kNow};
  record.attempts[test_uuid(1)] = {kNow - hours(3)};
  record.reboot = Record::Reboot{"boot-0", kNow, {test_uuid(0)}};
  auto pruned = record;
  prune_record(pruned, kNow + hours(21), kBoot);
  EXPECT_EQ(pruned, record);
  prune_record(pruned, kNow + hours(22), kBoot);
  EXPECT_EQ(pruned.attempts, (std::map<DeviceUuid, std::vector<WallTime>>{{test_uuid(0), {kNow}}}));
  EXPECT_TRUE(pruned.reboot);
  prune_record(pruned, kNow + hours(25), kBoot);
  EXPECT_TRUE(pruned.is_empty());
  // A request that was not fulfilled yet is not forgotten.
  record.reboot->boot_id = kBoot;
  prune_record(record, kNow + hours(25), kBoot);
  EXPECT_TRUE(record.reboot);
  // Days ago: it is reset as if for the first time.
  Case old;
  old.record.attempts[test_uuid(0)] = {kNow - hours(72), kNow - hours(48)};
  EXPECT_EQ(old.outcome(), "reset");
  old.record.attempts[test_uuid(0)] = {kNow - hours(48), kNow - hours(1)};
  EXPECT_EQ(old.outcome(), "reset");
}

TEST(RepairPolicy, ARequestOutlastsTheNameOfItsGpu) {
  Case lost;
  lost.view = test_view(8, {{0, {test_fault(FaultClass::kLost)}}});
  EXPECT_EQ(lost.outcome(), "reboot: no reset ends its fault");
  // The driver no longer lists it: alone, that asks for nothing, as a GPU may be taken away on purpose.
  lost.view.devices[0].gpu_index.reset();
  lost.snapshot.gpus.erase(lost.snapshot.gpus.begin());
  EXPECT_EQ(lost.outcome(), "");
  lost.record.reboot = Record::Reboot{kBoot, kNow - hours(30), {test_uuid(0)}};
  EXPECT_EQ(lost.outcome(), "reboot: it has left the node since");
  lost.view.devices.erase(lost.view.devices.begin());
  EXPECT_EQ(lost.outcome(), "reboot: it has left the node since") << "nor when it is forgotten";
  lost.record.reboot->boot_id = "boot-0";
  EXPECT_EQ(lost.outcome(), "") << "the reboot has come";
  // An XID that asks for a reboot does so wherever the GPU is.
  Case fallen;
  fallen.view = test_view(8, {{0, {test_fault(FaultClass::kXidReboot, {}, 79)}}});
  fallen.view.devices[0].gpu_index.reset();
  fallen.snapshot.gpus.erase(fallen.snapshot.gpus.begin());
  EXPECT_EQ(fallen.outcome(), "reboot: no reset ends its fault");
  // Present and healthy: it ends. Present and faulty: no further reset, though the attempts are old.
  Case present;
  present.record.reboot = Record::Reboot{kBoot, kNow - hours(30), {test_uuid(0)}};
  present.record.attempts[test_uuid(0)] = {kNow - hours(30)};
  EXPECT_TRUE(present.outcome().starts_with("reboot: ")) << present.outcome();
  present.view = test_view(8, {});
  EXPECT_EQ(present.outcome(), "");
}

// The whole group has the cooldown of any of its members.
TEST(RepairPolicy, AGroupCoolsDownTogether) {
  Case pair;
  for (auto& gpu : pair.snapshot.gpus) gpu.compute_major = 7;
  pair.snapshot.gpus[0].nvlinks = {{0, inventory::NvLinkRemote::kGpu, pair.snapshot.gpus[1].pci}};
  EXPECT_EQ(pair.outcome(), "reset");
  pair.record.attempts[test_uuid(1)] = {kNow - minutes(1)};
  EXPECT_TRUE(pair.outcome().starts_with("wait: the last reset is less than")) << pair.outcome();
  pair.record.attempts = {{test_uuid(2), {kNow - minutes(1)}}};
  EXPECT_EQ(pair.outcome(), "reset");
}

TEST(RepairPolicy, AGpuThatAnswersOnlyThatItNeedsAResetGetsOne) {
  Case one;
  one.snapshot.gpus[0].unreadable = Error(Code::kResetRequired, "RESET_REQUIRED");
  EXPECT_EQ(one.outcome(), "wait: it cannot be read") << "its fault is another";
  one.view = test_view(8, {{0, {test_fault(FaultClass::kResetRequired)}}});
  EXPECT_EQ(one.outcome(), "reset");
  one.snapshot.gpus[0].unreadable = Error(Code::kInternal, "no");
  EXPECT_EQ(one.outcome(), "wait: it cannot be read");
}

}  // namespace
}  // namespace gpulet::repair
