// The planner case by case; exhaustive_test.cpp covers all cases.
#include "mig/plan.h"

#include <gtest/gtest.h>

#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

using states::enabled_layout;

struct Board {
  explicit Board(const std::string& name, bool enabled = true) : machine(states::test_machine(name)) {
    states::set_mig_mode(board_gpu(), enabled);
  }
  sim::Gpu& board_gpu() { return machine->gpus[0]; }
  void add_instance(const std::string& profile, unsigned start, std::vector<unsigned> parts = {}) {
    ASSERT_NE(states::add_instance(board_gpu(), profile, start, std::move(parts)), nullptr)
        << profile << " at " << start;
  }
  State board_state() { return states::state_of(board_gpu()); }
  // Adds holders to the instances at those starts.
  State hold_instance(const std::vector<unsigned>& starts) {
    State held = board_state();
    for (auto& instance : held.instances) {
      if (std::ranges::find(starts, instance.placement.start) != starts.end()) {
        instance.holders = {"process " + std::to_string(100 + instance.placement.start) + " (python3)"};
      }
    }
    return held;
  }
  std::unique_ptr<sim::Machine> machine;
};

Board seven_small() {
  Board board("hgx-h100");
  for (unsigned start = 0; start < 7; ++start) board.add_instance("1g.10gb", start);
  return board;
}

std::vector<std::string> plan_text(const State& state, const Layout& target) {
  const auto made = make_plan(state, target);
  return made ? describe_plan(*made) : std::vector<std::string>{"error: " + made.error().full_message()};
}

const Layout kBalanced = enabled_layout({{"1g.10gb", 2}, {"2g.20gb", 1}, {"3g.40gb", 1}});

using Lines = std::vector<std::string>;

TEST(Plan, UsesTheLowestPlacementsThatFit) {
  Board board("hgx-h100");
  EXPECT_EQ(plan_text(board.board_state(), kBalanced),
            Lines{"GPU 0: create 2g.20gb at 0-1, 1g.10gb at 2, 1g.10gb at 3, 3g.40gb at 4-7"});
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({{"1g.20gb", 4}})),
            Lines{"GPU 0: create 1g.20gb at 0-1, 1g.20gb at 2-3, 1g.20gb at 4-5, 1g.20gb at 6-7"});
}

TEST(Plan, PlansNothingForTheCurrentLayout) {
  Board board("hgx-h100");
  board.add_instance("3g.40gb", 0);
  board.add_instance("1g.10gb", 6);
  const auto made = make_plan(board.hold_instance({6}), enabled_layout({{"1g.10gb", 1}, {"3g.40gb", 1}}));
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->is_noop());
  EXPECT_EQ(describe_plan(*made), Lines{"GPU 0: nothing to do; keep 3g.40gb at 0-3, 1g.10gb at 6"});
  Board empty("hgx-h100");
  EXPECT_EQ(plan_text(empty.board_state(), enabled_layout({})), Lines{"GPU 0: nothing to do"});
}

TEST(Plan, KeepsTheInstanceInUse) {
  Board board = seven_small();
  for (const unsigned start : {0u, 1u, 2u, 3u}) {
    const auto made = make_plan(board.hold_instance({start}), kBalanced);
    ASSERT_TRUE(made);
    ASSERT_FALSE(made->is_blocked());
    ASSERT_EQ(made->keep.size(), 2u);
    EXPECT_TRUE(
        std::ranges::any_of(made->keep, [&](const Keep& kept) { return kept.placement.start == start; }));
  }
  EXPECT_EQ(plan_text(board.hold_instance({1}), kBalanced),
            Lines{"GPU 0: destroy 1g.10gb at 2, 1g.10gb at 3, 1g.10gb at 4, 1g.10gb at 5, 1g.10gb at 6; "
                  "create 2g.20gb at 2-3, 3g.40gb at 4-7; keep 1g.10gb at 0, 1g.10gb at 1"});
}

