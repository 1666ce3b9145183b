#include "cli/dropin/mig_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "cdi/spec.h"
#include "cdi/test_driver_root.h"
#include "cli/main/command_line.h"
#include "mig/test_states.h"

namespace gpulet::cli {
namespace {

class MigManagerProgram : public testing::Test {
 protected:
  MigManagerProgram()
      : machine_(mig::states::test_machine("hgx-h100")), gpu_(mig::states::state_of(machine_->gpus[0], 0)) {
    std::string pattern = std::filesystem::temp_directory_path() / "gpulet-mig-manager-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~MigManagerProgram() override { std::filesystem::remove_all(directory_); }

  std::string write_layouts(const std::string& name, const std::string& layout) const {
    const std::string path = directory_ + "/" + name;
    EXPECT_TRUE(write_file_atomic(path, "version: v1\nmig-configs:\n  " + layout +
                                            ":\n    - devices: all\n      mig-enabled: true\n"
                                            "      mig-devices: {\"7g.80gb\": 1}\n"));
    return path;
  }
  // What the layout is on the one GPU, or the error.
  std::string layout_of(const MigManagerOptions& options, const std::string& name) const {
    const auto layouts = operator_layouts(options, name, {&gpu_, 1});
    return layouts ? mig::layout_text((*layouts)[0].value()) : layouts.error().full_message();
  }

  std::unique_ptr<sim::Machine> machine_;
  mig::State gpu_;
  std::string directory_;
};

TEST_F(MigManagerProgram, LayoutsAreOfTheFileElseOfTheHardwareElseOfTheDefaultFile) {
  MigManagerOptions options;
  options.default_config_file = write_layouts("default.yaml", "whole");
  const auto whole = layout_of(options, "whole");
  EXPECT_NE(whole.find("7g.80gb"), std::string::npos) << whole;
  EXPECT_NE(layout_of(options, "all-1g.10gb").find("1g.10gb"), std::string::npos);
  options.config_file = write_layouts("config.yaml", "mine");
  EXPECT_EQ(layout_of(options, "mine"), whole);
  EXPECT_NE(layout_of(options, "whole").find("no config 'whole'"), std::string::npos);
}

TEST_F(MigManagerProgram, NeedsANode) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_mig_manager({}), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "nvidia-mig-manager: --node-name (NODE_NAME): must not be empty\n");
}

TEST_F(MigManagerProgram, MigPartedRefusesWhatItDoesNotHave) {
  const auto refusal = [](std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    testing::internal::CaptureStderr();
    EXPECT_EQ(run_program(static_cast<int>(argv.size()), argv.data()), 2);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(
      refusal({"/usr/bin/nvidia-mig-parted", "checkpoint", "-f", "x"}),
      "nvidia-mig-parted: gpulet has no command 'checkpoint'; `export` writes the layout as a file that "
      "`apply` takes\n");
  EXPECT_EQ(refusal({"mig-parted", "apply", "-k", "hooks.yaml"}),
            "nvidia-mig-parted: gpulet runs hooks in its agent only (gpulet.mig.hooksFile), not with -k\n");
}

// A driver container's root, as the operator mounts it at DRIVER_ROOT_CTR_PATH.
class ManagementSpec : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(tree_.make_node("/dev/nvidiactl", 195, 255))
        << "this test makes device nodes: run it as root";
    for (const unsigned minor : {0u, 1u}) tree_.make_node("/dev/nvidia" + std::to_string(minor), 195, minor);
    tree_.make_node("/dev/nvidia-caps/nvidia-cap1", 506, 1);
    tree_.make_file(kLibrary);
    tree_.make_directory("/var/run/cdi");
    options_.driver_root = "/run/nvidia/driver";
    options_.driver_root_ctr_path = tree_.tree_path();
    options_.cdi_file = tree_.tree_path() + "/var/run/cdi/management.nvidia.com-gpu.yaml";
    snapshot_.driver = {"570.124.06", 12080};
  }
  cdi::Spec written() const {
    const auto text = read_file(options_.cdi_file);
    const auto read = cdi::read_spec(text.value_or(""), options_.cdi_file);
    EXPECT_TRUE(read.spec) << text.value_or("no file");
    return read.spec.value_or(cdi::Spec());
  }
  // "PATH HOST-PATH" of each device node, or "PATH " where both are the same, sorted.
  static std::vector<std::string> nodes_of(const cdi::Spec& spec) {
    std::vector<std::string> nodes;
    for (const auto& device : spec.devices) {
      for (const auto& node : device.edits.device_nodes) nodes.push_back(node.path + " " + node.host_path);
    }
    std::ranges::sort(nodes);
    return nodes;
  }

