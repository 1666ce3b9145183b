// Applies plans to simulated GPUs through the driver's calls: to the end, killed at every call, and
// with every call failing.
#include "mig/apply.h"

#include <gtest/gtest.h>

#include "mig/test_hardware.h"

namespace gpulet::mig {
namespace {

using states::enabled_layout;
using states::kOff;

using How = FailingHardware::How;

// Layouts for any board: the maximum of each profile, nothing, and a mix of the smallest, a smaller
// compute instance and half of the GPU.
std::vector<Layout> layouts_of(const State& state) {
  std::vector<Layout> all = {enabled_layout({})};
  for (const auto& profile : state.profiles) {
    const auto target = enabled_layout({{profile.name, profile.max_instances}});
    if (make_plan(state, target)) all.push_back(target);
  }
  const Profile *one = nullptr, *two = nullptr;
  for (const auto& profile : state.profiles) {
    if (profile.slices == 1 && (one == nullptr || profile.max_instances > one->max_instances)) one = &profile;
    if (profile.slices == 2 && (two == nullptr || profile.max_instances > two->max_instances)) two = &profile;
  }
  all.push_back(enabled_layout({{one->name, 2}, {two->name, 1}}));
  all.push_back(enabled_layout({{one->name, 1}, {"1c." + two->name, 2}}));
  return all;
}

TEST(Apply, AppliesEveryLayoutAfterEveryOtherOnEveryMachine) {
  for (const auto& name : states::machines_with_mig()) {
    SimHardware sim_gpu(name);
    const auto layouts = layouts_of(sim_gpu.current_state());
    ASSERT_GE(layouts.size(), 5u) << name;
    for (const auto& from : layouts) {
      for (const auto& to : layouts) {
        ASSERT_EQ(sim_gpu.plan_and_apply(from).outcome, Outcome::kDone);
        const Report report = sim_gpu.plan_and_apply(to);
        ASSERT_EQ(report.outcome, Outcome::kDone) << name << ": " << describe_report(report);
        ASSERT_EQ(current_layout(sim_gpu.current_state()), to) << name << ": " << describe_report(report);
        ASSERT_TRUE(sim_gpu.plan_for(to).is_noop()) << name;
      }
    }
  }
}

TEST(Apply, ReportsItsSteps) {
  SimHardware sim_gpu("hgx-h100");
  EXPECT_EQ(describe_report(sim_gpu.plan_and_apply(enabled_layout({{"1g.10gb", 1}, {"1c.2g.20gb", 2}}))),
            "done: created 2g.20gb at 0-1; created 1c.2g.20gb; created 1c.2g.20gb; created 1g.10gb at 2");
  EXPECT_EQ(describe_report(sim_gpu.plan_and_apply(enabled_layout({{"1g.10gb", 1}, {"3g.40gb", 1}}))),
            "done: destroyed 1c.2g.20gb in the instance at 0-1; destroyed 1c.2g.20gb in the instance at 0-1; "
            "destroyed 2g.20gb at 0-1; created 3g.40gb at 4-7");
  EXPECT_EQ(describe_report(sim_gpu.plan_and_apply(enabled_layout({{"1g.10gb", 1}, {"3g.40gb", 1}}))),
            "done");
}

TEST(Apply, ChangesTheMode) {
  for (const auto& [machine, profile] : {std::pair("hgx-h100", "7g.80gb"), std::pair("a30", "4g.24gb")}) {
    SimHardware sim_gpu(machine, false);
    const auto target = enabled_layout({{profile, 1}});
    EXPECT_EQ(sim_gpu.plan_and_apply(target).outcome, Outcome::kDone) << machine;
    EXPECT_EQ(current_layout(sim_gpu.current_state()), target) << machine;
    EXPECT_EQ(sim_gpu.plan_and_apply(kOff).outcome, Outcome::kDone) << machine;
    EXPECT_EQ(current_layout(sim_gpu.current_state()), kOff) << machine;
  }
}

TEST(Apply, RollsBackAModeChangeOfABusyGpu) {
  SimHardware sim_gpu("hgx-h100", false);
  const Plan planned = sim_gpu.plan_for(enabled_layout({{"7g.80gb", 1}}));
  FailingHardware hardware(sim_gpu.hardware(), kNever, How::kFail);
  bool came = false;
  hardware.before_change = [&] {
    if (!came) sim_gpu.add_holder(4711, sim::kNoInstance, sim::kNoInstance);
    came = true;
  };
  // It arrived after the holders were read: the driver refuses, and the mode waits for the next
  // reset.
  const Report refused = apply_plan(hardware, planned);
  EXPECT_EQ(refused.outcome, Outcome::kAsBefore) << describe_report(refused);
  EXPECT_EQ(refused.error->code(), Code::kFailedPrecondition);
  EXPECT_EQ(sim_gpu.current_state().pending, std::nullopt) << "a later reset must not turn MIG on";
  EXPECT_FALSE(sim_gpu.current_state().enabled);
  // The next attempt detects it before any change.
  FailingHardware untouched(sim_gpu.hardware(), kNever, How::kFail);
  const Report seen = apply_plan(untouched, planned);
  EXPECT_EQ(seen.outcome, Outcome::kAsBefore);
  EXPECT_NE(seen.error->full_message().find("in use by process 4711"), std::string::npos)
      << describe_report(seen);
  EXPECT_EQ(untouched.change_calls(), 0u);
}

TEST(Apply, KeepsAnInstanceTakenBetweenPlanAndStep) {
  SimHardware sim_gpu("hgx-h100");
  ASSERT_EQ(sim_gpu.plan_and_apply(enabled_layout({{"1g.10gb", 3}})).outcome, Outcome::kDone);
  const State before = sim_gpu.current_state();
  const Plan planned = sim_gpu.plan_for(enabled_layout({{"7g.80gb", 1}}));
  FailingHardware hardware(sim_gpu.hardware(), kNever, How::kFail);
  unsigned reads = 0;
  hardware.before_holders = [&] {
    if (++reads == 3) sim_gpu.add_holder(4711, before.instances[2].id, 0);
  };
  const Report report = apply_plan(hardware, planned);
  EXPECT_EQ(report.outcome, Outcome::kAsBefore) << describe_report(report);
  EXPECT_EQ(report.steps_done.size(), 2u);
  EXPECT_EQ(report.error->code(), Code::kFailedPrecondition);
  EXPECT_NE(report.error->full_message().find("in use by process 4711"), std::string::npos)
      << report.error->full_message();
  const State after = sim_gpu.current_state();
  EXPECT_TRUE(same_layout(after, before));
  EXPECT_EQ(after.instances[2].compute, before.instances[2].compute) << "the same MIG device, by its UUID";
}

TEST(Apply, RefusesAPlanForAnotherStateWithoutChanges) {
  SimHardware sim_gpu("hgx-h100");
  ASSERT_EQ(sim_gpu.plan_and_apply(enabled_layout({{"1g.10gb", 2}})).outcome, Outcome::kDone);
  const Plan planned = sim_gpu.plan_for(enabled_layout({{"3g.40gb", 2}}));
  ASSERT_EQ(sim_gpu.plan_and_apply(enabled_layout({{"2g.20gb", 1}})).outcome, Outcome::kDone);
  const State before = sim_gpu.current_state();
  FailingHardware hardware(sim_gpu.hardware(), kNever, How::kFail);
  const Report report = apply_plan(hardware, planned);
  EXPECT_EQ(report.outcome, Outcome::kAsBefore);
  EXPECT_EQ(report.error->code(), Code::kFailedPrecondition);
  EXPECT_NE(report.error->full_message().find("has changed since the plan was made"), std::string::npos);
  EXPECT_EQ(hardware.change_calls(), 0u);
  EXPECT_EQ(sim_gpu.current_state(), before);

  sim_gpu.add_holder(4711, before.instances[0].id, 0);
  const Plan blocked = sim_gpu.plan_for(enabled_layout({{"7g.80gb", 1}}));
  EXPECT_EQ(apply_plan(hardware, blocked).error->code(), Code::kFailedPrecondition);
  EXPECT_EQ(hardware.change_calls(), 0u);

  const auto other = make_hardware(sim_gpu.shared_session(), 1, before.uuid);
  const auto wrong = other->read_state();
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(wrong.error().full_message().find("is now a different GPU"), std::string::npos)
      << wrong.error().full_message();
}

// From one layout to another. If MIG stays on, a device that both have is in use.
struct Case {
  std::string machine;
  Layout from, to;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"hgx-h100", enabled_layout({{"1g.10gb", 7}}),
       enabled_layout({{"1g.10gb", 2}, {"2g.20gb", 1}, {"3g.40gb", 1}})},
      {"hgx-h100", enabled_layout({{"1g.10gb", 1}, {"1c.3g.40gb", 2}}),
       enabled_layout({{"1g.10gb", 1}, {"2c.3g.40gb", 1}})},
      {"dgx-a100", enabled_layout({{"1g.10gb", 4}, {"3g.40gb", 1}}),
       enabled_layout({{"1g.10gb", 1}, {"2g.20gb", 2}})},
      {"a30", enabled_layout({{"1g.6gb", 4}}), enabled_layout({{"1g.6gb", 2}, {"2g.12gb", 1}})},
      {"rtx-pro-6000", enabled_layout({{"1g.24gb", 4}}),
       enabled_layout({{"1g.24gb", 1}, {"1g.24gb-me", 1}, {"2g.48gb", 1}})},
      {"hgx-h200", kOff, enabled_layout({{"1g.18gb", 1}, {"3g.71gb", 1}})},
      {"hgx-h200", enabled_layout({{"1g.18gb", 1}, {"3g.71gb", 1}}), kOff},
      {"dgx-a100", kOff, enabled_layout({{"1g.10gb", 1}, {"3g.40gb", 1}})},
      {"a30", enabled_layout({{"1g.6gb", 2}, {"2g.12gb", 1}}), kOff},
  };
  return all;
}

