#include "cli/commands/commands.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"

namespace gpulet::cli {
namespace {

using testing::internal::CaptureStderr;
using testing::internal::CaptureStdout;
using testing::internal::GetCapturedStderr;
using testing::internal::GetCapturedStdout;

class ConfigCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "gpulet-config-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string write_config(const std::string& content) {
    const std::string path = directory_ + "/config.yaml";
    EXPECT_TRUE(write_file_atomic(path, content));
    return path;
  }
  template <class Call>
  int run_and_capture(Call call) {
    CaptureStdout();
    CaptureStderr();
    const int code = call();
    out_ = GetCapturedStdout();
    err_ = GetCapturedStderr();
    return code;
  }

  std::string directory_, out_, err_;
};

TEST_F(ConfigCommand, CheckPrintsOk) {
  const auto path = write_config("version: v1\nflags: {migStrategy: mixed}\n");
  EXPECT_EQ(run_and_capture([&] { return run_config_check({path, false}); }), 0);
  EXPECT_EQ(out_, path + ": ok\n");
  EXPECT_EQ(err_, "");
}

TEST_F(ConfigCommand, CheckTakesTheMpsRootFromOutsideTheFile) {
  const auto path =
      write_config("version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n");
  EXPECT_EQ(run_and_capture([&] { return run_config_check({path, true}); }), 0) << err_;
  EXPECT_EQ(run_and_capture([&] { return run_config_check({path, true, ""}); }), 1);
  EXPECT_NE(err_.find("requires --mps-root"), std::string::npos) << err_;
}

TEST_F(ConfigCommand, CheckPrintsEveryErrorOnItsLine) {
  const auto path = write_config("flags:\n  migStrategie: mixed\n  plugin: {deviceIDStrategy: name}\n");
  EXPECT_EQ(run_and_capture([&] { return run_config_check({path, false}); }), 1);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(
      err_,
      path + ":2:3: flags: unknown key 'migStrategie'; did you mean migStrategy?\n" + path +
          ":3:30: flags.plugin.deviceIDStrategy: invalid --device-id-strategy option: name (expected uuid "
          "or index)\n");
}

TEST_F(ConfigCommand, CheckAsDropInWarnsOfUnknownKeys) {
  const auto path = write_config("flags:\n  migStrategie: mixed\n");
  EXPECT_EQ(run_and_capture([&] { return run_config_check({path, true}); }), 0);
  EXPECT_EQ(out_, path + ": ok\n");
  EXPECT_EQ(err_,
            "warning: " + path + ":2:3: flags: unknown key 'migStrategie'; did you mean migStrategy?\n");
}

TEST_F(ConfigCommand, CheckOfAMissingFileFails) {
  EXPECT_EQ(run_and_capture([&] { return run_config_check({directory_ + "/none.yaml", false}); }), 1);
  EXPECT_NE(err_.find("error opening config file"), std::string::npos) << err_;
}

TEST_F(ConfigCommand, PrintReadsTheFileOfTheEnvironment) {
  ConfigPrintOptions options;
  options.sources.environment["CONFIG_FILE"] = write_config("flags: {migStrategy: single}\n");
  EXPECT_EQ(run_and_capture([&] { return run_config_print(options); }), 0);
  EXPECT_NE(out_.find("  migStrategy: single  # from file " + directory_ + "/config.yaml:1:22\n"),
            std::string::npos)
      << out_;
  options.output = "json";
  EXPECT_EQ(run_and_capture([&] { return run_config_print(options); }), 0);
  EXPECT_NE(out_.find("\"migStrategy\": \"single\""), std::string::npos) << out_;
}

}  // namespace
}  // namespace gpulet::cli
