#include "mig/derive.h"

#include <gtest/gtest.h>

#include "mig/plan.h"
#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

State state_of(const std::string& machine, unsigned index = 0) {
  const auto made = states::machine(machine);
  return states::state_of(made->gpus[0], index);
}

using Lines = std::vector<std::string>;

Lines lines(const State& gpu) {
  Lines all;
  for (const auto& [name, layout] : derive(gpu)) all.push_back(name + ": " + describe(layout));
  return all;
}

// The counts of mig-parted's default file for this board.
TEST(Derive, NamesAndCountsAreThoseOfTheDefaultFile) {
  EXPECT_EQ(lines(state_of("hgx-h100")),
            (Lines{"all-1g.10gb: 7 \u00d7 1g.10gb", "all-1g.10gb.me: 1 \u00d7 1g.10gb+me",
                   "all-1g.20gb: 4 \u00d7 1g.20gb", "all-2g.20gb: 3 \u00d7 2g.20gb",
                   "all-3g.40gb: 2 \u00d7 3g.40gb", "all-4g.40gb: 1 \u00d7 4g.40gb",
                   "all-7g.80gb: 1 \u00d7 7g.80gb",
                   "all-balanced: 2 \u00d7 1g.10gb + 1 \u00d7 2g.20gb + 1 \u00d7 3g.40gb",
                   "all-disabled: MIG disabled", "all-enabled: no instances"}));
  EXPECT_EQ(lines(state_of("a30")),
            (Lines{"all-1g.6gb: 4 \u00d7 1g.6gb", "all-1g.6gb.me: 1 \u00d7 1g.6gb+me",
                   "all-2g.12gb: 2 \u00d7 2g.12gb", "all-2g.12gb.me: 1 \u00d7 2g.12gb+me",
                   "all-4g.24gb: 1 \u00d7 4g.24gb", "all-balanced: 2 \u00d7 1g.6gb + 1 \u00d7 2g.12gb",
                   "all-disabled: MIG disabled", "all-enabled: no instances"}));
  const Lines rtx = lines(state_of("rtx-pro-6000"));
  for (const char* line :
       {"all-1g.24gb-me: 4 \u00d7 1g.24gb-me", "all-1g.24gb.gfx: 4 \u00d7 1g.24gb+gfx",
        "all-1g.24gb.me.all: 1 \u00d7 1g.24gb+me.all", "all-2g.48gb.me.all: 1 \u00d7 2g.48gb+me.all",
        "all-balanced: 2 \u00d7 1g.24gb + 1 \u00d7 2g.48gb"}) {
    EXPECT_NE(std::ranges::find(rtx, line), rtx.end()) << line;
  }
  EXPECT_EQ(lines(state_of("t4")), Lines{"all-disabled: MIG disabled"});
}

// Whatever the GPU has now.
TEST(Derive, EachFits) {
  for (const auto& name : states::machines_with_mig()) {
    const auto machine = states::machine(name);
    const State off = states::state_of(machine->gpus[0]);
    states::enable(machine->gpus[0]);
    ASSERT_NE(states::add(machine->gpus[0], derive(off)[0].layout.devices.begin()->first, 0), nullptr);
    const State on = states::state_of(machine->gpus[0]);
    EXPECT_EQ(derive(on), derive(off));
    for (const auto& [layout_name, layout] : derive(on)) {
      EXPECT_TRUE(plan(on, layout)) << name << ": " << layout_name;
      EXPECT_TRUE(plan(off, layout)) << name << ": " << layout_name;
    }
  }
}

TEST(Derive, BelievesPlacementsBeforeCounts) {
  State state = state_of("hgx-h100");
  for (auto& profile : state.profiles) profile.most = 7;
  const auto found = derived("all-3g.40gb", std::span(&state, 1));
  ASSERT_TRUE(found);
  EXPECT_EQ(describe(*found->at(0)), "2 \u00d7 3g.40gb");
}

TEST(Derive, EachGpuOfANodeGetsItsOwn) {
  const std::vector<State> node = {state_of("hgx-h100", 0), state_of("a30", 1), state_of("t4", 2)};
  const auto balanced = derived("all-balanced", node);
  ASSERT_TRUE(balanced);
  EXPECT_EQ(describe(*balanced->at(0)), "2 \u00d7 1g.10gb + 1 \u00d7 2g.20gb + 1 \u00d7 3g.40gb");
  EXPECT_EQ(describe(*balanced->at(1)), "2 \u00d7 1g.6gb + 1 \u00d7 2g.12gb");
  EXPECT_EQ(balanced->at(2), std::nullopt);
  const auto small = derived("all-1g.6gb", node);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->at(0), std::nullopt);
  EXPECT_EQ(describe(*small->at(1)), "4 \u00d7 1g.6gb");
  const auto unknown = derived("all-1g.5gb", node);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), Code::kNotFound);
  EXPECT_EQ(unknown.error().message(),
            "no config 'all-1g.5gb' in the layouts of this node's GPUs; did you mean all-1g.6gb? There are "
            "all-1g.6gb, all-1g.10gb, all-1g.10gb.me, all-1g.20gb, all-1g.6gb.me, all-2g.12gb, "
            "all-2g.12gb.me, all-2g.20gb, ...");
}

}  // namespace
}  // namespace gpulet::mig