// 3g needs one half of the GPU, and 2g with two 1g needs 0 to 3.
TEST(Plan, NamesTheBlockingHolders) {
  Board board = seven_small();
  const auto made = make_plan(board.hold_instance({1, 5}), kBalanced);
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->is_blocked());
  EXPECT_TRUE(made->destroy.empty() && made->destroy_compute.empty() && made->create.empty());
  EXPECT_EQ(describe_plan(*made),
            (Lines{"GPU 0: blocked; would destroy 1g.10gb at 2, 1g.10gb at 3, 1g.10gb at 4, 1g.10gb at 5, "
                   "1g.10gb at 6; create 2g.20gb at 2-3, 3g.40gb at 4-7; keep 1g.10gb at 0, 1g.10gb at 1",
                   "GPU 0: blocked by process 105 (python3), on 1g.10gb at 5"}));
}

// The fewest holders: one at 0 blocks less than two at 4 and 5.
TEST(Plan, IsBlockedByTheFewestHolders) {
  Board board = seven_small();
  const auto made =
      make_plan(board.hold_instance({0, 4, 5}), enabled_layout({{"1g.10gb", 3}, {"3g.40gb", 1}}));
  ASSERT_TRUE(made);
  EXPECT_EQ(made->blocked_by, Lines{"process 100 (python3), on 1g.10gb at 0"});
}

TEST(Plan, PlansAroundInstancesInUse) {
  Board board("hgx-h100");
  board.add_instance("2g.20gb", 0);
  board.add_instance("2g.20gb", 2);
  board.add_instance("2g.20gb", 4);
  EXPECT_EQ(
      plan_text(board.hold_instance({4}), enabled_layout({{"2g.20gb", 1}, {"3g.40gb", 1}, {"1g.10gb", 1}})),
      Lines{"GPU 0: destroy 2g.20gb at 0-1, 2g.20gb at 2-3; create 3g.40gb at 0-3, 1g.10gb at 6; "
            "keep 2g.20gb at 4-5"});
  EXPECT_EQ(
      plan_text(board.hold_instance({0}), enabled_layout({{"2g.20gb", 1}, {"3g.40gb", 1}, {"1g.10gb", 1}})),
      Lines{"GPU 0: destroy 2g.20gb at 2-3, 2g.20gb at 4-5; create 1g.10gb at 2, 3g.40gb at 4-7; "
            "keep 2g.20gb at 0-1"});
}

TEST(Plan, SuggestsTheNearestLayout) {
  Board board("hgx-h100");
  EXPECT_EQ(
      plan_text(board.board_state(), enabled_layout({{"1g.10gb", 7}, {"2g.20gb", 1}})),
      Lines{"error: 7 \u00d7 1g.10gb + 1 \u00d7 2g.20gb do not fit on GPU 0 (NVIDIA H100 80GB HBM3); the "
            "nearest that does: 5 \u00d7 1g.10gb + 1 \u00d7 2g.20gb"});
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({{"1g.10gb+me", 2}})),
            Lines{"error: 2 \u00d7 1g.10gb+me do not fit on GPU 0 (NVIDIA H100 80GB HBM3); the nearest that "
                  "does: 1 \u00d7 1g.10gb+me"});
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({{"1g.10gb", 4'000'000'000}})),
            Lines{"error: 4000000000 \u00d7 1g.10gb do not fit on GPU 0 (NVIDIA H100 80GB HBM3); the nearest "
                  "that does: 7 \u00d7 1g.10gb"});
  EXPECT_EQ(
      plan_text(board.board_state(), enabled_layout({{"1c.3g.40gb", 7}, {"3g.40gb", 1}})),
      Lines{"error: 7 \u00d7 1c.3g.40gb + 1 \u00d7 3g.40gb do not fit on GPU 0 (NVIDIA H100 80GB HBM3); "
            "the nearest that does: 3 \u00d7 1c.3g.40gb + 1 \u00d7 3g.40gb"});
  // Four of 1g.20gb fit, as do three of 2g.20gb; together they are limited by the compute slices.
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({{"1g.20gb", 1}, {"2g.20gb", 3}})),
            Lines{"GPU 0: create 2g.20gb at 0-1, 2g.20gb at 2-3, 2g.20gb at 4-5, 1g.20gb at 6-7"});
}

