#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/commands/commands.h"

namespace gpulet::cli {
namespace {

constexpr const char* kClaim =
    "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a}\nspec:\n  devices:\n"
    "    config:\n      - opaque:\n          driver: gpu.nvidia.com\n          parameters:\n"
    "            apiVersion: resource.nvidia.com/v1beta1\n            kind: ";

class DraCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "gpulet-dra-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string write_claim(const std::string& rest) {
    const std::string path = directory_ + "/claim.yaml";
    EXPECT_TRUE(write_file_atomic(path, kClaim + rest));
    return path;
  }

  std::string directory_;
};

TEST_F(DraCommand, CountsWhatItHasChecked) {
  const auto path = write_claim("GpuConfig\n---\napiVersion: v1\nkind: Pod\n");
  const auto output = dra_check_output({path});
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_EQ(output.out, path + ": ok, 2 objects, 1 config for gpu.nvidia.com\n");
  EXPECT_EQ(output.err, "");
}

TEST_F(DraCommand, ShowsWhereAMistakeIs) {
  const auto path = write_claim("GpuConfig\n            shared: {}\n");
  const auto output = dra_check_output({path});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(output.err.find(path + ":12:21: document 1, ResourceClaim a: "
                                   "spec.devices.config[0].opaque.parameters.shared: "),
            0u)
      << output.err;
  const auto document = dra_check_output({path, {}, {"json"}});
  EXPECT_EQ(document.exit_code, 1);
  EXPECT_EQ(document.err, "");
  const auto json = nlohmann::json::parse(document.out);
  EXPECT_FALSE(json["valid"].get<bool>());
  EXPECT_EQ(json["errors"].size(), 1u);
}

TEST_F(DraCommand, ChecksSharingByTheFeatureGates) {
  const auto path = write_claim("GpuConfig\n            sharing: {strategy: MPS}\n");
  const auto off = dra_check_output({path});
  EXPECT_EQ(off.exit_code, 1);
  EXPECT_NE(off.err.find("needs the feature gate MPSSupport, which is off"), std::string::npos) << off.err;
  EXPECT_EQ(dra_check_output({path, "MPSSupport=true"}).exit_code, 0);
  const auto unknown = dra_check_output({path, "Other=true"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_EQ(unknown.err.find("--feature-gates: unknown feature gate \"Other\""), 0u) << unknown.err;
}

TEST_F(DraCommand, NamesAFileThatCannotBeRead) {
  const auto output = dra_check_output({directory_ + "/none.yaml"});
  EXPECT_EQ(output.exit_code, 1);
  EXPECT_NE(output.err.find("none.yaml"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::cli
