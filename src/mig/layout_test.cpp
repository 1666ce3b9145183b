#include <gtest/gtest.h>

#include "mig/layout.h"
#include "mig/plan.h"
#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

TEST(ProfileName, ReadsEveryForm) {
  struct Case {
    const char* text;
    ProfileName name;
    const char* written;
  };
  const Case cases[] = {
      {"1g.10gb", {1, 1, 10, "1g.10gb"}, "1g.10gb"},
      {"7g.141gb", {7, 7, 141, "7g.141gb"}, "7g.141gb"},
      {"1g.10gb+me", {1, 1, 10, "1g.10gb+me"}, "1g.10gb+me"},
      {"1g.24gb-me", {1, 1, 24, "1g.24gb-me"}, "1g.24gb-me"},
      {"4g.96gb+gfx", {4, 4, 96, "4g.96gb+gfx"}, "4g.96gb+gfx"},
      {"2g.48gb+me.all", {2, 2, 48, "2g.48gb+me.all"}, "2g.48gb+me.all"},
      {"1c.2g.20gb", {1, 2, 20, "2g.20gb"}, "1c.2g.20gb"},
      {"1c.2g.48gb+me.all", {1, 2, 48, "2g.48gb+me.all"}, "1c.2g.48gb+me.all"},
      {"2c.2g.20gb", {2, 2, 20, "2g.20gb"}, "2g.20gb"},
  };
  for (const auto& [text, name, written] : cases) {
    const auto read = parse_profile_name(text);
    ASSERT_TRUE(read) << text << ": " << read.error().full_message();
    EXPECT_EQ(*read, name) << text;
    EXPECT_EQ(read->canonical_name(), written);
  }
}

TEST(ProfileName, ReportsErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "an empty profile name; expected one such as 1g.10gb"},
      {"1g", "profile '1g': has 1 parts between dots; expected two or three, as in 1g.10gb or 1c.2g.20gb"},
      {"1.10gb",
       "profile '1.10gb': 'g' is missing in '1'; expected a number from 1 and 'g' (slices of the GPU "
       "instance)"},
      {"1g.10", "profile '1g.10': 'gb' is missing in '10'; expected a number from 1 and 'gb' (its memory)"},
      {"xg.10gb",
       "profile 'xg.10gb': no number in 'xg'; expected a number from 1 and 'g' (slices of the GPU instance)"},
      {"0g.10gb",
       "profile '0g.10gb': no number in '0g'; expected a number from 1 and 'g' (slices of the GPU instance)"},
      {"g.10gb",
       "profile 'g.10gb': no number in 'g'; expected a number from 1 and 'g' (slices of the GPU instance)"},
      {"1c.2c.10gb",
       "profile '1c.2c.10gb': 'g' is missing in '2c'; expected a number from 1 and 'g' (slices of the GPU "
       "instance)"},
      {"3c.2g.20gb", "profile '3c.2g.20gb': 3c is more than the 2g that it is part of"},
      {"1g.10gb+", "profile '1g.10gb+': an empty attribute; expected me, me.all or gfx"},
      {"1g.10gb+me,", "profile '1g.10gb+me,': an empty attribute; expected me, me.all or gfx"},
      {"1g.10gb+4", "profile '1g.10gb+4': attribute '4' is malformed; expected me, me.all or gfx"},
      {"1g.10gb+m e", "profile '1g.10gb+m e': attribute 'm e' is malformed; expected me, me.all or gfx"},
      {" 1g.10gb",
       "profile ' 1g.10gb': no number in ' 1g'; expected a number from 1 and 'g' (slices of the GPU "
       "instance)"},
  };
  for (const auto& [text, message] : cases) {
    const auto read = parse_profile_name(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().message(), message);
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
  }
}

// Every profile of every board, whole and with smaller compute instances, has a valid name.
TEST(ProfileName, ReadsTheDriversNames) {
  for (const auto& name : states::machines_with_mig()) {
    const auto machine = states::test_machine(name);
    ASSERT_NE(machine, nullptr) << name;
    for (const auto& profile : states::state_of(machine->gpus[0]).profiles) {
      for (const auto& compute : profile.compute) {
        const auto read = parse_profile_name(device_name(profile, compute.slices));
        ASSERT_TRUE(read) << read.error().full_message();
        EXPECT_EQ(read->instance, profile.name);
        EXPECT_EQ(read->compute, compute.slices);
        EXPECT_EQ(read->slices, profile.slices);
      }
    }
  }
}

TEST(LayoutNow, CountsDevices) {
  const auto machine = states::test_machine("hgx-h100");
  sim::Gpu& gpu = machine->gpus[0];
  EXPECT_EQ(layout_text(current_layout(states::state_of(gpu))), "MIG disabled");
  states::set_mig_mode(gpu);
  EXPECT_EQ(layout_text(current_layout(states::state_of(gpu))), "no instances");
  ASSERT_NE(states::add_instance(gpu, "3g.40gb", 0, {2, 1}), nullptr);
  ASSERT_NE(states::add_instance(gpu, "1g.10gb", 4), nullptr);
  ASSERT_NE(states::add_instance(gpu, "1g.10gb+me", 5), nullptr);
  sim::GpuInstance* empty = nullptr;
  ASSERT_EQ(sim::create_gpu_instance(gpu, 19, 6, &empty), sim::MigOutcome::kOk);
  State state = states::state_of(gpu);
  EXPECT_EQ(layout_text(current_layout(state)),
            "1 \u00d7 1c.3g.40gb + 1 \u00d7 1g.10gb + 1 \u00d7 1g.10gb+me + 1 \u00d7 2c.3g.40gb");
  state.instances.resize(1);
  state.instances[0].profile = 77;
  EXPECT_EQ(layout_text(current_layout(state)),
            "1 \u00d7 compute profile 0 of profile 77 + 1 \u00d7 compute profile 1 of profile 77");
}

}  // namespace