// One instance gets all media engines of the board, so no other instance with engines fits.
TEST(Plan, CountsMediaEngines) {
  Board board("rtx-pro-6000");
  EXPECT_EQ(
      plan_text(board.board_state(), enabled_layout({{"1g.24gb+me.all", 1}, {"1g.24gb", 3}})),
      Lines{"error: 3 \u00d7 1g.24gb + 1 \u00d7 1g.24gb+me.all do not fit on GPU 0 (NVIDIA RTX PRO 6000 "
            "Blackwell Server Edition); the nearest that does: 3 \u00d7 1g.24gb"});
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({{"1g.24gb+me.all", 1}, {"1g.24gb-me", 3}})),
            Lines{"GPU 0: create 1g.24gb+me.all at 0, 1g.24gb-me at 1, 1g.24gb-me at 2, 1g.24gb-me at 3"});
}

TEST(Plan, RefusesUnknownProfiles) {
  Board board("hgx-h100");
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({{"1g.5gb", 7}})),
            Lines{"error: GPU 0 (NVIDIA H100 80GB HBM3) has no profile 1g.5gb; did you mean 1g.10gb? It has "
                  "7g.80gb, 4g.40gb, 3g.40gb, 2g.20gb, 1g.20gb, 1g.10gb, 1g.10gb+me"});
  EXPECT_EQ(
      plan_text(board.board_state(), enabled_layout({{"3c.4g.40gb", 1}})),
      Lines{"error: GPU 0 (NVIDIA H100 80GB HBM3) has no 3c.4g.40gb; available: 1c.4g.40gb, 2c.4g.40gb, "
            "4g.40gb"});
  const auto no_mig = states::test_machine("l40s");
  EXPECT_EQ(plan_text(states::state_of(no_mig->gpus[0], 3), enabled_layout({})),
            Lines{"error: GPU 3 (NVIDIA L40S) does not support MIG"});
  EXPECT_EQ(plan_text(states::state_of(no_mig->gpus[0], 3), {}), Lines{"GPU 3: nothing to do"});
  EXPECT_EQ(plan_text(board.board_state(), {false, {{"1g.10gb", 1}}}),
            Lines{"error: a layout with MIG disabled cannot have devices: 1 \u00d7 1g.10gb"});
}

TEST(Plan, ChangesTheMode) {
  Board off("dgx-a100", false);
  State state = off.board_state();
  EXPECT_EQ(plan_text(state, enabled_layout({{"7g.80gb", 1}})),
            Lines{"GPU 0: enable MIG; create 7g.80gb at 0-7"});
  state.holders = {"process 7 (train)"};
  EXPECT_EQ(plan_text(state, enabled_layout({{"7g.80gb", 1}})),
            (Lines{"GPU 0: blocked; would enable MIG; create 7g.80gb at 0-7",
                   "GPU 0: blocked by process 7 (train), on the GPU"}));
  EXPECT_EQ(plan_text(state, {}), Lines{"GPU 0: nothing to do"});

  ASSERT_EQ(sim::set_mig_mode(off.board_gpu(), true, true), sim::MigOutcome::kInUse);
  const auto waiting = make_plan(off.board_state(), enabled_layout({}));
  ASSERT_TRUE(waiting);
  EXPECT_TRUE(waiting->needs_reset);
  EXPECT_EQ(describe_plan(*waiting), Lines{"GPU 0: enable MIG; reset the GPU"});
  EXPECT_EQ(plan_text(off.board_state(), {}), Lines{"GPU 0: disable MIG"}) << "a pending mode is cancelled";

  Board on("hgx-h100");
  on.add_instance("2g.20gb", 2, {1, 1});
  EXPECT_EQ(plan_text(on.board_state(), {}), Lines{"GPU 0: destroy 2g.20gb at 2-3; disable MIG"});
  EXPECT_EQ(plan_text(on.hold_instance({2}), {}),
            (Lines{"GPU 0: blocked; would destroy 2g.20gb at 2-3; disable MIG",
                   "GPU 0: blocked by process 102 (python3), on 2g.20gb at 2-3"}));
}

