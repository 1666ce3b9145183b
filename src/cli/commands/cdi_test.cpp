#include "cli/commands/cdi.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "cdi/spec.h"
#include "cdi/test_driver_root.h"
#include "health/report/health_report.h"

namespace gpulet::cli {
namespace {

class CdiCommand : public testing::Test {
 protected:
  void SetUp() override {
    tree.make_directory("/proc");
    tree.make_directory("/sys");
    ASSERT_TRUE(tree.make_node("/dev/nvidiactl", 195, 255)) << "this test makes device nodes: run it as root";
    tree.make_node("/dev/nvidia0", 195, 0);
    tree.make_file("/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.06");
    tree.make_file("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.124.06");
    options.driver_root = options.dev_root = tree.tree_path();
    options.proc = tree.tree_path() + "/proc";
    options.sys = tree.tree_path() + "/sys";
    options.health_file.clear();
    snapshot.driver = {"570.124.06", 12080};
    snapshot.gpus.resize(1);
    snapshot.gpus[0].uuid = DeviceUuid("GPU-aaaa");
    snapshot.gpus[0].model = "NVIDIA H100 80GB HBM3";
    snapshot.gpus[0].compute_major = 9;
  }
  CommandOutput generate() {
    return cdi_generate_output(options,
                               [&](const auto& root, const auto& directories) -> Result<inventory::Snapshot> {
                                 EXPECT_EQ(root, tree.tree_path());
                                 EXPECT_EQ(directories, options.library_search_paths);
                                 if (!driver_answers) return fail(Code::kUnavailable, "there is no driver");
                                 return snapshot;
                               });
  }

