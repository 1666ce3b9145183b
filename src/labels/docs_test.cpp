// docs/labels.md shows the table of labels: that it is this one.
#include <gtest/gtest.h>

#include <set>

#include "base/test_page.h"
#include "labels/rules.h"

namespace gpulet::labels {
namespace {

constexpr const char* kPage = "docs/labels.md";

std::string table() {
  std::string text = "| label | what it says | from |\n|---|---|---|\n";
  for (const auto& rule : rules()) {
    const bool code = rule.source.starts_with("nvml") || rule.source.starts_with("flags.") ||
                      rule.source.starts_with("/sys");
    const std::string mark = code ? "`" : "";
    text += "| `" + std::string(rule.key) + "` | " + std::string(rule.rule) + " | " + mark +
            std::string(rule.source) + mark + " |\n";
  }
  return text;
}

TEST(Docs, TheTableOfLabelsIsThisOne) { expect_in_page(kPage, "rules", table()); }

TEST(Rules, EachKeyIsThereOnce) {
  std::set<std::string_view> keys;
  for (const auto& rule : rules()) {
    EXPECT_TRUE(keys.insert(rule.key).second) << rule.key;
    EXPECT_FALSE(rule.rule.empty() || rule.source.empty()) << rule.key;
  }
}

TEST(Rules, APartInBracketsIsAny) {
  EXPECT_EQ(rule_of("nvidia.com/mig-1g.10gb.count")->key, "nvidia.com/mig-<profile>.count");
  EXPECT_EQ(rule_of("nvidia.com/mig-1g.10gb.me.engines.copy")->key, "nvidia.com/mig-<profile>.engines.copy");
  EXPECT_EQ(rule_of("gpulet.io/model.NVIDIA-L40S.memory")->key, "gpulet.io/model.<model>.memory");
  for (const char* key : {"nvidia.com/mig-.count", "nvidia.com/mig.config", "nvidia.com/gpu.present",
                          "nvidia.com/gpu.deploy.driver", "gpulet.io/gpu-health", ""}) {
    EXPECT_EQ(rule_of(key), nullptr) << key;
  }
}

}  // namespace
}  // namespace gpulet::labels