// Sets up the case's first layout. Returns the UUID of the one-slice device in use, or empty if
// none is.
std::string add_held_instance(SimHardware& sim_gpu, const Case& one, const State& start) {
  sim_gpu.on_gpu([](sim::Gpu& gpu) { sim::remove_process(gpu, 4711); });
  sim_gpu.set_state(start);
  const State state = sim_gpu.current_state();
  EXPECT_EQ(current_layout(state), one.from);
  if (!one.from.enabled || !one.to.enabled) return "";
  for (const auto& instance : state.instances) {
    if (find_profile(state, instance.profile)->slices != 1) continue;
    sim_gpu.add_holder(4711, instance.id, instance.compute[0].id);
    return instance.compute[0].uuid.str();
  }
  ADD_FAILURE() << "no instance of one slice";
  return "";
}

bool has_instance(const State& state, const std::string& uuid) {
  if (uuid.empty()) return true;
  for (const auto& instance : state.instances) {
    for (const auto& compute : instance.compute) {
      if (compute.uuid.str() == uuid) return true;
    }
  }
  return false;
}

TEST(Apply, ResumesAfterAKillAtAnyCall) {
  for (const auto& one : cases()) {
    SimHardware sim_gpu(one.machine);
    ASSERT_EQ(sim_gpu.plan_and_apply(one.from).outcome, Outcome::kDone);
    const State start = sim_gpu.current_state();
    for (const auto how : {How::kDieBefore, How::kDieAfter}) {
      std::size_t killed = 0;
      for (std::size_t call = 0;; ++call) {
        const std::string held = add_held_instance(sim_gpu, one, start);
        FailingHardware hardware(sim_gpu.hardware(), call, how);
        bool died = false;
        try {
          EXPECT_EQ(apply_plan(hardware, sim_gpu.plan_for(one.to)).outcome, Outcome::kDone);
        } catch (const FailingHardware::Killed&) {
          died = true;
        }
        EXPECT_TRUE(has_instance(sim_gpu.current_state(), held)) << one.machine << " call " << call;
        const Report again = sim_gpu.plan_and_apply(one.to);
        ASSERT_EQ(again.outcome, Outcome::kDone)
            << one.machine << " call " << call << ": " << describe_report(again);
        ASSERT_EQ(current_layout(sim_gpu.current_state()), one.to) << one.machine << " call " << call;
        ASSERT_TRUE(has_instance(sim_gpu.current_state(), held)) << one.machine << " call " << call;
        if (!died) break;
        ++killed;
      }
      EXPECT_GE(killed, 3u) << one.machine;
    }
  }
}

