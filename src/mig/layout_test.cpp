#include "mig/layout.h"

#include <gtest/gtest.h>

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
    ASSERT_TRUE(read) << text << ": " << read.error().text();
    EXPECT_EQ(*read, name) << text;
    EXPECT_EQ(read->str(), written);
  }
}

TEST(ProfileName, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "an empty profile name; 1g.10gb would do"},
      {"1g", "profile '1g': has 1 parts between dots; two or three would do, as 1g.10gb or 1c.2g.20gb"},
      {"1.10gb",
       "profile '1.10gb': 'g' is missing in '1'; a number from 1 and 'g' would do (slices of the GPU "
       "instance)"},
      {"1g.10", "profile '1g.10': 'gb' is missing in '10'; a number from 1 and 'gb' would do (its memory)"},
      {"xg.10gb",
       "profile 'xg.10gb': no number in 'xg'; a number from 1 and 'g' would do (slices of the GPU instance)"},
      {"0g.10gb",
       "profile '0g.10gb': no number in '0g'; a number from 1 and 'g' would do (slices of the GPU instance)"},
      {"g.10gb",
       "profile 'g.10gb': no number in 'g'; a number from 1 and 'g' would do (slices of the GPU instance)"},
      {"1c.2c.10gb",
       "profile '1c.2c.10gb': 'g' is missing in '2c'; a number from 1 and 'g' would do (slices of the GPU "
       "instance)"},
      {"3c.2g.20gb", "profile '3c.2g.20gb': 3c is more than the 2g that it is part of"},
      {"1g.10gb+", "profile '1g.10gb+': an empty attribute; me, me.all or gfx would do"},
      {"1g.10gb+me,", "profile '1g.10gb+me,': an empty attribute; me, me.all or gfx would do"},
      {"1g.10gb+4", "profile '1g.10gb+4': attribute '4' is malformed; me, me.all or gfx would do"},
      {"1g.10gb+m e", "profile '1g.10gb+m e': attribute 'm e' is malformed; me, me.all or gfx would do"},
      {" 1g.10gb",
       "profile ' 1g.10gb': no number in ' 1g'; a number from 1 and 'g' would do (slices of the GPU "
       "instance)"},
  };
  for (const auto& [text, message] : cases) {
    const auto read = parse_profile_name(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().message(), message);
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
  }
}

// Every profile of every board, whole and in parts, is a name.
TEST(ProfileName, ReadsWhatTheDriverSays) {
  for (const auto& name : states::machines_with_mig()) {
    const auto machine = states::machine(name);
    ASSERT_NE(machine, nullptr) << name;
    for (const auto& profile : states::state_of(machine->gpus[0]).profiles) {
      for (const auto& compute : profile.compute) {
        const auto read = parse_profile_name(device_name(profile, compute.slices));
        ASSERT_TRUE(read) << read.error().text();
        EXPECT_EQ(read->instance, profile.name);
        EXPECT_EQ(read->compute, compute.slices);
        EXPECT_EQ(read->slices, profile.slices);
      }
    }
  }
}

TEST(LayoutNow, CountsDevices) {
  const auto machine = states::machine("hgx-h100");
  sim::Gpu& gpu = machine->gpus[0];
  EXPECT_EQ(describe(layout_now(states::state_of(gpu))), "MIG disabled");
  states::enable(gpu);
  EXPECT_EQ(describe(layout_now(states::state_of(gpu))), "no instances");
  ASSERT_NE(states::add(gpu, "3g.40gb", 0, {2, 1}), nullptr);
  ASSERT_NE(states::add(gpu, "1g.10gb", 4), nullptr);
  ASSERT_NE(states::add(gpu, "1g.10gb+me", 5), nullptr);
  sim::GpuInstance* empty = nullptr;
  ASSERT_EQ(sim::create_gpu_instance(gpu, 19, 6, &empty), sim::MigOutcome::kOk);
  State state = states::state_of(gpu);
  EXPECT_EQ(describe(layout_now(state)),
            "1 \u00d7 1c.3g.40gb + 1 \u00d7 1g.10gb + 1 \u00d7 1g.10gb+me + 1 \u00d7 2c.3g.40gb");
  state.instances.resize(1);
  state.instances[0].profile = 77;
  EXPECT_EQ(describe(layout_now(state)),
            "1 \u00d7 compute profile 0 of profile 77 + 1 \u00d7 compute profile 1 of profile 77");
}

}  // namespace
}  // namespace gpulet::mig
