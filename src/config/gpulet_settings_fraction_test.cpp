#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/load.h"

namespace gpulet::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Result<LoadedConfig> load_limits(const std::string& flags, const std::string& own) {
  Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = "version: v1\n" + flags + "gpulet:\n  fraction: {driverLimits: true}\n" + own;
  return load(sources);
}
std::string limits_error(const std::string& flags, const std::string& own) {
  const auto loaded = load_limits(flags, own);
  EXPECT_FALSE(loaded) << flags << own;
  return loaded ? "" : loaded.error().full_message();
}

const std::string kByCdi = "flags: {plugin: {deviceListStrategy: [cdi-annotations, cdi-cri]}}\n";
const std::string kOwnHook = "  cdi: {hookDir: /var/lib/gpulet}\n";

TEST(DriverLimitSettings, AreOffByDefault) {
  Sources sources;
  const auto standard = load(sources);
  ASSERT_TRUE(standard);
  EXPECT_FALSE(standard->config.gpulet.fraction.driver_limits);
  EXPECT_EQ(standard->config.gpulet.fraction.limit_dir, "/run/gpulet/limits");
}

TEST(DriverLimitSettings, NeedAHookInEveryContainer) {
  const auto loaded = load_limits(kByCdi, kOwnHook);
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  EXPECT_TRUE(loaded->config.gpulet.fraction.driver_limits);
  EXPECT_TRUE(
      load_limits("flags: {plugin: {deviceListStrategy: cdi-cri, nvidiaCTKPath: /opt/gpulet-hook}}\n", ""));

  const std::string only =
      "node.yaml:4:28: gpulet.fraction.driverLimits requires flags.plugin.deviceListStrategy";
  EXPECT_THAT(limits_error("flags: {plugin: {deviceListStrategy: envvar}}\n", kOwnHook),
              HasSubstr("cdi-cri only"));
  EXPECT_THAT(limits_error("flags: {plugin: {deviceListStrategy: [cdi-cri, volume-mounts]}}\n", kOwnHook),
              HasSubstr(only));
  EXPECT_THAT(limits_error("", kOwnHook), HasSubstr("cdi-cri only")) << "the default is envvar";
  EXPECT_THAT(
      limits_error("flags: {plugin: {deviceListStrategy: cdi-cri, passDeviceSpecs: true}}\n", kOwnHook),
      HasSubstr("passDeviceSpecs: false"));
}

// NVIDIA's program succeeds for a hook that it does not know.
TEST(DriverLimitSettings, NeedGpuletsHook) {
  EXPECT_THAT(limits_error(kByCdi, ""),
              AllOf(HasSubstr("gpulet.cdi.hookDir"), HasSubstr("/usr/bin/nvidia-ctk")));
}

TEST(DriverLimitSettings, TheirDirectoryIsAbsolute) {
  for (const std::string directory : {"\"\"", "run/limits"}) {
    Sources sources;
    sources.file_path = "node.yaml";
    sources.file_content = "version: v1\ngpulet: {fraction: {limitDir: " + directory + "}}\n";
    const auto loaded = load(sources);
    ASSERT_FALSE(loaded) << directory;
    EXPECT_THAT(loaded.error().full_message(), HasSubstr("is not an absolute path"));
  }
}

}  // namespace
}  // namespace gpulet::config