TEST(Apply, RollsBackAfterAnyFailingCall) {
  for (const auto& one : cases()) {
    SimHardware sim_gpu(one.machine);
    ASSERT_EQ(sim_gpu.plan_and_apply(one.from).outcome, Outcome::kDone);
    const State start = sim_gpu.current_state();
    for (const auto how : {How::kFail, How::kFailAfter}) {
      std::size_t failed = 0;
      for (std::size_t call = 0;; ++call) {
        const std::string held = add_held_instance(sim_gpu, one, start);
        FailingHardware hardware(sim_gpu.hardware(), call, how, Code::kDeadlineExceeded);
        const Report report = apply_plan(hardware, sim_gpu.plan_for(one.to));
        if (report.outcome == Outcome::kDone) break;
        ++failed;
        ASSERT_EQ(report.outcome, Outcome::kAsBefore)
            << one.machine << " call " << call << ": " << describe_report(report);
        ASSERT_EQ(report.error->code(), Code::kDeadlineExceeded) << describe_report(report);
        EXPECT_EQ(report.steps_done.empty(), call == 0) << describe_report(report);
        const State after = sim_gpu.current_state();
        ASSERT_TRUE(same_layout(after, start))
            << one.machine << " call " << call << ": " << describe_report(report);
        ASSERT_TRUE(has_instance(after, held)) << one.machine << " call " << call;
      }
      EXPECT_GE(failed, 3u) << one.machine;
    }
  }
}