namespace {

State state_of(const std::string& machine, unsigned index = 0) {
  const auto made = states::test_machine(machine);
  return states::state_of(made->gpus[0], index);
}

using Lines = std::vector<std::string>;

Lines layout_lines(const State& gpu) {
  Lines all;
  for (const auto& [name, layout] : derive_layouts(gpu)) all.push_back(name + ": " + layout_text(layout));
  return all;
}

// The counts of mig-parted's default file for this board.
TEST(Derive, MatchesTheDefaultFile) {
  EXPECT_EQ(layout_lines(state_of("hgx-h100")),
            (Lines{"all-1g.10gb: 7 \u00d7 1g.10gb", "all-1g.10gb.me: 1 \u00d7 1g.10gb+me",
                   "all-1g.20gb: 4 \u00d7 1g.20gb", "all-2g.20gb: 3 \u00d7 2g.20gb",
                   "all-3g.40gb: 2 \u00d7 3g.40gb", "all-4g.40gb: 1 \u00d7 4g.40gb",
                   "all-7g.80gb: 1 \u00d7 7g.80gb",
                   "all-balanced: 2 \u00d7 1g.10gb + 1 \u00d7 2g.20gb + 1 \u00d7 3g.40gb",
                   "all-disabled: MIG disabled", "all-enabled: no instances"}));
  EXPECT_EQ(layout_lines(state_of("a30")),
            (Lines{"all-1g.6gb: 4 \u00d7 1g.6gb", "all-1g.6gb.me: 1 \u00d7 1g.6gb+me",
                   "all-2g.12gb: 2 \u00d7 2g.12gb", "all-2g.12gb.me: 1 \u00d7 2g.12gb+me",
                   "all-4g.24gb: 1 \u00d7 4g.24gb", "all-balanced: 2 \u00d7 1g.6gb + 1 \u00d7 2g.12gb",
                   "all-disabled: MIG disabled", "all-enabled: no instances"}));
  const Lines rtx = layout_lines(state_of("rtx-pro-6000"));
  for (const char* line :
       {"all-1g.24gb-me: 4 \u00d7 1g.24gb-me", "all-1g.24gb.gfx: 4 \u00d7 1g.24gb+gfx",
        "all-1g.24gb.me.all: 1 \u00d7 1g.24gb+me.all", "all-2g.48gb.me.all: 1 \u00d7 2g.48gb+me.all",
        "all-balanced: 2 \u00d7 1g.24gb + 1 \u00d7 2g.48gb"}) {
    EXPECT_NE(std::ranges::find(rtx, line), rtx.end()) << line;
  }
  EXPECT_EQ(layout_lines(state_of("t4")), Lines{"all-disabled: MIG disabled"});
}

// Independent of the GPU's current instances.
TEST(Derive, DerivesLayoutsThatFit) {
  for (const auto& name : states::machines_with_mig()) {
    const auto machine = states::test_machine(name);
    const State off = states::state_of(machine->gpus[0]);
    states::set_mig_mode(machine->gpus[0]);
    ASSERT_NE(states::add_instance(machine->gpus[0], derive_layouts(off)[0].layout.devices.begin()->first, 0),
              nullptr);
    const State on = states::state_of(machine->gpus[0]);
    EXPECT_EQ(derive_layouts(on), derive_layouts(off));
    for (const auto& [layout_name, layout] : derive_layouts(on)) {
      EXPECT_TRUE(make_plan(on, layout)) << name << ": " << layout_name;
      EXPECT_TRUE(make_plan(off, layout)) << name << ": " << layout_name;
    }
  }
}

TEST(Derive, PrefersPlacementsToCounts) {
  State state = state_of("hgx-h100");
  for (auto& profile : state.profiles) profile.max_instances = 7;
  const auto found = derived_layouts("all-3g.40gb", std::span(&state, 1));
  ASSERT_TRUE(found);
  EXPECT_EQ(layout_text(*found->at(0)), "2 \u00d7 3g.40gb");
}

TEST(Derive, DerivesALayoutForEachGpu) {
  const std::vector<State> node = {state_of("hgx-h100", 0), state_of("a30", 1), state_of("t4", 2)};
  const auto balanced = derived_layouts("all-balanced", node);
  ASSERT_TRUE(balanced);
  EXPECT_EQ(layout_text(*balanced->at(0)), "2 \u00d7 1g.10gb + 1 \u00d7 2g.20gb + 1 \u00d7 3g.40gb");
  EXPECT_EQ(layout_text(*balanced->at(1)), "2 \u00d7 1g.6gb + 1 \u00d7 2g.12gb");
  EXPECT_EQ(balanced->at(2), std::nullopt);
  const auto small = derived_layouts("all-1g.6gb", node);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->at(0), std::nullopt);
  EXPECT_EQ(layout_text(*small->at(1)), "4 \u00d7 1g.6gb");
  const auto unknown = derived_layouts("all-1g.5gb", node);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), Code::kNotFound);
  EXPECT_EQ(unknown.error().message(),
            "no config 'all-1g.5gb' in the layouts of this node's GPUs; did you mean all-1g.6gb? Available: "
            "all-1g.6gb, all-1g.10gb, all-1g.10gb.me, all-1g.20gb, all-1g.6gb.me, all-2g.12gb, "
            "all-2g.12gb.me, all-2g.20gb, ...");
}

}  // namespace
}  // namespace gpulet::mig
