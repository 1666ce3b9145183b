// Plans carried out on simulated GPUs through the driver's calls: to their end, killed at every call, and
// with every call failing.
#include "mig/apply.h"

#include <gtest/gtest.h>

#include "mig/test_drive.h"

namespace gpulet::mig {
namespace {

using states::layout;

using How = Interrupted::How;

const Layout kOff{false, {}};

// Layouts for any board: the most of each profile, nothing, and a mix of the smallest, a part of it and the
// half.
std::vector<Layout> layouts_of(const State& state) {
  std::vector<Layout> all = {layout({})};
  for (const auto& profile : state.profiles) {
    const auto wanted = layout({{profile.name, profile.most}});
    if (plan(state, wanted)) all.push_back(wanted);
  }
  const Profile *one = nullptr, *two = nullptr;
  for (const auto& profile : state.profiles) {
    if (profile.slices == 1 && (one == nullptr || profile.most > one->most)) one = &profile;
    if (profile.slices == 2 && (two == nullptr || profile.most > two->most)) two = &profile;
  }
  all.push_back(layout({{one->name, 2}, {two->name, 1}}));
  all.push_back(layout({{one->name, 1}, {"1c." + two->name, 2}}));
  return all;
}

TEST(Apply, EveryLayoutAfterEveryOtherOnEveryMachine) {
  for (const auto& name : states::machines_with_mig()) {
    Drive drive(name);
    const auto layouts = layouts_of(drive.state());
    ASSERT_GE(layouts.size(), 5u) << name;
    for (const auto& from : layouts) {
      for (const auto& to : layouts) {
        ASSERT_EQ(drive.applied(from).outcome, Outcome::kDone);
        const Report report = drive.applied(to);
        ASSERT_EQ(report.outcome, Outcome::kDone) << name << ": " << describe(report);
        ASSERT_EQ(layout_now(drive.state()), to) << name << ": " << describe(report);
        ASSERT_TRUE(drive.planned(to).nothing_to_do()) << name;
      }
    }
  }
}

TEST(Apply, SaysWhatItDid) {
  Drive drive("hgx-h100");
  EXPECT_EQ(describe(drive.applied(layout({{"1g.10gb", 1}, {"1c.2g.20gb", 2}}))),
            "done: created 2g.20gb at 0-1; created 1c.2g.20gb; created 1c.2g.20gb; created 1g.10gb at 2");
  EXPECT_EQ(describe(drive.applied(layout({{"1g.10gb", 1}, {"3g.40gb", 1}}))),
            "done: destroyed 1c.2g.20gb in the instance at 0-1; destroyed 1c.2g.20gb in the instance at 0-1; "
            "destroyed 2g.20gb at 0-1; created 3g.40gb at 4-7");
  EXPECT_EQ(describe(drive.applied(layout({{"1g.10gb", 1}, {"3g.40gb", 1}}))), "done");
}

TEST(Apply, TheModeAtOnceOrAfterAReset) {
  Drive hopper("hgx-h100", false);
  const auto wanted = layout({{"7g.80gb", 1}});
  EXPECT_EQ(hopper.applied(wanted).outcome, Outcome::kDone);
  EXPECT_EQ(layout_now(hopper.state()), wanted);
  EXPECT_EQ(hopper.applied(kOff).outcome, Outcome::kDone);
  EXPECT_EQ(layout_now(hopper.state()), kOff);

  Drive ampere("a30", false);
  const auto small = layout({{"1g.6gb", 4}});
  const Report report = ampere.applied(small);
  EXPECT_EQ(describe(report), "needs-reset: set MIG mode on");
  EXPECT_FALSE(report.error);
  // Asked again it still waits, and nothing is made.
  EXPECT_EQ(ampere.applied(small).outcome, Outcome::kNeedsReset);
  EXPECT_TRUE(sim::reset_gpu(*ampere.edit(), 0));
  EXPECT_EQ(ampere.applied(small).outcome, Outcome::kDone);
  EXPECT_EQ(layout_now(ampere.state()), small);
  EXPECT_EQ(ampere.applied(kOff).outcome, Outcome::kNeedsReset);
  EXPECT_TRUE(sim::reset_gpu(*ampere.edit(), 0));
  EXPECT_EQ(layout_now(ampere.state()), kOff);
}

TEST(Apply, AModeThatTheGpuIsTooBusyForIsTakenBack) {
  Drive drive("hgx-h100", false);
  const Plan planned = drive.planned(layout({{"7g.80gb", 1}}));
  Interrupted hardware(drive.hardware(), kNever, How::kFail);
  bool came = false;
  hardware.before_change = [&] {
    if (!came) drive.hold(4711, sim::kNoInstance, sim::kNoInstance);
    came = true;
  };
  // It came after holders were asked for: the driver refuses, and notes the mode for the next reset.
  const Report refused = apply(hardware, planned);
  EXPECT_EQ(refused.outcome, Outcome::kAsBefore) << describe(refused);
  EXPECT_EQ(refused.error->code(), Code::kFailedPrecondition);
  EXPECT_EQ(drive.state().pending, std::nullopt) << "a reset by anybody must not turn MIG on";
  EXPECT_FALSE(drive.state().enabled);
  // Now it is seen before anything is touched.
  Interrupted untouched(drive.hardware(), kNever, How::kFail);
  const Report seen = apply(untouched, planned);
  EXPECT_EQ(seen.outcome, Outcome::kAsBefore);
  EXPECT_NE(seen.error->text().find("in use by process 4711"), std::string::npos) << describe(seen);
  EXPECT_EQ(untouched.calls(), 0u);
}

TEST(Apply, WhoComesBetweenPlanAndStepIsNotDisturbed) {
  Drive drive("hgx-h100");
  ASSERT_EQ(drive.applied(layout({{"1g.10gb", 3}})).outcome, Outcome::kDone);
  const State before = drive.state();
  const Plan planned = drive.planned(layout({{"7g.80gb", 1}}));
  Interrupted hardware(drive.hardware(), kNever, How::kFail);
  unsigned asked = 0;
  hardware.before_holders = [&] {
    if (++asked == 3) drive.hold(4711, before.instances[2].id, 0);
  };
  const Report report = apply(hardware, planned);
  EXPECT_EQ(report.outcome, Outcome::kAsBefore) << describe(report);
  EXPECT_EQ(report.done.size(), 2u);
  EXPECT_EQ(report.error->code(), Code::kFailedPrecondition);
  EXPECT_NE(report.error->text().find("in use by process 4711"), std::string::npos) << report.error->text();
  const State after = drive.state();
  EXPECT_TRUE(same_layout(after, before));
  EXPECT_EQ(after.instances[2].compute, before.instances[2].compute) << "the same MIG device, by its UUID";
}

TEST(Apply, APlanForAnotherStateIsRefusedUntouched) {
  Drive drive("hgx-h100");
  ASSERT_EQ(drive.applied(layout({{"1g.10gb", 2}})).outcome, Outcome::kDone);
  const Plan planned = drive.planned(layout({{"3g.40gb", 2}}));
  ASSERT_EQ(drive.applied(layout({{"2g.20gb", 1}})).outcome, Outcome::kDone);
  const State before = drive.state();
  Interrupted hardware(drive.hardware(), kNever, How::kFail);
  const Report report = apply(hardware, planned);
  EXPECT_EQ(report.outcome, Outcome::kAsBefore);
  EXPECT_EQ(report.error->code(), Code::kFailedPrecondition);
  EXPECT_NE(report.error->text().find("has changed since this was planned"), std::string::npos);
  EXPECT_EQ(hardware.calls(), 0u);
  EXPECT_EQ(drive.state(), before);

  drive.hold(4711, before.instances[0].id, 0);
  const Plan blocked = drive.planned(layout({{"7g.80gb", 1}}));
  EXPECT_EQ(apply(hardware, blocked).error->code(), Code::kFailedPrecondition);
  EXPECT_EQ(hardware.calls(), 0u);

  const auto other = make_hardware(drive.shared_session(), 1, before.uuid);
  const auto wrong = other->read();
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), Code::kFailedPrecondition);
  EXPECT_NE(wrong.error().text().find("is another one now"), std::string::npos) << wrong.error().text();
}

