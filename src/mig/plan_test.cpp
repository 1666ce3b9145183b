// The planner case by case; mig/exhaustive_test.cpp has all of them.
#include "mig/plan.h"

#include <gtest/gtest.h>

#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

using states::layout;

struct Board {
  explicit Board(const std::string& name, bool enabled = true) : machine(states::machine(name)) {
    states::enable(gpu(), enabled);
  }
  sim::Gpu& gpu() { return machine->gpus[0]; }
  void add(const std::string& profile, unsigned start, std::vector<unsigned> parts = {}) {
    ASSERT_NE(states::add(gpu(), profile, start, std::move(parts)), nullptr) << profile << " at " << start;
  }
  State state() { return states::state_of(gpu()); }
  // With a holder on the instances at those starts.
  State held(const std::vector<unsigned>& starts) {
    State held = state();
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
  for (unsigned start = 0; start < 7; ++start) board.add("1g.10gb", start);
  return board;
}

std::vector<std::string> said(const State& state, const Layout& wanted) {
  const auto made = plan(state, wanted);
  return made ? describe(*made) : std::vector<std::string>{"error: " + made.error().text()};
}

const Layout kBalanced = layout({{"1g.10gb", 2}, {"2g.20gb", 1}, {"3g.40gb", 1}});

using Lines = std::vector<std::string>;

TEST(Plan, CreatesOnAnEmptyGpuAsLowAsAllFit) {
  Board board("hgx-h100");
  EXPECT_EQ(said(board.state(), kBalanced),
            Lines{"GPU 0: create 2g.20gb at 0-1, 1g.10gb at 2, 1g.10gb at 3, 3g.40gb at 4-7"});
  EXPECT_EQ(said(board.state(), layout({{"1g.20gb", 4}})),
            Lines{"GPU 0: create 1g.20gb at 0-1, 1g.20gb at 2-3, 1g.20gb at 4-5, 1g.20gb at 6-7"});
}

TEST(Plan, NothingToDoWhereItIsThere) {
  Board board("hgx-h100");
  board.add("3g.40gb", 0);
  board.add("1g.10gb", 6);
  const auto made = plan(board.held({6}), layout({{"1g.10gb", 1}, {"3g.40gb", 1}}));
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->nothing_to_do());
  EXPECT_EQ(describe(*made), Lines{"GPU 0: nothing to do; keep 3g.40gb at 0-3, 1g.10gb at 6"});
  Board empty("hgx-h100");
  EXPECT_EQ(said(empty.state(), layout({})), Lines{"GPU 0: nothing to do"});
}

TEST(Plan, AllSmallToBalancedKeepsTheOneInUseWhereItIs) {
  Board board = seven_small();
  for (const unsigned start : {0u, 1u, 2u, 3u}) {
    const auto made = plan(board.held({start}), kBalanced);
    ASSERT_TRUE(made);
    ASSERT_FALSE(made->blocked());
    ASSERT_EQ(made->keep.size(), 2u);
    EXPECT_TRUE(
        std::ranges::any_of(made->keep, [&](const Keep& kept) { return kept.placement.start == start; }));
  }
  EXPECT_EQ(said(board.held({1}), kBalanced),
            Lines{"GPU 0: destroy 1g.10gb at 2, 1g.10gb at 3, 1g.10gb at 4, 1g.10gb at 5, 1g.10gb at 6; "
                  "create 2g.20gb at 2-3, 3g.40gb at 4-7; keep 1g.10gb at 0, 1g.10gb at 1"});
}

// 3g needs one half of the GPU, and 2g with two 1g needs 0 to 3.
TEST(Plan, SaysWhoIsInTheWay) {
  Board board = seven_small();
  const auto made = plan(board.held({1, 5}), kBalanced);
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->blocked());
  EXPECT_TRUE(made->destroy.empty() && made->destroy_compute.empty() && made->create.empty());
  EXPECT_EQ(describe(*made),
            (Lines{"GPU 0: blocked; would destroy 1g.10gb at 2, 1g.10gb at 3, 1g.10gb at 4, 1g.10gb at 5, "
                   "1g.10gb at 6; create 2g.20gb at 2-3, 3g.40gb at 4-7; keep 1g.10gb at 0, 1g.10gb at 1",
                   "GPU 0: blocked by process 105 (python3), on 1g.10gb at 5"}));
}

// The fewest of those in use: one at 0 blocks less than two at 4 and 5.
TEST(Plan, BlamesTheFewest) {
  Board board = seven_small();
  const auto made = plan(board.held({0, 4, 5}), layout({{"1g.10gb", 3}, {"3g.40gb", 1}}));
  ASSERT_TRUE(made);
  EXPECT_EQ(made->blocked_by, Lines{"process 100 (python3), on 1g.10gb at 0"});
}