TEST(Plan, PlansOnlyTheMode) {
  auto seven = seven_small();
  EXPECT_TRUE(plan_mode(seven.board_state(), true)->is_noop()) << "instances are left alone";
  const auto off = plan_mode(seven.board_state(), false);
  EXPECT_EQ(off->destroy.size(), 7u);
  EXPECT_EQ(off->set_mode, false);
  EXPECT_TRUE(plan_mode(seven.hold_instance({3}), false)->is_blocked());
  EXPECT_TRUE(plan_mode(seven.hold_instance({3}), true)->is_noop());
  seven.board_gpu().mig.pending = 0;
  const auto back = plan_mode(seven.board_state(), true);
  EXPECT_EQ(describe_plan(*back), std::vector<std::string>{"GPU 0: enable MIG"});
  EXPECT_TRUE(back->destroy.empty() && back->destroy_compute.empty());
  Board whole("dgx-a100", false);
  EXPECT_EQ(plan_mode(whole.board_state(), true)->set_mode, true);
  EXPECT_TRUE(plan_mode(whole.board_state(), false)->is_noop());
  Board none("t4", false);
  EXPECT_EQ(plan_mode(none.board_state(), true).error().code(), Code::kUnsupported);
  EXPECT_TRUE(plan_mode(none.board_state(), false)->is_noop());
}

TEST(Plan, PacksComputeInstancesIntoFewGpuInstances) {
  Board board("hgx-h100");
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({{"1c.2g.20gb", 3}, {"2g.20gb", 1}})),
            Lines{"GPU 0: create 2g.20gb at 0-1, 2g.20gb at 2-3 (2 \u00d7 1c.2g.20gb), 2g.20gb at 4-5 "
                  "(1 \u00d7 1c.2g.20gb)"});
  // First fit with the largest first would leave no place for the second 2c.
  const Layout whole = enabled_layout({{"3c.7g.80gb", 1}, {"2c.7g.80gb", 2}});
  const auto made = make_plan(board.board_state(), whole);
  ASSERT_TRUE(made);
  EXPECT_EQ(states::carry_out(board.board_gpu(), *made), "");
  EXPECT_EQ(current_layout(board.board_state()), whole);
}

TEST(Plan, KeepsComputeInstances) {
  Board board("hgx-h100");
  board.add_instance("2g.20gb", 0, {1});
  board.add_instance("2g.20gb", 4, {1});
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({{"1c.2g.20gb", 2}})),
            Lines{"GPU 0: nothing to do; keep 2g.20gb at 0-1, 2g.20gb at 4-5"});
  EXPECT_EQ(
      plan_text(board.hold_instance({4}), enabled_layout({{"1c.2g.20gb", 4}})),
      Lines{"GPU 0: create compute instances 2 \u00d7 1c.2g.20gb; keep 2g.20gb at 0-1, 2g.20gb at 4-5"});
  EXPECT_EQ(
      plan_text(board.board_state(), enabled_layout({{"2g.20gb", 1}})),
      Lines{"GPU 0: destroy compute instances 1 \u00d7 1c.2g.20gb; destroy 2g.20gb at 4-5; create compute "
            "instances 1 \u00d7 2g.20gb; keep 2g.20gb at 0-1"});
  EXPECT_EQ(plan_text(board.hold_instance({4}), enabled_layout({{"2g.20gb", 1}})).back(),
            "GPU 0: blocked by process 104 (python3), on 2g.20gb at 4-5");
}

