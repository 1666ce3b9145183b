// Compares the planner with brute force on every board: each packing that the simulated hardware
// accepts, found by trying every profile at every placement, and each layout.
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <random>
#include <set>

#include "mig/plan.h"
#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

// One bit for each profile at each of its placements.
using InstanceSet = std::uint64_t;
using Counts = std::vector<unsigned>;  // by State::profiles

constexpr std::size_t kPairs = 8'000;  // of packings and layouts for each board

struct Option {
  std::size_t profile;
  unsigned start;
};

struct AnyBoard {
  std::unique_ptr<sim::Machine> machine;
  State state;
  std::vector<Option> options;
  std::vector<InstanceSet> packings;
  std::map<Counts, std::vector<InstanceSet>> layouts;

  sim::Gpu& gpu_of_board() { return machine->gpus[0]; }
};

// Adds every subset of the options; the hardware decides which are valid.
void enumerate(AnyBoard& board, std::size_t from, InstanceSet packing, Counts& counts) {
  board.packings.push_back(packing);
  board.layouts[counts].push_back(packing);
  for (std::size_t i = from; i < board.options.size(); ++i) {
    const auto [profile, start] = board.options[i];
    sim::GpuInstance* made = nullptr;
    if (sim::create_gpu_instance(board.gpu_of_board(), board.state.profiles[profile].id, start, &made) !=
        sim::MigOutcome::kOk) {
      continue;
    }
    ++counts[profile];
    enumerate(board, i + 1, packing | InstanceSet{1} << i, counts);
    --counts[profile];
    ASSERT_EQ(sim::destroy_gpu_instance(board.gpu_of_board(), made->id), sim::MigOutcome::kOk);
  }
}

AnyBoard make_board(const std::string& name) {
  AnyBoard board;
  board.machine = states::test_machine(name);
  states::set_mig_mode(board.gpu_of_board());
  board.state = states::state_of(board.gpu_of_board());
  for (std::size_t i = 0; i < board.state.profiles.size(); ++i) {
    for (const auto& place : board.state.profiles[i].placements) board.options.push_back({i, place.start});
  }
  Counts counts(board.state.profiles.size());
  enumerate(board, 0, 0, counts);
  return board;
}

Layout layout_of(const State& state, const Counts& counts) {
  Layout layout{true, {}};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) layout.devices[state.profiles[i].name] = counts[i];
  }
  return layout;
}

// How close a packing's counts are to the requested ones; nullopt if it has more.
std::optional<std::pair<unsigned, unsigned>> nearness(const Counts& requested, const Counts& counts) {
  std::pair<unsigned, unsigned> near{0, 0};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > requested[i]) return std::nullopt;
    near.first += counts[i] != 0 ? 1 : 0;
    near.second += counts[i];
  }
  return near;
}

InstanceSet with_holders(InstanceSet packing, std::mt19937& random) {
  switch (random() % 4) {
    case 0:
      return 0;
    case 1:
      return packing & random() & random() & ((InstanceSet{random()} << 32) | random());
    default:
      return packing & ((InstanceSet{random()} << 32) | random());
  }
}

class EveryBoard : public testing::TestWithParam<std::string> {
 protected:
  // The packing on the hardware, each GPU instance with its whole compute instance, as a State.
  State set_board_state(const InstanceSet& packing, const InstanceSet& held) {
    sim::Gpu& gpu = board_.gpu_of_board();
    for (auto& instance : gpu.mig.instances) instance = {};
    State state = board_.state;
    for (std::size_t i = 0; i < board_.options.size(); ++i) {
      if ((packing >> i & 1) == 0) continue;
      const Profile& profile = state.profiles[board_.options[i].profile];
      sim::GpuInstance* made = nullptr;
      sim::ComputeInstance* compute = nullptr;
      EXPECT_EQ(sim::create_gpu_instance(gpu, profile.id, board_.options[i].start, &made),
                sim::MigOutcome::kOk);
      EXPECT_EQ(sim::create_compute_instance(gpu, *made, profile.compute.back().id, 0, &compute),
                sim::MigOutcome::kOk);
      state.instances.push_back({made->id,
                                 profile.id,
                                 {made->start, made->length},
                                 {{compute->id, profile.compute.back().id, {0, compute->length}, {}}},
                                 {}});
      if ((held >> i & 1) != 0) state.instances.back().holders = {"option " + std::to_string(i)};
    }
    std::ranges::sort(state.instances, {}, &GpuInstance::placement);
    return state;
  }

  InstanceSet on_hardware() {
    InstanceSet packing = 0;
    const sim::Mig& mig = board_.gpu_of_board().mig;
    for (const auto& instance : mig.instances) {
      if (instance.used == 0) continue;
      for (std::size_t i = 0; i < board_.options.size(); ++i) {
        if (board_.state.profiles[board_.options[i].profile].id == mig.profiles[instance.profile].id &&
            board_.options[i].start == instance.start) {
          packing |= InstanceSet{1} << i;
        }
      }
      EXPECT_EQ(instance.compute[0].used, 1);
      EXPECT_EQ(instance.compute[0].length, mig.profiles[instance.profile].slices);
    }
    return packing;
  }

