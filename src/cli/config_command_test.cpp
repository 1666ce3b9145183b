#include "cli/config_command.h"

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
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& content) {
    const std::string path = folder_ + "/config.yaml";
    EXPECT_TRUE(write_file_atomic(path, content));
    return path;
  }
  template <class Call>
  int run(Call call) {
    CaptureStdout();
    CaptureStderr();
    const int code = call();
    out_ = GetCapturedStdout();
    err_ = GetCapturedStderr();
    return code;
  }

  std::string folder_, out_, err_;
};

TEST_F(ConfigCommand, CheckSaysOk) {
  const auto path = file("version: v1\nflags: {migStrategy: mixed}\n");
  EXPECT_EQ(run([&] { return config_check({path, false}); }), 0);
  EXPECT_EQ(out_, path + ": ok\n");
  EXPECT_EQ(err_, "");
}

TEST_F(ConfigCommand, CheckPrintsEveryErrorOnItsLine) {
  const auto path = file("flags:\n  migStrategie: mixed\n  plugin: {deviceIDStrategy: name}\n");
  EXPECT_EQ(run([&] { return config_check({path, false}); }), 1);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(
      err_,
      path + ":2:3: flags: unknown key 'migStrategie'; did you mean migStrategy?\n" + path +
          ":3:30: flags.plugin.deviceIDStrategy: invalid --device-id-strategy option: name (uuid or index "
          "would do)\n");
}

TEST_F(ConfigCommand, CheckAsDropInWarnsOfUnknownKeys) {
  const auto path = file("flags:\n  migStrategie: mixed\n");
  EXPECT_EQ(run([&] { return config_check({path, true}); }), 0);
  EXPECT_EQ(out_, path + ": ok\n");
  EXPECT_EQ(err_,
            "warning: " + path + ":2:3: flags: unknown key 'migStrategie'; did you mean migStrategy?\n");
}

TEST_F(ConfigCommand, CheckOfAMissingFileFails) {
  EXPECT_EQ(run([&] { return config_check({folder_ + "/none.yaml", false}); }), 1);
  EXPECT_NE(err_.find("error opening config file"), std::string::npos) << err_;
}

TEST_F(ConfigCommand, PrintReadsTheFileThatTheEnvironmentNames) {
  ConfigPrintOptions options;
  options.sources.environment["CONFIG_FILE"] = file("flags: {migStrategy: single}\n");
  EXPECT_EQ(run([&] { return config_print(options); }), 0);
  EXPECT_NE(out_.find("  migStrategy: single  # from file " + folder_ + "/config.yaml:1:22\n"),
            std::string::npos)
      << out_;
  options.output = "json";
  EXPECT_EQ(run([&] { return config_print(options); }), 0);
  EXPECT_NE(out_.find("\"migStrategy\": \"single\""), std::string::npos) << out_;
  options.output = "toml";
  EXPECT_EQ(run([&] { return config_print(options); }), 2);
}

}  // namespace
}  // namespace gpulet::cli