// From one layout to another; where MIG stays on, with a device in use that both have.
struct Case {
  std::string machine;
  Layout from, to;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"hgx-h100", layout({{"1g.10gb", 7}}), layout({{"1g.10gb", 2}, {"2g.20gb", 1}, {"3g.40gb", 1}})},
      {"hgx-h100", layout({{"1g.10gb", 1}, {"1c.3g.40gb", 2}}), layout({{"1g.10gb", 1}, {"2c.3g.40gb", 1}})},
      {"dgx-a100", layout({{"1g.10gb", 4}, {"3g.40gb", 1}}), layout({{"1g.10gb", 1}, {"2g.20gb", 2}})},
      {"a30", layout({{"1g.6gb", 4}}), layout({{"1g.6gb", 2}, {"2g.12gb", 1}})},
      {"rtx-pro-6000", layout({{"1g.24gb", 4}}), layout({{"1g.24gb", 1}, {"1g.24gb-me", 1}, {"2g.48gb", 1}})},
      {"hgx-h200", kOff, layout({{"1g.18gb", 1}, {"3g.71gb", 1}})},
      {"hgx-h200", layout({{"1g.18gb", 1}, {"3g.71gb", 1}}), kOff},
  };
  return all;
}

// The GPU with the case's first layout, and the UUID of the device of one slice that somebody is on; empty
// where nobody is.
std::string put_held(Drive& drive, const Case& one, const State& start) {
  drive.on_gpu([](sim::Gpu& gpu) { sim::remove_process(gpu, 4711); });
  drive.put(start);
  const State state = drive.state();
  EXPECT_EQ(layout_now(state), one.from);
  if (!one.from.enabled || !one.to.enabled) return "";
  for (const auto& instance : state.instances) {
    if (find_profile(state, instance.profile)->slices != 1) continue;
    drive.hold(4711, instance.id, instance.compute[0].id);
    return instance.compute[0].uuid.str();
  }
  ADD_FAILURE() << "no instance of one slice";
  return "";
}

