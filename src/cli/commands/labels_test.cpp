#include "cli/commands/commands.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpulet::cli {
namespace {

labels::Labels two_labels() {
  const auto one = [](const char* key, const char* value, const char* about, std::optional<std::string> was) {
    return std::pair<std::string, labels::Label>(key, {value, labels::find_rule(key), about, std::move(was)});
  };
  return {one("nvidia.com/gpu.product", "NVIDIA-L40S", "GPU 0-3", "NVIDIA L40S\n"),
          one("nvidia.com/mps.capable", "false", "", std::nullopt)};
}

TEST(LabelsCommand, PrintsLabelsOnlyByDefault) {
  EXPECT_EQ(labels_report(two_labels(), false, "table"),
            "nvidia.com/gpu.product=NVIDIA-L40S\nnvidia.com/mps.capable=false\n");
  EXPECT_EQ(labels_report({}, false, "table"), "");
}

TEST(LabelsCommand, ExplainsRuleSourceAndTruncation) {
  const auto text = labels_report(two_labels(), true, "table");
  const auto product = labels::find_rule("nvidia.com/gpu.product");
  EXPECT_NE(
      text.find("nvidia.com/gpu.product=NVIDIA-L40S\n    " + std::string(product->rule) +
                "\n    from nvmlDeviceGetName; GPU 0-3; truncated or cleaned from \"NVIDIA L40S\\n\"\n"),
      std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with("    from flags.migStrategy, sharing and gpulet.partition\n")) << text;
}

TEST(LabelsCommand, Json) {
  const auto plain = nlohmann::json::parse(labels_report(two_labels(), false, "json"));
  EXPECT_EQ(plain["labels"]["nvidia.com/mps.capable"], "false");
  const auto explained = nlohmann::json::parse(labels_report(two_labels(), true, "json"));
  const auto& product = explained["labels"]["nvidia.com/gpu.product"];
  EXPECT_EQ(product["value"], "NVIDIA-L40S");
  EXPECT_EQ(product["was"], "NVIDIA L40S\n");
  EXPECT_EQ(product["source"], "nvmlDeviceGetName");
  EXPECT_TRUE(explained["labels"]["nvidia.com/mps.capable"]["was"].is_null());
}

}  // namespace
}  // namespace gpulet::cli