  void check_plans(const InstanceSet& from, const InstanceSet& held, const Counts& requested,
                   const std::vector<InstanceSet>& goals);

  AnyBoard board_ = make_board(GetParam());
};

void EveryBoard::check_plans(const InstanceSet& from, const InstanceSet& held, const Counts& requested,
                             const std::vector<InstanceSet>& goals) {
  const State state = set_board_state(from, held);
  const Layout layout = layout_of(state, requested);
  const auto made = make_plan(state, layout);
  ASSERT_TRUE(made) << made.error().full_message();
  int most_held = 0, most_kept = 0;
  for (const InstanceSet goal : goals) most_held = std::max(most_held, std::popcount(goal & held));
  for (const InstanceSet goal : goals) {
    if (std::popcount(goal & held) == most_held) most_kept = std::max(most_kept, std::popcount(goal & from));
  }
  SCOPED_TRACE(layout_text(current_layout(state)) + " to " + layout_text(layout) + ": " +
               describe_plan(*made)[0]);
  ASSERT_EQ(made->blocked_by.size(), std::popcount(held) - most_held);
  if (made->is_blocked()) {
    ASSERT_TRUE(made->destroy.empty() && made->destroy_compute.empty() && made->create.empty() &&
                made->create_compute.empty());
    return;
  }
  ASSERT_EQ(made->keep.size(), most_kept);
  ASSERT_EQ(made->is_noop(), std::ranges::find(goals, from) != goals.end());
  ASSERT_EQ(states::carry_out(board_.gpu_of_board(), *made), "");
  const InstanceSet result = on_hardware();
  ASSERT_TRUE(std::ranges::find(goals, result) != goals.end());
  ASSERT_EQ(result & held, held);
  ASSERT_EQ(std::popcount(result & from), most_kept);
}

TEST_P(EveryBoard, AcceptsALayoutIfAndOnlyIfItFits) {
  std::mt19937 random(7);
  Counts requested(board_.state.profiles.size());
  const State empty = board_.state;
  std::size_t fit = 0;
  for (const auto& [counts, goals] : board_.layouts) {
    const auto made = make_plan(empty, layout_of(empty, counts));
    ASSERT_TRUE(made) << made.error().full_message();
    ++fit;
  }
  ASSERT_GE(fit, 20u);
  // Also for many more devices, most of which do not fit.
  for (int round = 0; round < 1'000; ++round) {
    for (std::size_t i = 0; i < requested.size(); ++i) {
      requested[i] = random() % 3 == 0 ? random() % (empty.profiles[i].max_instances + 2) : 0;
    }
    const Layout layout = layout_of(empty, requested);
    const auto made = make_plan(empty, layout);
    ASSERT_EQ(made.has_value(), board_.layouts.contains(requested)) << layout_text(layout);
    if (made) continue;
    std::pair<unsigned, unsigned> nearest{0, 0};
    for (const auto& [counts, goals] : board_.layouts) {
      if (const auto near = nearness(requested, counts)) nearest = std::max(nearest, *near);
    }
    // "...; the nearest that does: 5 x 1g.10gb + 1 x 2g.20gb"
    const std::string text = made.error().message();
    const auto colon = text.rfind(": ");
    ASSERT_NE(colon, std::string::npos) << text;
    unsigned kinds = 0, devices = 0;
    for (std::size_t at = colon; at != std::string::npos; at = text.find(" + ", at + 1)) {
      ++kinds;
      devices += static_cast<unsigned>(std::stoul(text.substr(at + (at == colon ? 2 : 3))));
    }
    ASSERT_EQ(std::pair(kinds, devices), nearest) << text;
  }
}

TEST_P(EveryBoard, PlansFromAnyPackingToAnyLayout) {
  std::mt19937 random(11);
  std::vector<const std::pair<const Counts, std::vector<InstanceSet>>*> layouts;
  for (const auto& layout : board_.layouts) layouts.push_back(&layout);
  const std::size_t all = board_.packings.size() * layouts.size();
  RecordProperty("packings", static_cast<int>(board_.packings.size()));
  RecordProperty("layouts", static_cast<int>(layouts.size()));
  for (std::size_t i = 0; i < std::min(all, kPairs) && !HasFatalFailure(); ++i) {
    const std::size_t pair = all <= kPairs ? i : random() % all;
    const InstanceSet from = board_.packings[pair / layouts.size()];
    const auto& [requested, goals] = *layouts[pair % layouts.size()];
    check_plans(from, with_holders(from, random), requested, goals);
    if (all <= kPairs) check_plans(from, 0, requested, goals);
  }
}

// Plans take the shortest way, so a plan for the same layout never undoes what an earlier one made.
TEST_P(EveryBoard, LeavesAReachedLayoutAlone) {
  for (const auto& [requested, goals] : board_.layouts) {
    const State state = set_board_state(goals[goals.size() / 2], 0);
    const auto made = make_plan(state, layout_of(state, requested));
    ASSERT_TRUE(made && made->is_noop());
    ASSERT_EQ(made->keep.size(), state.instances.size());
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Boards, EveryBoard, testing::ValuesIn(states::machines_with_mig()), test_name);

}  // namespace
}  // namespace gpulet::mig
