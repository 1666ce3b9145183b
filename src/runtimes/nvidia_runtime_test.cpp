#include "runtimes/nvidia_runtime.h"

#include <gtest/gtest.h>

#include "runtimes/test_root.h"

namespace gpulet::runtimes::nvidia {
namespace {

const std::string kEnvvar = "accept-nvidia-visible-devices-envvar-when-unprivileged";
const std::string kMounts = "accept-nvidia-visible-devices-as-volume-mounts";

TEST(NvidiaRuntimeConfig, ReadsWhoseVariableCounts) {
  struct Case {
    std::map<std::string, std::string> files;
    std::string path;
    bool variable, mounts;
  };
  const std::string closed = kEnvvar + " = false\n";
  const Case cases[] = {
      {{}, "", true, false},
      {{{kPackageConfig, "#" + closed + "[nvidia-container-cli]\n"}}, kPackageConfig, true, false},
      {{{kPackageConfig, "[nvidia-container-cli]\n" + closed}}, kPackageConfig, true, false},
      {{{kPackageConfig, kEnvvar + " = \"false\"\n"}}, kPackageConfig, true, false},
      {{{kPackageConfig, closed}}, kPackageConfig, false, false},
      {{{kPackageConfig, closed + kMounts + " = true\n"}}, kPackageConfig, false, true},
      {{{kPackageConfig, closed}, {kOperatorConfig, ""}}, kOperatorConfig, true, false},
      {{{kPackageConfig, ""}, {kOperatorConfig, closed}}, kPackageConfig, true, false},
  };
  for (const auto& [files, path, variable, mounts] : cases) {
    const auto config = read_runtime_config(TestFiles{files}.make_reader());
    ASSERT_TRUE(config) << config.error().full_message();
    EXPECT_EQ(config->path, path);
    EXPECT_EQ(config->accepts_images_variable, variable) << path;
    EXPECT_EQ(config->accepts_volume_mounts, mounts) << path;
  }
  const auto broken = read_runtime_config(TestFiles{{{kPackageConfig, kEnvvar + " = fal\n"}}}.make_reader());
  EXPECT_EQ(broken.error().full_message(),
            std::string(kPackageConfig) + ":1: `fal` is not a value; strings need quotes");
}

// What denial writes, and that acceptance restores every byte.
TEST(NvidiaRuntimeConfig, DenialKeepsAllElseAndCanBeUndone) {
  const std::string added = kEnvvar + " = false # gpulet: added",
                    mounts = kMounts + " = true # gpulet: added";
  const std::string package = "#" + kMounts + " = false\n#" + kEnvvar +
                              " = true\ndisable-require = false\n\n[nvidia-container-cli]\nenvironment = "
                              "[]\n#" +
                              kMounts + " = false\n";
  struct Case {
    std::string before, after;
  };
  const Case cases[] = {
      {package, "#" + kMounts + " = false\n" + mounts + "\n#" + kEnvvar + " = true\n" + added +
                    "\ndisable-require = false\n\n[nvidia-container-cli]\nenvironment = []\n#" + kMounts +
                    " = false\n"},
      {"", added + "\n" + mounts + "\n"},
      {"\xef\xbb\xbf[a]\n", "\xef\xbb\xbf" + added + "\n" + mounts + "\n[a]\n"},
      {"# of a\n[a]\n", added + "\n" + mounts + "\n# of a\n[a]\n"},
      {"x = 1 # one", "x = 1 # one\n" + added + "\n" + mounts},
      {"x = 1\r\n[a]\r\n", "x = 1\r\n" + added + "\r\n" + mounts + "\r\n[a]\r\n"},
      {"x = [\n1,\n]\n", "x = [\n1,\n]\n" + added + "\n" + mounts + "\n"},
      {"x = \"\"\"\n#" + kEnvvar + " = true\n\"\"\"\n",
       "x = \"\"\"\n#" + kEnvvar + " = true\n\"\"\"\n" + added + "\n" + mounts + "\n"},
      {kEnvvar + " = true # mine\n" + kMounts + "=false\n",
       kEnvvar + " = false # gpulet: changed # mine\n" + kMounts + "=true # gpulet: changed\n"},
      {kEnvvar + " = false\n" + kMounts + " = true", kEnvvar + " = false\n" + kMounts + " = true"},
      {kMounts + " = true\n", kMounts + " = true\n" + added + "\n"},
  };
  for (const auto& [before, after] : cases) {
    TestFiles host{{{kPackageConfig, before}}};
    const auto plan = plan_denial({}, host.make_reader());
    ASSERT_TRUE(plan) << plan.error().full_message();
    EXPECT_EQ(plan->changes.empty(), before == after);
    EXPECT_NE(plan->message, "");
    host.apply_plan(*plan);
    EXPECT_EQ(host.files[kPackageConfig], after);
    EXPECT_FALSE(read_runtime_config(host.make_reader())->accepts_images_variable) << before;
    EXPECT_TRUE(read_runtime_config(host.make_reader())->accepts_volume_mounts) << before;
    EXPECT_TRUE(plan_denial({}, host.make_reader())->changes.empty()) << before;
    host.apply_plan(plan_acceptance({}, host.make_reader()).value());
    EXPECT_EQ(host.files[kPackageConfig], before);
  }
}

TEST(NvidiaRuntimeConfig, ALineThatWasChangedSinceBelongsToTheAdministrator) {
  const std::string text = kEnvvar + " = true # gpulet: added\n";
  TestFiles host{{{kPackageConfig, text}}};
  EXPECT_TRUE(plan_acceptance({}, host.make_reader())->changes.empty());
  host.apply_plan(plan_denial({}, host.make_reader()).value());
  EXPECT_EQ(host.files[kPackageConfig],
            kEnvvar + " = false # gpulet: added\n" + kMounts + " = true # gpulet: added\n");
}

TEST(NvidiaRuntimeConfig, EveryFileIsChangedAndTheOperatorIsNamed) {
  TestFiles host{{{kPackageConfig, "x = 1\n"}, {kOperatorConfig, "y = 1\n"}}};
  const auto before = host.files;
  const auto plan = plan_denial({}, host.make_reader()).value();
  ASSERT_EQ(plan.changes.size(), 2u);
  EXPECT_NE(plan.message.find("deviceListStrategy"), std::string::npos);
  EXPECT_NE(plan.message.find("ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"), std::string::npos);
  host.apply_plan(plan);
  host.apply_plan(plan_acceptance({}, host.make_reader()).value());
  EXPECT_EQ(host.files, before);
  EXPECT_EQ(plan_denial("/x.toml", host.make_reader()).value().changes[0].path, "/x.toml");
}

TEST(NvidiaRuntimeConfig, AFileThatDoesNotExistIsCreatedAndRemoved) {
  TestFiles host;
  host.apply_plan(plan_denial({}, host.make_reader()).value());
  EXPECT_TRUE(host.files[kPackageConfig].starts_with(kFileHeader));
  EXPECT_FALSE(read_runtime_config(host.make_reader())->accepts_images_variable);
  host.apply_plan(plan_acceptance({}, host.make_reader()).value());
  EXPECT_TRUE(host.files.empty());
}

TEST(NvidiaRuntimeConfig, WhatCannotBeParsedIsRefused) {
  const std::pair<std::string, std::string> cases[] = {
      {"x = [\n", ":2: expected `]`"},
      {"\n" + kEnvvar + " = \"no\"\n", ":2: " + kEnvvar + " is not true or false"},
      {kMounts + " = 1\n", ":1: " + kMounts + " is not true or false"},
  };
  for (const auto& [text, message] : cases) {
    const TestFiles host{{{kPackageConfig, text}}};
    for (const auto& plan : {plan_denial({}, host.make_reader()), plan_acceptance({}, host.make_reader())}) {
      ASSERT_FALSE(plan) << text;
      EXPECT_EQ(plan.error().full_message(), kPackageConfig + message);
    }
  }
}

}  // namespace
}  // namespace gpulet::runtimes::nvidia
