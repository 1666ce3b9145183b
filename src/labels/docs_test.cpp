// Checks that docs/labels.md has the labels of the code.
#include <gtest/gtest.h>

#include <set>

#include "base/test_page.h"
#include "labels/labels.h"

namespace gpulet::labels {
namespace {

constexpr const char* kPage = "docs/labels.md";

std::string list() {
  std::string text = "\n";
  for (const auto& rule : label_rules())
    text += "- `" + std::string(rule.key) + "`: " + std::string(rule.rule) + "\n";
  return text + "\n";
}

TEST(Docs, LabelsMatch) { expect_in_document(kPage, "rules", list()); }

TEST(Rules, KeysAreUnique) {
  std::set<std::string_view> keys;
  for (const auto& rule : label_rules()) {
    EXPECT_TRUE(keys.insert(rule.key).second) << rule.key;
    EXPECT_FALSE(rule.rule.empty() || rule.source.empty()) << rule.key;
  }
}

TEST(Rules, BracketedPartIsVariable) {
  EXPECT_EQ(find_rule("nvidia.com/mig-1g.10gb.count")->key, "nvidia.com/mig-<profile>.count");
  EXPECT_EQ(find_rule("nvidia.com/mig-1g.10gb.me.engines.copy")->key,
            "nvidia.com/mig-<profile>.engines.copy");
  EXPECT_EQ(find_rule("gpulet.io/model.NVIDIA-L40S.memory")->key, "gpulet.io/model.<model>.memory");
  for (const char* key : {"nvidia.com/mig-.count", "nvidia.com/mig.config", "nvidia.com/gpu.present",
                          "nvidia.com/gpu.deploy.driver", "gpulet.io/gpu-health", ""}) {
    EXPECT_EQ(find_rule(key), nullptr) << key;
  }
}

}  // namespace
}  // namespace gpulet::labels