bool has(const State& state, const std::string& uuid) {
  if (uuid.empty()) return true;
  for (const auto& instance : state.instances) {
    for (const auto& compute : instance.compute) {
      if (compute.uuid.str() == uuid) return true;
    }
  }
  return false;
}

TEST(Apply, KilledAtAnyCallItEndsInTheNewLayoutAndDisturbsNobody) {
  for (const auto& one : cases()) {
    Drive drive(one.machine);
    ASSERT_EQ(drive.applied(one.from).outcome, Outcome::kDone);
    const State start = drive.state();
    for (const auto how : {How::kDieBefore, How::kDieAfter}) {
      std::size_t killed = 0;
      for (std::size_t call = 0;; ++call) {
        const std::string held = put_held(drive, one, start);
        Interrupted hardware(drive.hardware(), call, how);
        bool died = false;
        try {
          EXPECT_EQ(apply(hardware, drive.planned(one.to)).outcome, Outcome::kDone);
        } catch (const Interrupted::Killed&) {
          died = true;
        }
        EXPECT_TRUE(has(drive.state(), held)) << one.machine << " call " << call;
        const Report again = drive.applied(one.to);
        ASSERT_EQ(again.outcome, Outcome::kDone)
            << one.machine << " call " << call << ": " << describe(again);
        ASSERT_EQ(layout_now(drive.state()), one.to) << one.machine << " call " << call;
        ASSERT_TRUE(has(drive.state(), held)) << one.machine << " call " << call;
        if (!died) break;
        ++killed;
      }
      EXPECT_GE(killed, 3u) << one.machine;
    }
  }
}

TEST(Apply, AnyCallThatFailsIsRolledBackToWhatWas) {
  for (const auto& one : cases()) {
    Drive drive(one.machine);
    ASSERT_EQ(drive.applied(one.from).outcome, Outcome::kDone);
    const State start = drive.state();
    for (const auto how : {How::kFail, How::kFailAfter}) {
      std::size_t failed = 0;
      for (std::size_t call = 0;; ++call) {
        const std::string held = put_held(drive, one, start);
        Interrupted hardware(drive.hardware(), call, how, Code::kDeadlineExceeded);
        const Report report = apply(hardware, drive.planned(one.to));
        if (report.outcome == Outcome::kDone) break;
        ++failed;
        ASSERT_EQ(report.outcome, Outcome::kAsBefore)
            << one.machine << " call " << call << ": " << describe(report);
        ASSERT_EQ(report.error->code(), Code::kDeadlineExceeded) << describe(report);
        EXPECT_EQ(report.done.empty(), call == 0) << describe(report);
        const State after = drive.state();
        ASSERT_TRUE(same_layout(after, start)) << one.machine << " call " << call << ": " << describe(report);
        ASSERT_TRUE(has(after, held)) << one.machine << " call " << call;
      }
      EXPECT_GE(failed, 3u) << one.machine;
    }
  }
}

