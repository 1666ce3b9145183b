#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/commands/commands.h"
#include "mig/test_states.h"
#include "nvml/test_sim_root.h"

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

class DraSlices : public DraCommand {
 protected:
  CommandOutput print_slices(const std::string& rules, const std::string& format = "yaml") {
    DraSlicesOptions options{
        .node = "node-1", .output = {format}, .driver_root = root_.sim_root(), .sources = {}};
    const std::string config = directory_ + "/config.yaml";
    EXPECT_TRUE(write_file_atomic(config, "version: v1\ngpulet:\n  partition: " + rules + "\n"));
    options.sources.flags["config-file"] = {config};
    options.sources.environment = {{"GPULET_DRA_RECORD_DIR", directory_},
                                   {"GPULET_HEALTH_FILE", directory_ + "/health.json"}};
    return dra_slices_output(options);
  }
  nlohmann::json print_items(const std::string& rules) {
    const auto output = print_slices(rules, "json");
    EXPECT_EQ(output.exit_code, 0) << output.err;
    return nlohmann::json::parse(output.out)["items"];
  }

  nvml::SimRoot root_{2};
};

TEST_F(DraSlices, HaveEachGpuThatIsNotOfTheDevicePlugin) {
  const auto all = print_items("[]");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["kind"], "ResourceSlice");
  EXPECT_EQ(all[0]["spec"]["pool"]["name"], "node-1");
  EXPECT_FALSE(all[0]["metadata"].contains("ownerReferences"));
  EXPECT_EQ(all[0]["spec"]["devices"].size(), 2u);
  const auto mixed = print_items("[{devices: [0], whole: {}, offer: devicePlugin}]");
  ASSERT_EQ(mixed[0]["spec"]["devices"].size(), 1u);
  EXPECT_EQ(mixed[0]["spec"]["devices"][0]["name"], "gpu-1");
}

TEST_F(DraSlices, HavePartitionsAndTheirCounters) {
  mig::states::set_mig_mode(root_.edit_machine()->gpus[0]);
  const auto items = print_items("[{devices: [0], dynamicMig: {profiles: [3g.40gb]}}]");
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[0]["spec"]["sharedCounters"].size(), 1u);
  EXPECT_EQ(items[1]["spec"]["devices"].size(), 3u) << "the whole GPU and two placements";
  const auto table = print_slices("[{devices: [0], dynamicMig: {profiles: [3g.40gb]}}]", "table");
  EXPECT_NE(table.out.find("gpu-0-mig-3g40gb-9-4"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("on demand"), std::string::npos);
}

TEST_F(DraSlices, SayWhatIsNotOffered) {
  mig::states::set_mig_mode(root_.edit_machine()->gpus[0]);
  const auto output = print_slices("[]");
  EXPECT_EQ(output.exit_code, 0);
  EXPECT_NE(output.err.find("is not offered by claims: it has MIG on and no MIG device\n"), std::string::npos)
      << output.err;
  EXPECT_EQ(output.out.find("apiVersion: v1\nkind: List\n"), 0u) << output.out;
}

TEST_F(DraSlices, RefuseAWrongNodeOrConfig) {
  const auto node = dra_slices_output({.node = "a_b", .driver_root = root_.sim_root(), .sources = {}});
  EXPECT_EQ(node.exit_code, 2);
  EXPECT_EQ(node.err, "gpulet dra slices: --node 'a_b': expected the name of a Node\n");
  const auto config = print_slices("[{whole: {}, offer: dra}]");
  EXPECT_EQ(config.exit_code, 1);
  EXPECT_EQ(config.out, "");
  EXPECT_NE(config.err.find("expected claims or devicePlugin, found \"dra\""), std::string::npos)
      << config.err;
}

}  // namespace
}  // namespace gpulet::cli
