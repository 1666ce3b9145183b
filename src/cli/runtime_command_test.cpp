#include "cli/runtime_command.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cli/test_said.h"
#include "runtimes/test_root.h"

namespace gpulet::cli {
namespace {

Said configure(const RuntimeConfigureOptions& options) {
  return said_by([&] { return runtime_configure(options); });
}

const std::string kOff = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n";

class RuntimeCommand : public ::testing::Test {
 protected:
  RuntimeConfigureOptions containerd() const { return {.runtime = "containerd", .host_root = root_.path()}; }
  runtimes::TestRoot root_;
};

TEST_F(RuntimeCommand, SaysWhatItDidAndThatARestartIsNeeded) {
  root_.write("/etc/containerd/config.toml", kOff);
  const Said first = configure(containerd());
  EXPECT_EQ(first.code, 0) << first.error;
  EXPECT_EQ(first.out,
            "wrote /etc/containerd/conf.d/99-gpulet.toml\nwrote /etc/containerd/config.toml\n"
            "a restart is needed: `systemctl restart containerd.service`\n");
  const auto main = root_.read("/etc/containerd/config.toml");
  EXPECT_EQ(configure(containerd()).out, "nothing to do\n");
  EXPECT_EQ(root_.read("/etc/containerd/config.toml"), main);
  auto back = containerd();
  back.remove = true;
  EXPECT_EQ(configure(back).code, 0);
  EXPECT_EQ(root_.read("/etc/containerd/config.toml"), kOff);
  EXPECT_EQ(configure(back).out, "nothing to do\n");
}

TEST_F(RuntimeCommand, ADryRunShowsTheFilesAndChangesNone) {
  root_.write("/etc/containerd/config.toml", kOff);
  auto options = containerd();
  options.dry_run = true;
  options.restart = true;
  const Said said = configure(options);
  EXPECT_EQ(said.code, 0);
  EXPECT_NE(said.out.find("would write /etc/containerd/conf.d/99-gpulet.toml\n"), std::string::npos);
  EXPECT_NE(said.out.find("enable_cdi = true\n"), std::string::npos);
  EXPECT_NE(said.out.find("a restart would be needed"), std::string::npos);
  EXPECT_EQ(root_.read("/etc/containerd/config.toml"), kOff);
  EXPECT_FALSE(root_.has("/etc/containerd/conf.d"));
}

TEST_F(RuntimeCommand, AsJson) {
  root_.write("/etc/containerd/config.toml", kOff);
  auto options = containerd();
  options.output = "json";
  const auto json = nlohmann::json::parse(configure(options).out);
  EXPECT_EQ(json["runtime"], "containerd");
  EXPECT_EQ(json["changed"], true);
  EXPECT_EQ(json["restartNeeded"], true);
  ASSERT_EQ(json["changes"].size(), 2u);
  EXPECT_EQ(json["changes"][1]["path"], "/etc/containerd/config.toml");
  const auto again = nlohmann::json::parse(configure(options).out);
  EXPECT_EQ(again["changed"], false);
  EXPECT_EQ(again["restartNeeded"], false);
}

TEST_F(RuntimeCommand, ARestartThatCannotBeDoneFromHereIsTold) {
  root_.write("/etc/containerd/config.toml", kOff);
  auto options = containerd();
  options.restart = true;
  const Said said = configure(options);
  EXPECT_EQ(said.code, 1);
  EXPECT_NE(said.error.find("nsenter --target 1 --mount -- systemctl restart containerd.service"),
            std::string::npos);
  EXPECT_TRUE(root_.has("/etc/containerd/conf.d/99-gpulet.toml"));  // configured all the same
}

TEST_F(RuntimeCommand, WhatIsWrongIsOneLineAndExitCode2) {
  root_.write("/etc/containerd/config.toml", "version = 3\na = [\n");
  Said said = configure(containerd());
  EXPECT_EQ(said.code, 2);
  EXPECT_EQ(said.error, "gpulet runtime configure: /etc/containerd/config.toml:3: `]` is missing\n");
  auto options = containerd();
  options.runtime = "lxc";
  EXPECT_EQ(configure(options).code, 2);
  options = containerd();
  options.host_root = "relative";
  EXPECT_EQ(configure(options).code, 2);
  options.host_root = root_.at("/none");
  EXPECT_EQ(configure(options).code, 1);
}

TEST_F(RuntimeCommand, CheckEndsBy1WhereAnEngineIsUnfit) {
  const RuntimeCheckOptions options{.host_root = root_.path()};
  const auto check = [&](const std::string& output) {
    auto with = options;
    with.output = output;
    return said_by([&] { return runtime_check(with); });
  };
  EXPECT_EQ(check("text").code, 1);  // none at all
  root_.write("/etc/containerd/config.toml", kOff);
  const Said unfit = check("text");
  EXPECT_EQ(unfit.code, 1);
  EXPECT_NE(unfit.out.find("containerd: not fit\n"), std::string::npos) << unfit.out;
  EXPECT_NE(unfit.out.find("off (/etc/containerd/config.toml:3)"), std::string::npos) << unfit.out;
  EXPECT_NE(unfit.out.find("gpulet runtime configure --runtime containerd"), std::string::npos);
  configure(containerd());
  EXPECT_EQ(check("text").code, 0);
  const auto json = nlohmann::json::parse(check("json").out);
  ASSERT_EQ(json["engines"].size(), 1u);
  EXPECT_EQ(json["engines"][0]["fit"], true);
  EXPECT_EQ(json["engines"][0]["version"], nullptr);
}

}  // namespace
}  // namespace gpulet::cli
