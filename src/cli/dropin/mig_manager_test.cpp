#include "cli/dropin/mig_manager.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
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

}  // namespace
}  // namespace gpulet::cli
