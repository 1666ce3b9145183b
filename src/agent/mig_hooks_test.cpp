#include "agent/mig_hooks.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "base/file.h"

namespace gpulet::agent {
namespace {

using mig::HookPoint;

class ConfiguredHooksTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "mig_hooks.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    settings_.config_file = "/etc/mig.yaml";
    settings_.hooks_file = folder_ + "/hooks.yaml";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void hooks(const std::string& text) {
    ASSERT_TRUE(write_file_atomic(settings_.hooks_file, "version: v1\nhooks:\n" + text));
  }
  Status run(HookPoint point,
             MigHooks::About about = {{DeviceUuid("GPU-1"), DeviceUuid("GPU-2")}, "all-balanced"}) {
    Status result = fail(Code::kInternal, "never ended");
    hooks_.run(point, about, [&](const Status& status) {
      result = status;
      loop_.stop();
    });
    loop_.run();
    return result;
  }
  std::string wrote() const { return read_file(folder_ + "/out").value_or("nothing"); }

  EpollLoop loop_;
  std::string folder_;
  config::MigSettings settings_;
  ConfiguredHooks hooks_{loop_, [this] { return settings_; }};
};

TEST_F(ConfiguredHooksTest, AreToldWhatItIsAbout) {
  hooks(
      "  pre-apply-mode:\n    - command: /bin/sh\n      args: [-c, 'env | grep -e ^MIG_ -e ^GPULET_ | sort "
      ">" +
      folder_ + "/out']\n      envs: {PATH: /usr/bin:/bin}\n");
  EXPECT_TRUE(hooks_.any());
  ASSERT_TRUE(run(HookPoint::kApplyStart));
  EXPECT_EQ(wrote(), "nothing");
  ASSERT_TRUE(run(HookPoint::kPreApplyMode));
  EXPECT_EQ(wrote(),
            "GPULET_GPU=GPU-1,GPU-2\nGPULET_HOOK=pre-apply-mode\nMIG_PARTED_CONFIG_FILE=/etc/mig.yaml\n"
            "MIG_PARTED_HOOKS_FILE=" +
                settings_.hooks_file +
                "\nMIG_PARTED_MODE_CHANGE_ONLY=false\nMIG_PARTED_SELECTED_CONFIG=all-balanced\n"
                "MIG_PARTED_SKIP_RESET=true\n");
}

TEST_F(ConfiguredHooksTest, AWrongFileIsApplyStartsErrorAndNothingElseRuns) {
  hooks("  apply-exit:\n    - command: touch\n");
  const auto status = run(HookPoint::kApplyStart);
  ASSERT_FALSE(status);
  EXPECT_EQ(
      status.error().text(),
      settings_.hooks_file + ":4:16: hooks.apply-exit[0].command: expected an absolute path, found 'touch'");
  hooks("  apply-exit:\n    - {command: /bin/touch, args: [" + folder_ + "/out]}\n");
  EXPECT_TRUE(run(HookPoint::kApplyExit));
  EXPECT_EQ(wrote(), "nothing") << "what never started has no end";
}

TEST_F(ConfiguredHooksTest, AMissingFileIsApplyStartsError) {
  const auto status = run(HookPoint::kApplyStart);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().about(), settings_.hooks_file);
}

TEST_F(ConfiguredHooksTest, AnExitThatWasPutRightIsTaken) {
  hooks("  apply-exit:\n    - command: /bin/false\n");
  ASSERT_TRUE(run(HookPoint::kApplyStart));
  EXPECT_FALSE(run(HookPoint::kApplyExit));
  ASSERT_TRUE(write_file_atomic(settings_.hooks_file, "half a fi"));
  EXPECT_FALSE(run(HookPoint::kApplyExit)) << "the one that is known, as long as there is no other";
  hooks("  apply-exit:\n    - {command: /bin/touch, args: [" + folder_ + "/out]}\n");
  EXPECT_TRUE(run(HookPoint::kApplyExit));
  EXPECT_EQ(wrote(), "");
}

TEST_F(ConfiguredHooksTest, WithoutAFileThereAreNone) {
  settings_.hooks_file.clear();
  EXPECT_FALSE(hooks_.any());
}

}  // namespace
}  // namespace gpulet::agent