TEST(Apply, RollsBackAfterAnyDriverCallThatRefuses) {
  // NVML_ERROR_IN_USE and NVML_ERROR_INSUFFICIENT_RESOURCES from the driver itself.
  for (const std::uint32_t refusal : {19u, 23u}) {
    for (const auto& one : cases()) {
      SimHardware sim_gpu(one.machine);
      ASSERT_EQ(sim_gpu.plan_and_apply(one.from).outcome, Outcome::kDone);
      const State start = sim_gpu.current_state();
      std::size_t failed = 0;
      for (std::uint32_t call = 0;; ++call) {
        const std::string held = add_held_instance(sim_gpu, one, start);
        const Plan planned = sim_gpu.plan_for(one.to);
        sim_gpu.on_gpu([&](sim::Gpu& gpu) {
          gpu.faults.mig_error = refusal;
          gpu.faults.mig_skip = call;
        });
        const Report report = apply_plan(sim_gpu.hardware(), planned);
        sim_gpu.on_gpu([](sim::Gpu& gpu) { gpu.faults = {}; });
        if (report.outcome == Outcome::kDone) break;
        ++failed;
        ASSERT_EQ(report.outcome, Outcome::kAsBefore)
            << one.machine << " call " << call << ": " << describe_report(report);
        ASSERT_EQ(report.error->code(), Code::kFailedPrecondition) << describe_report(report);
        ASSERT_TRUE(same_layout(sim_gpu.current_state(), start)) << one.machine << " call " << call;
        ASSERT_TRUE(has_instance(sim_gpu.current_state(), held)) << one.machine << " call " << call;
      }
      EXPECT_GE(failed, 3u) << one.machine;
    }
  }
}

TEST(Apply, ResumesAfterAKillDuringRollback) {
  const auto& one = cases()[0];
  SimHardware sim_gpu(one.machine);
  ASSERT_EQ(sim_gpu.plan_and_apply(one.from).outcome, Outcome::kDone);
  const State start = sim_gpu.current_state();
  add_held_instance(sim_gpu, one, start);
  FailingHardware counted(sim_gpu.hardware(), kNever, How::kFail);
  ASSERT_EQ(apply_plan(counted, sim_gpu.plan_for(one.to)).outcome, Outcome::kDone);
  std::size_t killed = 0;
  for (std::size_t call = 0;; ++call) {
    const std::string held = add_held_instance(sim_gpu, one, start);
    // The last creation fails, and the rollback dies at `call`.
    FailingHardware fails(sim_gpu.hardware(), counted.change_calls() - 1, How::kFail);
    FailingHardware dies(fails, counted.change_calls() + call, How::kDieAfter);
    bool died = false;
    try {
      EXPECT_EQ(apply_plan(dies, sim_gpu.plan_for(one.to)).outcome, Outcome::kAsBefore);
    } catch (const FailingHardware::Killed&) {
      died = true;
    }
    ASSERT_TRUE(has_instance(sim_gpu.current_state(), held)) << call;
    ASSERT_EQ(sim_gpu.plan_and_apply(one.to).outcome, Outcome::kDone) << call;
    ASSERT_EQ(current_layout(sim_gpu.current_state()), one.to) << call;
    ASSERT_TRUE(has_instance(sim_gpu.current_state(), held)) << call;
    if (!died) break;
    ++killed;
  }
  EXPECT_GE(killed, 3u);
}

TEST(Apply, ReportsAFailedRollback) {
  SimHardware sim_gpu("hgx-h100");
  ASSERT_EQ(sim_gpu.plan_and_apply(enabled_layout({{"3g.40gb", 2}})).outcome, Outcome::kDone);
  const Plan planned = sim_gpu.plan_for(enabled_layout({{"7g.80gb", 1}}));
  // Four calls destroy; the creation fails, and so does the second call of the rollback, which
  // creates a compute instance. `back` is not reached.
  FailingHardware back(sim_gpu.hardware(), 5, How::kFail, Code::kIo);
  FailingHardware hardware(back, 4, How::kFail);
  const Report report = apply_plan(hardware, planned);
  EXPECT_EQ(report.outcome, Outcome::kInBetween) << describe_report(report);
  EXPECT_EQ(report.error->code(), Code::kFailedPrecondition);
  EXPECT_EQ(report.rollback_error->code(), Code::kIo);
  EXPECT_EQ(report.steps_done.size(), 4u);
  EXPECT_FALSE(report.steps_undone.empty()) << "the rest is rolled back";
  EXPECT_NE(describe_report(report).find("rollback failed"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::mig