TEST(Apply, AnyDriverCallThatRefusesIsRolledBackToWhatWas) {
  // NVML_ERROR_IN_USE and NVML_ERROR_INSUFFICIENT_RESOURCES, of the driver itself.
  for (const std::uint32_t refusal : {19u, 23u}) {
    for (const auto& one : cases()) {
      Drive drive(one.machine);
      ASSERT_EQ(drive.applied(one.from).outcome, Outcome::kDone);
      const State start = drive.state();
      std::size_t failed = 0;
      for (std::uint32_t call = 0;; ++call) {
        const std::string held = put_held(drive, one, start);
        const Plan planned = drive.planned(one.to);
        drive.on_gpu([&](sim::Gpu& gpu) {
          gpu.faults.mig_error = refusal;
          gpu.faults.mig_skip = call;
        });
        const Report report = apply(drive.hardware(), planned);
        drive.on_gpu([](sim::Gpu& gpu) { gpu.faults = {}; });
        if (report.outcome == Outcome::kDone) break;
        ++failed;
        ASSERT_EQ(report.outcome, Outcome::kAsBefore)
            << one.machine << " call " << call << ": " << describe(report);
        ASSERT_EQ(report.error->code(), Code::kFailedPrecondition) << describe(report);
        ASSERT_TRUE(same_layout(drive.state(), start)) << one.machine << " call " << call;
        ASSERT_TRUE(has(drive.state(), held)) << one.machine << " call " << call;
      }
      EXPECT_GE(failed, 3u) << one.machine;
    }
  }
}

TEST(Apply, KilledOnTheWayBackItStillEndsInTheNewLayout) {
  const auto& one = cases()[0];
  Drive drive(one.machine);
  ASSERT_EQ(drive.applied(one.from).outcome, Outcome::kDone);
  const State start = drive.state();
  put_held(drive, one, start);
  Interrupted counted(drive.hardware(), kNever, How::kFail);
  ASSERT_EQ(apply(counted, drive.planned(one.to)).outcome, Outcome::kDone);
  std::size_t killed = 0;
  for (std::size_t call = 0;; ++call) {
    const std::string held = put_held(drive, one, start);
    // The last creation fails, and the way back ends at `call`.
    Interrupted fails(drive.hardware(), counted.calls() - 1, How::kFail);
    Interrupted dies(fails, counted.calls() + call, How::kDieAfter);
    bool died = false;
    try {
      EXPECT_EQ(apply(dies, drive.planned(one.to)).outcome, Outcome::kAsBefore);
    } catch (const Interrupted::Killed&) {
      died = true;
    }
    ASSERT_TRUE(has(drive.state(), held)) << call;
    ASSERT_EQ(drive.applied(one.to).outcome, Outcome::kDone) << call;
    ASSERT_EQ(layout_now(drive.state()), one.to) << call;
    ASSERT_TRUE(has(drive.state(), held)) << call;
    if (!died) break;
    ++killed;
  }
  EXPECT_GE(killed, 3u);
}

TEST(Apply, AWayBackThatFailsSaysSo) {
  Drive drive("hgx-h100");
  ASSERT_EQ(drive.applied(layout({{"3g.40gb", 2}})).outcome, Outcome::kDone);
  const Plan planned = drive.planned(layout({{"7g.80gb", 1}}));
  // Four calls destroy; the creation fails, and so does the second call of the way back: a compute instance.
  // The creation does not get as far as `back`.
  Interrupted back(drive.hardware(), 5, How::kFail, Code::kIo);
  Interrupted hardware(back, 4, How::kFail);
  const Report report = apply(hardware, planned);
  EXPECT_EQ(report.outcome, Outcome::kInBetween) << describe(report);
  EXPECT_EQ(report.error->code(), Code::kFailedPrecondition);
  EXPECT_EQ(report.rollback_error->code(), Code::kIo);
  EXPECT_EQ(report.done.size(), 4u);
  EXPECT_FALSE(report.undone.empty()) << "the rest is taken back";
  EXPECT_NE(describe(report).find("not taken back"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::mig