TEST(Plan, GoesAroundWhatIsInUse) {
  Board board("hgx-h100");
  board.add("2g.20gb", 0);
  board.add("2g.20gb", 2);
  board.add("2g.20gb", 4);
  EXPECT_EQ(said(board.held({4}), layout({{"2g.20gb", 1}, {"3g.40gb", 1}, {"1g.10gb", 1}})),
            Lines{"GPU 0: destroy 2g.20gb at 0-1, 2g.20gb at 2-3; create 3g.40gb at 0-3, 1g.10gb at 6; "
                  "keep 2g.20gb at 4-5"});
  EXPECT_EQ(said(board.held({0}), layout({{"2g.20gb", 1}, {"3g.40gb", 1}, {"1g.10gb", 1}})),
            Lines{"GPU 0: destroy 2g.20gb at 2-3, 2g.20gb at 4-5; create 1g.10gb at 2, 3g.40gb at 4-7; "
                  "keep 2g.20gb at 0-1"});
}

TEST(Plan, NamesTheNearestThatFits) {
  Board board("hgx-h100");
  EXPECT_EQ(
      said(board.state(), layout({{"1g.10gb", 7}, {"2g.20gb", 1}})),
      Lines{"error: 7 \u00d7 1g.10gb + 1 \u00d7 2g.20gb do not fit on GPU 0 (NVIDIA H100 80GB HBM3); the "
            "nearest that does: 5 \u00d7 1g.10gb + 1 \u00d7 2g.20gb"});
  EXPECT_EQ(said(board.state(), layout({{"1g.10gb+me", 2}})),
            Lines{"error: 2 \u00d7 1g.10gb+me do not fit on GPU 0 (NVIDIA H100 80GB HBM3); the nearest that "
                  "does: 1 \u00d7 1g.10gb+me"});
  EXPECT_EQ(said(board.state(), layout({{"1g.10gb", 4'000'000'000}})),
            Lines{"error: 4000000000 \u00d7 1g.10gb do not fit on GPU 0 (NVIDIA H100 80GB HBM3); the nearest "
                  "that does: 7 \u00d7 1g.10gb"});
  EXPECT_EQ(
      said(board.state(), layout({{"1c.3g.40gb", 7}, {"3g.40gb", 1}})),
      Lines{"error: 7 \u00d7 1c.3g.40gb + 1 \u00d7 3g.40gb do not fit on GPU 0 (NVIDIA H100 80GB HBM3); "
            "the nearest that does: 3 \u00d7 1c.3g.40gb + 1 \u00d7 3g.40gb"});
  // Four of 1g.20gb fit, as do three of 2g.20gb: together only where the compute slices allow.
  EXPECT_EQ(said(board.state(), layout({{"1g.20gb", 1}, {"2g.20gb", 3}})),
            Lines{"GPU 0: create 2g.20gb at 0-1, 2g.20gb at 2-3, 2g.20gb at 4-5, 1g.20gb at 6-7"});
}

// The media engines of the whole board go to one instance: with another that has some they do not fit.
TEST(Plan, CountsMediaEngines) {
  Board board("rtx-pro-6000");
  EXPECT_EQ(
      said(board.state(), layout({{"1g.24gb+me.all", 1}, {"1g.24gb", 3}})),
      Lines{"error: 3 \u00d7 1g.24gb + 1 \u00d7 1g.24gb+me.all do not fit on GPU 0 (NVIDIA RTX PRO 6000 "
            "Blackwell Server Edition); the nearest that does: 3 \u00d7 1g.24gb"});
  EXPECT_EQ(said(board.state(), layout({{"1g.24gb+me.all", 1}, {"1g.24gb-me", 3}})),
            Lines{"GPU 0: create 1g.24gb+me.all at 0, 1g.24gb-me at 1, 1g.24gb-me at 2, 1g.24gb-me at 3"});
}

TEST(Plan, RefusesWhatTheGpuDoesNotHave) {
  Board board("hgx-h100");
  EXPECT_EQ(said(board.state(), layout({{"1g.5gb", 7}})),
            Lines{"error: GPU 0 (NVIDIA H100 80GB HBM3) has no profile 1g.5gb; did you mean 1g.10gb? It has "
                  "7g.80gb, 4g.40gb, 3g.40gb, 2g.20gb, 1g.20gb, 1g.10gb, 1g.10gb+me"});
  EXPECT_EQ(said(board.state(), layout({{"3c.4g.40gb", 1}})),
            Lines{"error: GPU 0 (NVIDIA H100 80GB HBM3) has no 3c.4g.40gb; 1c.4g.40gb, 2c.4g.40gb, 4g.40gb "
                  "would do"});
  const auto no_mig = states::machine("l40s");
  EXPECT_EQ(said(states::state_of(no_mig->gpus[0], 3), layout({})),
            Lines{"error: GPU 3 (NVIDIA L40S) has no MIG"});
  EXPECT_EQ(said(states::state_of(no_mig->gpus[0], 3), {}), Lines{"GPU 3: nothing to do"});
  EXPECT_EQ(said(board.state(), {false, {{"1g.10gb", 1}}}),
            Lines{"error: a layout with MIG disabled cannot have devices: 1 \u00d7 1g.10gb"});
}

TEST(Plan, ChangesTheMode) {
  Board off("dgx-a100", false);
  State state = off.state();
  EXPECT_EQ(said(state, layout({{"7g.80gb", 1}})), Lines{"GPU 0: enable MIG; create 7g.80gb at 0-7"});
  state.holders = {"process 7 (train)"};
  EXPECT_EQ(said(state, layout({{"7g.80gb", 1}})),
            (Lines{"GPU 0: blocked; would enable MIG; create 7g.80gb at 0-7",
                   "GPU 0: blocked by process 7 (train), on the GPU"}));
  EXPECT_EQ(said(state, {}), Lines{"GPU 0: nothing to do"});

  ASSERT_EQ(sim::set_mig_mode(off.gpu(), true), sim::MigOutcome::kResetRequired);
  const auto waiting = plan(off.state(), layout({}));
  ASSERT_TRUE(waiting);
  EXPECT_TRUE(waiting->needs_reset);
  EXPECT_EQ(describe(*waiting), Lines{"GPU 0: enable MIG; reset the GPU"});
  EXPECT_EQ(said(off.state(), {}), Lines{"GPU 0: disable MIG"}) << "what is pending is taken back";

  Board on("hgx-h100");
  on.add("2g.20gb", 2, {1, 1});
  EXPECT_EQ(said(on.state(), {}), Lines{"GPU 0: destroy 2g.20gb at 2-3; disable MIG"});
  EXPECT_EQ(said(on.held({2}), {}), (Lines{"GPU 0: blocked; would destroy 2g.20gb at 2-3; disable MIG",
                                           "GPU 0: blocked by process 102 (python3), on 2g.20gb at 2-3"}));
}

TEST(Plan, OnlyTheMode) {
  auto seven = seven_small();
  EXPECT_TRUE(plan_mode(seven.state(), true)->nothing_to_do()) << "instances are not its subject";
  const auto off = plan_mode(seven.state(), false);
  EXPECT_EQ(off->destroy.size(), 7u);
  EXPECT_EQ(off->set_mode, false);
  EXPECT_TRUE(plan_mode(seven.held({3}), false)->blocked());
  EXPECT_TRUE(plan_mode(seven.held({3}), true)->nothing_to_do());
  seven.gpu().mig.pending = 0;
  const auto back = plan_mode(seven.state(), true);
  EXPECT_EQ(describe(*back), std::vector<std::string>{"GPU 0: enable MIG"});
  EXPECT_TRUE(back->destroy.empty() && back->destroy_compute.empty());
  Board whole("dgx-a100", false);
  EXPECT_EQ(plan_mode(whole.state(), true)->set_mode, true);
  EXPECT_TRUE(plan_mode(whole.state(), false)->nothing_to_do());
  Board none("t4", false);
  EXPECT_EQ(plan_mode(none.state(), true).error().code(), Code::kUnsupported);
  EXPECT_TRUE(plan_mode(none.state(), false)->nothing_to_do());
}

TEST(Plan, PacksPartsIntoFewGpuInstances) {
  Board board("hgx-h100");
  EXPECT_EQ(said(board.state(), layout({{"1c.2g.20gb", 3}, {"2g.20gb", 1}})),
            Lines{"GPU 0: create 2g.20gb at 0-1, 2g.20gb at 2-3 (2 \u00d7 1c.2g.20gb), 2g.20gb at 4-5 "
                  "(1 \u00d7 1c.2g.20gb)"});
  // First fit of the largest first would leave no place for the second 2c.
  const Layout whole = layout({{"3c.7g.80gb", 1}, {"2c.7g.80gb", 2}});
  const auto made = plan(board.state(), whole);
  ASSERT_TRUE(made);
  EXPECT_EQ(states::carry_out(board.gpu(), *made), "");
  EXPECT_EQ(layout_now(board.state()), whole);
}

TEST(Plan, KeepsComputeInstances) {
  Board board("hgx-h100");
  board.add("2g.20gb", 0, {1});
  board.add("2g.20gb", 4, {1});
  EXPECT_EQ(said(board.state(), layout({{"1c.2g.20gb", 2}})),
            Lines{"GPU 0: nothing to do; keep 2g.20gb at 0-1, 2g.20gb at 4-5"});
  EXPECT_EQ(
      said(board.held({4}), layout({{"1c.2g.20gb", 4}})),
      Lines{"GPU 0: create compute instances 2 \u00d7 1c.2g.20gb; keep 2g.20gb at 0-1, 2g.20gb at 4-5"});
  EXPECT_EQ(
      said(board.state(), layout({{"2g.20gb", 1}})),
      Lines{"GPU 0: destroy compute instances 1 \u00d7 1c.2g.20gb; destroy 2g.20gb at 4-5; create compute "
            "instances 1 \u00d7 2g.20gb; keep 2g.20gb at 0-1"});
  EXPECT_EQ(said(board.held({4}), layout({{"2g.20gb", 1}})).back(),
            "GPU 0: blocked by process 104 (python3), on 2g.20gb at 4-5");
}

// Made and not filled, as by an agent that was killed between the two.
TEST(Plan, FillsAGpuInstanceWithoutComputeInstance) {
  Board board("hgx-h100");
  sim::GpuInstance* made = nullptr;
  ASSERT_EQ(sim::create_gpu_instance(board.gpu(), 14, 4, &made), sim::MigOutcome::kOk);
  EXPECT_EQ(said(board.state(), layout({{"2g.20gb", 1}})),
            Lines{"GPU 0: create compute instances 1 \u00d7 2g.20gb; keep 2g.20gb at 4-5"});
  EXPECT_EQ(said(board.state(), layout({})), Lines{"GPU 0: destroy 2g.20gb at 4-5"});
}

// A compute instance at slice 1 of three leaves no place for one of two, though there are slices enough.
TEST(Plan, KnowsThePlacesOfComputeInstances) {
  Board board("hgx-h100");
  board.add("3g.40gb", 0, {1, 1});
  auto& instance = board.gpu().mig.instances[0];
  ASSERT_EQ(sim::destroy_compute_instance(board.gpu(), instance, 0), sim::MigOutcome::kOk);
  const Layout wanted = layout({{"1c.3g.40gb", 1}, {"2c.3g.40gb", 1}});
  const auto made = plan(board.state(), wanted);
  ASSERT_TRUE(made);
  EXPECT_EQ(describe(*made),
            Lines{"GPU 0: create 3g.40gb at 4-7 (1 \u00d7 2c.3g.40gb); keep 3g.40gb at 0-3"});
  EXPECT_EQ(states::carry_out(board.gpu(), *made), "");
  EXPECT_EQ(layout_now(board.state()), wanted);
}

// What the driver does not tell is left to it.
TEST(Plan, PlansWithoutComputePlacements) {
  Board board("hgx-h100");
  State state = board.state();
  for (auto& profile : state.profiles) {
    for (auto& compute : profile.compute) compute.placements.clear();
  }
  auto made = plan(state, layout({{"1c.3g.40gb", 1}, {"2c.3g.40gb", 1}}));
  ASSERT_TRUE(made);
  ASSERT_EQ(made->create.size(), 1u);
  ASSERT_EQ(made->create[0].compute.size(), 2u);
  EXPECT_EQ(made->create[0].compute[0].slices, 2u);
  EXPECT_EQ(made->create[0].compute[0].placement, std::nullopt);
  EXPECT_EQ(states::carry_out(board.gpu(), *made), "");
  for (auto& profile : state.profiles) profile.compute.clear();
  made = plan(state, layout({{"3g.40gb", 1}}));
  ASSERT_TRUE(made);
  EXPECT_EQ(made->create[0].compute[0].profile, std::nullopt);
}

TEST(Plan, StrangeStatesDoNotBreakIt) {
  Board board("hgx-h100");
  State state = board.state();
  state.instances = {{9, 77, {1, 1}, {{0, 3, {}, {}}}, {}}, {10, 19, {63, 9}, {}, {}}};
  EXPECT_EQ(said(state, layout({{"1g.10gb", 1}})),
            Lines{"GPU 0: destroy profile 77 at 1, 1g.10gb at 63-71; create 1g.10gb at 0"});
  state.instances[0].holders = {"Pod default/train"};
  EXPECT_EQ(said(state, layout({})).back(), "GPU 0: blocked by Pod default/train, on profile 77 at 1");
  // Where the driver has put one, it may be, though it does not list the place.
  state.instances = {{9, 19, {7, 1}, {{0, 0, {0, 1}, {}}}, {"Pod default/train"}}};
  EXPECT_EQ(said(state, layout({{"1g.10gb", 1}})), Lines{"GPU 0: nothing to do; keep 1g.10gb at 7"});
  state.profiles.back().slices = 0;
  EXPECT_FALSE(plan(state, layout({{state.profiles.back().name, 1}})));
}

}  // namespace
}  // namespace gpulet::mig