  static constexpr const char* kLibrary = "/usr/lib/x86_64-linux-gnu/libcuda.so.570.124.06";
  cdi::TestTree tree_;
  inventory::Snapshot snapshot_;
  MigManagerOptions options_;
};

TEST_F(ManagementSpec, NamesTheHostsNodesFilesAndHook) {
  ASSERT_TRUE(write_management_spec(options_, snapshot_));
  const auto spec = written();
  EXPECT_EQ(spec.kind, "management.nvidia.com/gpu");
  ASSERT_EQ(spec.devices.size(), 1u);
  EXPECT_EQ(spec.devices[0].name, "all");
  EXPECT_EQ(nodes_of(spec),
            (std::vector<std::string>{
                "/dev/nvidia-caps/nvidia-cap1 /run/nvidia/driver/dev/nvidia-caps/nvidia-cap1",
                "/dev/nvidia0 /run/nvidia/driver/dev/nvidia0", "/dev/nvidia1 /run/nvidia/driver/dev/nvidia1",
                "/dev/nvidiactl /run/nvidia/driver/dev/nvidiactl"}));
  const auto library = std::ranges::find(spec.edits.mounts, kLibrary, &cdi::MountEdit::container_path);
  ASSERT_NE(library, spec.edits.mounts.end());
  EXPECT_EQ(library->host_path, std::string("/run/nvidia/driver") + kLibrary);
  ASSERT_FALSE(spec.edits.hooks.empty());
  for (const auto& hook : spec.edits.hooks) {
    EXPECT_EQ(hook.path, "/usr/local/nvidia/toolkit/nvidia-cdi-hook");
    EXPECT_EQ(hook.args.at(0), "nvidia-cdi-hook");
  }
}

TEST_F(ManagementSpec, HasTheNodesOfTheDevRoot) {
  tree_.make_node("/host/dev/nvidiactl", 195, 255);
  tree_.make_node("/host/dev/nvidia3", 195, 3);
  options_.dev_root = "/";
  options_.dev_root_ctr_path = tree_.tree_path() + "/host";
  ASSERT_TRUE(write_management_spec(options_, snapshot_));
  EXPECT_EQ(nodes_of(written()), (std::vector<std::string>{"/dev/nvidia3 ", "/dev/nvidiactl "}));
}

TEST_F(ManagementSpec, IsRewrittenWhenTheNodesChangeAndOnlyThen) {
  ASSERT_TRUE(write_management_spec(options_, snapshot_));
  const auto inode = [this] {
    struct stat info{};
    EXPECT_EQ(::stat(options_.cdi_file.c_str(), &info), 0);
    return info.st_ino;
  };
  const auto before = inode();
  ASSERT_TRUE(write_management_spec(options_, snapshot_));
  EXPECT_EQ(inode(), before);
  tree_.make_node("/dev/nvidia-caps/nvidia-cap21", 506, 21);  // of a new GPU instance
  ASSERT_TRUE(write_management_spec(options_, snapshot_));
  EXPECT_EQ(nodes_of(written()).size(), 5u);
}

TEST_F(ManagementSpec, FailsWithoutTheDriver) {
  ASSERT_TRUE(write_file_atomic(options_.cdi_file, "of another program"));
  options_.driver_root_ctr_path += "/none";
  const auto status = write_management_spec(options_, snapshot_);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().full_message().find("/none"), std::string::npos) << status.error().full_message();
  EXPECT_EQ(read_file(options_.cdi_file).value_or(""), "of another program");
}

}  // namespace
}  // namespace gpulet::cli