// Created but not filled, as by an agent that was killed in between.
TEST(Plan, FillsAGpuInstanceWithoutComputeInstance) {
  Board board("hgx-h100");
  sim::GpuInstance* made = nullptr;
  ASSERT_EQ(sim::create_gpu_instance(board.board_gpu(), 14, 4, &made), sim::MigOutcome::kOk);
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({{"2g.20gb", 1}})),
            Lines{"GPU 0: create compute instances 1 \u00d7 2g.20gb; keep 2g.20gb at 4-5"});
  EXPECT_EQ(plan_text(board.board_state(), enabled_layout({})), Lines{"GPU 0: destroy 2g.20gb at 4-5"});
}

// A compute instance at slice 1 of three leaves no place for one of two slices, although two are
// free.
TEST(Plan, RespectsComputePlacements) {
  Board board("hgx-h100");
  board.add_instance("3g.40gb", 0, {1, 1});
  auto& instance = board.board_gpu().mig.instances[0];
  ASSERT_EQ(sim::destroy_compute_instance(board.board_gpu(), instance, 0), sim::MigOutcome::kOk);
  const Layout target = enabled_layout({{"1c.3g.40gb", 1}, {"2c.3g.40gb", 1}});
  const auto made = make_plan(board.board_state(), target);
  ASSERT_TRUE(made);
  EXPECT_EQ(describe_plan(*made),
            Lines{"GPU 0: create 3g.40gb at 4-7 (1 \u00d7 2c.3g.40gb); keep 3g.40gb at 0-3"});
  EXPECT_EQ(states::carry_out(board.board_gpu(), *made), "");
  EXPECT_EQ(current_layout(board.board_state()), target);
}

// The driver chooses what it does not report.
TEST(Plan, PlansWithoutComputePlacements) {
  Board board("hgx-h100");
  State state = board.board_state();
  for (auto& profile : state.profiles) {
    for (auto& compute : profile.compute) compute.placements.clear();
  }
  auto made = make_plan(state, enabled_layout({{"1c.3g.40gb", 1}, {"2c.3g.40gb", 1}}));
  ASSERT_TRUE(made);
  ASSERT_EQ(made->create.size(), 1u);
  ASSERT_EQ(made->create[0].compute.size(), 2u);
  EXPECT_EQ(made->create[0].compute[0].slices, 2u);
  EXPECT_EQ(made->create[0].compute[0].placement, std::nullopt);
  EXPECT_EQ(states::carry_out(board.board_gpu(), *made), "");
  for (auto& profile : state.profiles) profile.compute.clear();
  made = make_plan(state, enabled_layout({{"3g.40gb", 1}}));
  ASSERT_TRUE(made);
  EXPECT_EQ(made->create[0].compute[0].profile, std::nullopt);
}

TEST(Plan, HandlesUnusualStates) {
  Board board("hgx-h100");
  State state = board.board_state();
  state.instances = {{9, 77, {1, 1}, {{0, 3, {}, {}}}, {}}, {10, 19, {63, 9}, {}, {}}};
  EXPECT_EQ(plan_text(state, enabled_layout({{"1g.10gb", 1}})),
            Lines{"GPU 0: destroy profile 77 at 1, 1g.10gb at 63-71; create 1g.10gb at 0"});
  state.instances[0].holders = {"Pod default/train"};
  EXPECT_EQ(plan_text(state, enabled_layout({})).back(),
            "GPU 0: blocked by Pod default/train, on profile 77 at 1");
  // The driver's own placement is valid even if the driver does not list it.
  state.instances = {{9, 19, {7, 1}, {{0, 0, {0, 1}, {}}}, {"Pod default/train"}}};
  EXPECT_EQ(plan_text(state, enabled_layout({{"1g.10gb", 1}})),
            Lines{"GPU 0: nothing to do; keep 1g.10gb at 7"});
  state.profiles.back().slices = 0;
  EXPECT_FALSE(make_plan(state, enabled_layout({{state.profiles.back().name, 1}})));
}

}  // namespace
}  // namespace gpulet::mig