  cdi::TestTree tree;
  inventory::Snapshot snapshot;
  bool driver_answers = true;
  CdiGenerateOptions options;
};

TEST_F(CdiCommand, WritesYamlToStandardOutput) {
  const auto answer = generate();
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  const auto read = cdi::read_spec(answer.out, "out");
  ASSERT_TRUE(read.spec) << answer.out;
  EXPECT_TRUE(answer.out.starts_with("---\n"));
  EXPECT_EQ(read.spec->kind, "nvidia.com/gpu");
  ASSERT_EQ(read.spec->devices.size(), 3u);
  EXPECT_EQ(read.spec->devices[0].name, "0");
  EXPECT_EQ(read.spec->devices[1].name, "GPU-aaaa");
  EXPECT_EQ(read.spec->devices[2].name, "all");
  EXPECT_EQ(read.spec->edits.hooks.at(0).args.at(0), "gpulet-hook");
}

TEST_F(CdiCommand, AGpuThatTheAgentExcludesIsNotInAll) {
  tree.make_node("/dev/nvidia1", 195, 1);
  snapshot.gpus.push_back(snapshot.gpus[0]);
  snapshot.gpus[1].index = snapshot.gpus[1].minor = 1;
  snapshot.gpus[1].uuid = DeviceUuid("GPU-bbbb");
  health::HealthView view;
  view.devices.resize(1);
  view.devices[0].scope.gpu = view.devices[0].uuid = snapshot.gpus[1].uuid;
  view.devices[0].excluded = "is excluded by the rule at x.yaml:3:5";
  options.health_file = tree.tree_path() + "/health.json";
  ASSERT_TRUE(write_file_atomic(options.health_file, health::format_report(view)));
  const auto answer = generate();
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_TRUE(answer.err.ends_with(
      "gpulet cdi generate: GPU 1 is not in the device all: it is excluded by the rule at x.yaml:3:5\n"))
      << answer.err;
  const auto read = cdi::read_spec(answer.out, "out");
  ASSERT_TRUE(read.spec) << answer.out;
  ASSERT_EQ(read.spec->devices.size(), 5u) << "the excluded GPU has its own names";
  EXPECT_EQ(read.spec->devices[4].name, "all");
  ASSERT_EQ(read.spec->devices[4].edits.device_nodes.size(), 1u);
  EXPECT_EQ(read.spec->devices[4].edits.device_nodes[0].path, "/dev/nvidia0");
}

TEST_F(CdiCommand, WithoutADriverItNamesTheMachineThatGpuletDoesNotServe) {
  driver_answers = false;
  EXPECT_EQ(generate().err, "gpulet cdi generate: there is no driver\n");
  tree.make_file("/etc/nv_tegra_release");
  EXPECT_EQ(generate().err,
            "gpulet cdi generate: this machine is Tegra (/etc/nv_tegra_release): gpulet does not support its "
            "integrated GPU, because NVML does not manage it; use NVIDIA's device plugin on this node: there "
            "is no driver\n");
}

TEST_F(CdiCommand, FileNameSelectsTheFormat) {
  options.output = tree.tree_path() + "/out/nvidia.json";
  EXPECT_EQ(generate().exit_code, 0);
  EXPECT_TRUE(read_file(options.output)->starts_with("{"));
  options.output = tree.tree_path() + "/out/nvidia.yml";
  EXPECT_EQ(generate().out, "");
  EXPECT_TRUE(read_file(tree.tree_path() + "/out/nvidia.yaml")->starts_with("---"));
  options.output = tree.tree_path() + "/out/plain";
  options.format = "JSON";
  EXPECT_EQ(generate().exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(tree.tree_path() + "/out/plain.json"));
}

TEST_F(CdiCommand, FlagsOverrideNvidiasEnvironment) {
  options.environment = {{"NVIDIA_CTK_CDI_GENERATE_DEVICE_NAME_STRATEGIES", "type-index,uuid"},
                         {"NVIDIA_CTK_CDI_GENERATE_VENDOR", "v.com"},
                         {"NVIDIA_CTK_CDI_GENERATE_CLASS", "c"},
                         {"NVIDIA_CTK_CDI_GENERATE_NO_ALL_DEVICE", "true"},
                         {"NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS", "all"},
                         {"NVIDIA_CTK_CDI_GENERATE_OUTPUT_FORMAT", "json"}};
  options.device_class = "flagged";
  const auto answer = generate();
  const auto read = cdi::read_spec(answer.out, "out");
  ASSERT_TRUE(read.spec) << answer.out << answer.err;
  EXPECT_TRUE(answer.out.starts_with("{"));
  EXPECT_EQ(read.spec->kind, "v.com/flagged");
  ASSERT_EQ(read.spec->devices.size(), 2u);
  EXPECT_EQ(read.spec->devices[1].name, "gpu0");
  EXPECT_TRUE(read.spec->edits.hooks.empty());
}

TEST_F(CdiCommand, RejectsInvalidOptions) {
  const auto code = [&](auto change) {
    auto kept = options;
    change();
    const auto answer = generate();
    EXPECT_TRUE(answer.err.starts_with("gpulet cdi generate: ")) << answer.err;
    EXPECT_EQ(answer.out, "");
    options = kept;
    return answer.exit_code;
  };
  EXPECT_EQ(code([&] { options.format = "xml"; }), 2);
  EXPECT_EQ(code([&] { options.mode = "nvm"; }), 2);
  EXPECT_EQ(code([&] { options.mode = "csv"; }), 2);
  EXPECT_EQ(code([&] { options.device_name_strategies = {"serial"}; }), 2);
  EXPECT_EQ(code([&] { options.disabled_hooks = {"create-symlink"}; }), 2);
  EXPECT_EQ(code([&] { options.enabled_hooks = {"all"}; }), 2);
  EXPECT_EQ(code([&] { options.feature_flags = {"no-gids"}; }), 2);
  EXPECT_EQ(code([&] { options.vendor = "1"; }), 2);
  EXPECT_EQ(code([&] { options.device_ids = {"5"}; }), 1);
  EXPECT_EQ(code([&] { options.mode = "gds"; }), 1);
  driver_answers = false;
  EXPECT_EQ(code([] {}), 1);
}

TEST_F(CdiCommand, ManagementModeNeedsNoWorkingDriver) {
  driver_answers = false;
  options.mode = "management";
  const auto answer = generate();
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  const auto read = cdi::read_spec(answer.out, "out");
  ASSERT_TRUE(read.spec);
  ASSERT_EQ(read.spec->devices.size(), 1u);
  EXPECT_EQ(read.spec->devices[0].edits.device_nodes.size(), 2u);
}

TEST_F(CdiCommand, DetectsWslByItsDeviceNode) {
  tree.make_node("/dev/dxg", 10, 125);
  const auto answer = generate();  // without a driver store there is nothing to mount
  EXPECT_EQ(answer.exit_code, 1);
}

TEST_F(CdiCommand, ListsDevicesOfAnEngine) {
  const auto spec = [](const std::string& kind, const std::string& device) {
    return "cdiVersion: 0.5.0\nkind: " + kind + "\ndevices:\n- name: \"" + device +
           "\"\n  containerEdits: {env: [A=1]}\n";
  };
  tree.make_file("/etc/cdi/a.yaml", spec("v.com/gpu", "0"));
  tree.make_file("/etc/cdi/wrong.yaml", "kind: 1\n");
  tree.make_file("/etc/cdi/ignored.txt", "kind: 1\n");
  tree.make_file("/run/cdi/a.yaml", spec("v.com/gpu", "0"));  // before /etc/cdi's
  tree.make_file("/run/cdi/b.json", spec("v.com/gpu", "1"));
  tree.make_file("/run/cdi/c.yaml", spec("v.com/gpu", "2"));
  tree.make_file("/run/cdi/d.yaml", spec("v.com/gpu", "2"));  // without an owner
  CdiListOptions listing{
      {tree.tree_path() + "/etc/cdi", tree.tree_path() + "/run/cdi", tree.tree_path() + "/none"}, {}};
  const auto answer = cdi_list_output(listing);
  EXPECT_EQ(answer.exit_code, 0);
  EXPECT_EQ(answer.out, "v.com/gpu=0\nv.com/gpu=1\n");
  EXPECT_NE(answer.err.find("wrong.yaml:1:7: kind: expected a string"), std::string::npos) << answer.err;
  EXPECT_NE(answer.err.find("v.com/gpu=2 is in"), std::string::npos) << answer.err;
  EXPECT_EQ(answer.err.find("ignored"), std::string::npos);
  CdiListOptions by_environment{{}, {{"NVIDIA_CTK_CDI_SPEC_DIRS", tree.tree_path() + "/etc/cdi"}}};
  EXPECT_EQ(cdi_list_output(by_environment).out, "v.com/gpu=0\n");
}

TEST_F(CdiCommand, ValidatesFilesByLineAndField) {
  options.output = tree.tree_path() + "/run/cdi/nvidia.yaml";
  ASSERT_EQ(generate().exit_code, 0);
  CdiValidateOptions checking{{options.output}, {}, {}};
  EXPECT_EQ(cdi_validate_output(checking).exit_code, 0);
  tree.make_file("/run/cdi/bad.json",
                 "{\"cdiVersion\": \"0.5.0\",\n \"kind\": \"v/c\", \"devices\": [{\"name\": 0}]}");
  tree.make_fifo("/run/cdi/pipe.json");
  checking = {{}, {tree.tree_path() + "/run/cdi"}, {}};
  const auto answer = cdi_validate_output(checking);
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_NE(answer.out.find("bad.json:2:"), std::string::npos) << answer.out;
  EXPECT_NE(answer.out.find("devices[0].name: expected a string"), std::string::npos) << answer.out;
  EXPECT_NE(answer.out.find("devices[0].containerEdits: is missing"), std::string::npos) << answer.out;
  EXPECT_NE(answer.out.find("pipe.json: is not a regular file"), std::string::npos) << answer.out;
  EXPECT_EQ(cdi_validate_output({{tree.tree_path() + "/gone.yaml"}, {}, {}}).exit_code, 1);
}

TEST_F(CdiCommand, TransformsTheRootOfADocument) {
  options.output = tree.tree_path() + "/made.yaml";
  ASSERT_EQ(generate().exit_code, 0);
  CdiTransformOptions transform;
  transform.input = options.output;
  transform.from = tree.tree_path();
  const auto answer = cdi_transform_output(transform);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_EQ(answer.out.find(tree.tree_path()), std::string::npos) << answer.out;
  const auto read = cdi::read_spec(answer.out, "out");
  ASSERT_TRUE(read.spec);
  // And there again, as JSON by the file's name.
  transform.input = tree.tree_path() + "/moved.yaml";
  ASSERT_TRUE(write_file_atomic(transform.input, answer.out));
  transform.from.clear();
  transform.to = tree.tree_path() + "/";
  transform.output = tree.tree_path() + "/back.json";
  EXPECT_EQ(cdi_transform_output(transform).exit_code, 0);
  const auto text = read_file(transform.output);
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->starts_with("{"));
  const auto back = cdi::read_spec(*text, "back");
  ASSERT_TRUE(back.spec);
  for (const auto& mount : back.spec->edits.mounts) {
    EXPECT_TRUE(mount.host_path.starts_with(tree.tree_path())) << mount.host_path;
  }
  EXPECT_FALSE(back.spec->edits.mounts.empty());
}

TEST_F(CdiCommand, TransformRejectsInvalidInput) {
  CdiTransformOptions transform;
  transform.input = tree.tree_path() + "/none";
  EXPECT_EQ(cdi_transform_output(transform).exit_code, 1);
  ASSERT_TRUE(write_file_atomic(transform.input, "kind: x\n"));
  const auto wrong = cdi_transform_output(transform);
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.err.find("none:1:7: kind: "), std::string::npos) << wrong.err;
  EXPECT_EQ(wrong.out, "");
  transform.relative_to = "both";
  EXPECT_EQ(cdi_transform_output(transform).exit_code, 2);
  transform.relative_to = "container";
  ASSERT_EQ(generate().exit_code, 0);
  ASSERT_TRUE(write_file_atomic(transform.input, generate().out));
  transform.from = "run/driver";
  EXPECT_EQ(cdi_transform_output(transform).exit_code, 2);
}

}  // namespace
}  // namespace gpulet::cli
