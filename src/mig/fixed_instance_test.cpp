#include "mig/fixed_instance.h"

#include <gtest/gtest.h>

#include <utility>

#include "mig/test_hardware.h"

namespace gpulet::mig {
namespace {

using How = FailingHardware::How;

FixedPlace place_of(SimHardware& sim_gpu, const std::string& profile, unsigned start) {
  const State state = sim_gpu.current_state();
  const auto* found = find_profile(state, profile);
  for (const auto& placement : found->placements) {
    if (placement.start == start) return {found->id, placement};
  }
  ADD_FAILURE() << profile << " at " << start;
  return {};
}

void add_foreign(SimHardware& sim_gpu, const std::string& profile, unsigned start,
                 std::vector<unsigned> parts = {}) {
  sim_gpu.on_gpu([&](sim::Gpu& gpu) {
    ASSERT_NE(states::add_instance(gpu, profile, start, std::move(parts)), nullptr);
  });
}

std::string text_of(const Result<DeviceUuid>& found) {
  if (found) return found->str();
  return std::string(code_name(found.error().code())) + ": " + found.error().message();
}

TEST(FixedInstance, IsMadeExactlyThereAndRemoved) {
  for (const auto& name : states::machines_with_mig()) {
    SimHardware sim_gpu(name);
    for (const auto& profile : sim_gpu.current_state().profiles) {
      for (const auto& placement : profile.placements) {
        const FixedPlace place{profile.id, placement};
        ASSERT_EQ(text_of(find_fixed_instance(sim_gpu.hardware(), place)), "") << name << " " << profile.name;
        const auto made = make_fixed_instance(sim_gpu.hardware(), place, false);
        ASSERT_TRUE(made) << name << " " << profile.name << ": " << made.error().full_message();
        ASSERT_EQ(text_of(find_fixed_instance(sim_gpu.hardware(), place)), made->str());
        ASSERT_EQ(text_of(make_fixed_instance(sim_gpu.hardware(), place, true)), made->str());
        ASSERT_TRUE(remove_fixed_instance(sim_gpu.hardware(), place, *made));
        ASSERT_TRUE(sim_gpu.current_state().instances.empty());
        ASSERT_TRUE(remove_fixed_instance(sim_gpu.hardware(), place, *made));
      }
    }
  }
}

TEST(FixedInstance, OthersStayAsTheyAre) {
  SimHardware sim_gpu("hgx-h100");
  add_foreign(sim_gpu, "2g.20gb", 0);
  add_foreign(sim_gpu, "1g.10gb", 3);
  add_foreign(sim_gpu, "2g.20gb", 4, {1, 1});
  const State before = sim_gpu.current_state();
  auto& hardware = sim_gpu.hardware();
  EXPECT_EQ(text_of(make_fixed_instance(hardware, place_of(sim_gpu, "1g.10gb", 1), true)),
            "unavailable: the MIG instance 2g.20gb at 0-1 is in the place of 1g.10gb at 1");
  EXPECT_EQ(text_of(find_fixed_instance(hardware, place_of(sim_gpu, "3g.40gb", 0))),
            "unavailable: the MIG instance 2g.20gb at 0-1 is in the place of 3g.40gb at 0-3");
  const auto there = place_of(sim_gpu, "1g.10gb", 3);
  const auto uuid = before.instances[1].compute[0].uuid;
  EXPECT_EQ(text_of(find_fixed_instance(hardware, there)), uuid.str());
  EXPECT_EQ(text_of(make_fixed_instance(hardware, there, false)),
            "internal: another program has made a MIG instance at 3");
  EXPECT_EQ(text_of(find_fixed_instance(hardware, place_of(sim_gpu, "2g.20gb", 4))),
            "unavailable: the MIG instance 2g.20gb at 4-5 has not exactly one device of all its slices");
  EXPECT_TRUE(remove_fixed_instance(hardware, there, DeviceUuid("MIG-another")));
  EXPECT_EQ(sim_gpu.current_state(), before);
  EXPECT_EQ(text_of(find_fixed_instance(hardware, {99, {0, 1}})), "unsupported: no MIG profile 99 at 0");
}

TEST(FixedInstance, WhatAProcessHoldsStays) {
  SimHardware sim_gpu("dgx-a100");
  const auto place = place_of(sim_gpu, "2g.20gb", 2);
  const auto made = make_fixed_instance(sim_gpu.hardware(), place, false);
  ASSERT_TRUE(made);
  const State state = sim_gpu.current_state();
  const auto& instance = state.instances[0];
  sim_gpu.add_holder(4711, instance.id, instance.compute[0].id);
  EXPECT_EQ(text_of(find_fixed_instance(sim_gpu.hardware(), place)),
            "unavailable: the MIG instance 2g.20gb at 2-3 is held by process 4711");
  const auto removed = remove_fixed_instance(sim_gpu.hardware(), place, *made);
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code(), Code::kUnavailable);
  EXPECT_EQ(sim_gpu.current_state().instances.size(), 1u);
}

TEST(FixedInstance, NeedsTheMode) {
  SimHardware sim_gpu("hgx-h100", false);
  const auto place = place_of(sim_gpu, "1g.10gb", 0);
  EXPECT_EQ(text_of(make_fixed_instance(sim_gpu.hardware(), place, true)), "failed_precondition: MIG is off");
  EXPECT_TRUE(remove_fixed_instance(sim_gpu.hardware(), place, DeviceUuid()));
}

// Killed before and after every change, and with every change failing: the next call completes it, and
// removal leaves nothing, with and without the UUID.
TEST(FixedInstance, ConvergesAfterAnInterruptionAtEachStep) {
  for (const auto how : {How::kDieBefore, How::kDieAfter, How::kFail, How::kFailAfter}) {
    for (std::size_t call = 0; call < 2; ++call) {
      for (const bool completes : {false, true}) {
        SimHardware sim_gpu("hgx-h100");
        add_foreign(sim_gpu, "1g.10gb", 6);
        const State before = sim_gpu.current_state();
        const auto place = place_of(sim_gpu, "3g.40gb", 0);
        FailingHardware failing(sim_gpu.hardware(), call, how, Code::kUnavailable);
        try {
          EXPECT_FALSE(make_fixed_instance(failing, place, false));
        } catch (const FailingHardware::Killed&) {
        }
        DeviceUuid uuid;
        if (completes) {
          const auto made = make_fixed_instance(sim_gpu.hardware(), place, true);
          ASSERT_TRUE(made) << made.error().full_message();
          uuid = *made;
        }
        FailingHardware failing_removal(sim_gpu.hardware(), call, how);
        try {
          static_cast<void>(remove_fixed_instance(failing_removal, place, uuid));
        } catch (const FailingHardware::Killed&) {
        }
        ASSERT_TRUE(remove_fixed_instance(sim_gpu.hardware(), place, uuid));
        EXPECT_EQ(sim_gpu.current_state().instances, before.instances);
      }
    }
  }
}

}  // namespace
}  // namespace gpulet::mig
