#include <gtest/gtest.h>

#include "scheduler/model/gpu_choice.h"

namespace gpulet::scheduler {
namespace {

const GpuFacts kKnown{.uuid = "GPU-5a1c", .model = "Tesla V100-PCIE-32GB", .index = 2, .numa = 1};

bool is_chosen(const std::string& key, const std::string& value, const GpuFacts& gpu = kKnown) {
  GpuChoice choice;
  const auto added = add_choice_annotation(key, value, choice);
  EXPECT_TRUE(added.has_value()) << key << " " << value;
  return find_unmet_condition(choice, gpu) == nullptr;
}

TEST(GpuChoice, MatchesAndFailsClosed) {
  struct Case {
    const char *key, *matching, *other;
  };
  for (const auto& [key, matching, other] : {
           Case{"gpulet.io/gpu-uuid", "GPU-0 | gpu-5A1C", "GPU-5a1"},
           Case{"gpulet.io/gpu-index", "0|02", "1|20"},
           Case{"gpulet.io/gpu-numa", "1", "0|2"},
           Case{"nvidia.com/use-gpuuuid", "GPU-0,GPU-5a1c,", "GPU-0"},
           Case{"nvidia.com/nouse-gpuuuid", "GPU-0", "GPU-0, GPU-5a1c"},
           Case{"nvidia.com/use-gputype", "A100,v100", "A100,T4"},
           Case{"nvidia.com/use-gputype", "NVIDIA-Tesla V100", "NVIDIA Tesla V100"},
           Case{"nvidia.com/nouse-gputype", "A100", "A100,32gb"},
       }) {
    EXPECT_TRUE(is_chosen(key, matching)) << key << " " << matching;
    EXPECT_FALSE(is_chosen(key, other)) << key << " " << other;
    // Nothing is known but the index.
    EXPECT_FALSE(is_chosen(key, matching, {.uuid = {}, .model = {}, .index = 7, .numa = {}})) << key;
  }
}

TEST(GpuChoice, EmptyValuesOfHamiSayNothing) {
  for (const char* key : {"nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "nvidia.com/use-gputype",
                          "nvidia.com/nouse-gputype", "nvidia.com/numa-bind"}) {
    GpuChoice choice;
    EXPECT_TRUE(add_choice_annotation(key, "", choice).has_value()) << key;
    EXPECT_FALSE(choice.has_any()) << key;
  }
}

TEST(GpuChoice, AllConditionsHold) {
  GpuChoice choice;
  ASSERT_TRUE(add_choice_annotation("gpulet.io/gpu-index", "1|2", choice).has_value());
  ASSERT_TRUE(add_choice_annotation("nvidia.com/nouse-gpuuuid", "GPU-5a1c", choice).has_value());
  ASSERT_TRUE(add_choice_annotation("nvidia.com/numa-bind", "True", choice).has_value());
  ASSERT_TRUE(add_choice_annotation("example.com/gpu-index", "9", choice).has_value());
  EXPECT_TRUE(choice.one_numa_node);
  ASSERT_EQ(choice.conditions.size(), 2U);
  EXPECT_EQ(choice.conditions[0].condition_text(), "index 1, 2");
  EXPECT_EQ(find_unmet_condition(choice, kKnown), &choice.conditions[1]);
  EXPECT_EQ(choice.conditions[1].condition_text(), "another UUID than GPU-5a1c");
}

TEST(GpuChoice, SaysWhereSharesAre) {
  GpuChoice choice;
  EXPECT_TRUE(is_choice_annotation(kSharesOnAnnotation));
  ASSERT_TRUE(add_choice_annotation(kSharesOnAnnotation, "differentGPUs", choice).has_value());
  EXPECT_EQ(choice.shares_on, placement::SharesOn::kDifferentGpus);
  EXPECT_TRUE(choice.has_any());
  EXPECT_EQ(find_unmet_condition(choice, kKnown), nullptr);
}

TEST(GpuChoice, MistakesNameTheAnnotation) {
  const std::string many = [] {
    std::string text = "0";
    for (std::size_t i = 1; i <= kMaxChoiceValues; ++i) text += "|" + std::to_string(i);
    return text;
  }();
  const std::pair<std::string, std::string> kWrong[] = {
      {"gpulet.io/gpu-uuid", ""},
      {"gpulet.io/gpu-uuid", "GPU-"},
      {"gpulet.io/gpu-uuid", "MIG-5a1c"},
      {"gpulet.io/gpu-uuid", "GPU-0||GPU-1"},
      {"gpulet.io/gpu-index", "-1"},
      {"gpulet.io/gpu-index", "0,1"},
      {"gpulet.io/gpu-index", "4096"},
      {"gpulet.io/gpu-index", many},
      {"gpulet.io/gpu-numa", "node0"},
      {"nvidia.com/use-gpuuuid", std::string(kMaxChoiceBytes + 1, 'x')},
      {"nvidia.com/use-gputype", "A100\nV100"},
      {"nvidia.com/numa-bind", "maybe"},
      {"gpulet.io/gpu-shares-on", ""},
      {"gpulet.io/gpu-shares-on", "onegpu"},
  };
  for (const auto& [key, value] : kWrong) {
    GpuChoice choice;
    const auto added = add_choice_annotation(key, value, choice);
    ASSERT_FALSE(added.has_value()) << key << " " << value;
    const auto text = added.error().message();
    EXPECT_TRUE(text.starts_with("annotation " + key + " is \"")) << text;
    EXPECT_NE(text.find("\": expected "), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_LT(text.size(), 300U);
    EXPECT_FALSE(choice.has_any());
  }
}

}  // namespace
}  // namespace gpulet::scheduler
