#include "cdi/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpulet::cdi {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<Link> kLinks{{"libcuda.so.1", "/usr/lib64/libcuda.so"}};
const std::vector<std::string> kDirectories{"/usr/lib64", "/usr/lib64/vdpau"};
const HookHost kHost{"570.124.06", "12.8", "9.0", "tesla"};

std::vector<std::vector<std::string>> arguments(const std::vector<HookEdit>& hooks) {
  std::vector<std::vector<std::string>> all;
  for (const auto& hook : hooks) {
    EXPECT_EQ(hook.hook_name, "createContainer");
    EXPECT_FALSE(hook.env.empty());
    all.push_back(hook.args);
  }
  return all;
}

TEST(Hooks, WritesOneProcessForGpuletHook) {
  HookOptions options{"/opt/gpulet/gpulet-hook", "/sbin/ldconfig.real"};
  const auto hooks = common_hooks(options, kHost, kLinks, kDirectories, false);
  EXPECT_THAT(arguments(hooks),
              ElementsAre(ElementsAre(
                  "gpulet-hook", "create-container", "--link", "libcuda.so.1::/usr/lib64/libcuda.so",
                  "--folder", "/usr/lib64", "--folder", "/usr/lib64/vdpau", "--ldconfig-path",
                  "/sbin/ldconfig.real", "--host-driver-version", "570.124.06", "--host-cuda-version", "12.8",
                  "--host-arch", "9.0", "--host-brand", "tesla")));
  EXPECT_EQ(hooks[0].path, "/opt/gpulet/gpulet-hook");
  EXPECT_THAT(hooks[0].env, ElementsAre("GPULET_HOOK=1"));
  EXPECT_EQ(hooks[0].timeout, 10);  // seconds, as in CDI
}

TEST(Hooks, ListsWhatIsDisabled) {
  HookOptions options{"/usr/bin/gpulet-hook"};
  options.disabled = {"create-symlinks", "update-ldcache"};
  EXPECT_THAT(arguments(common_hooks(options, {}, kLinks, kDirectories, false)),
              ElementsAre(ElementsAre("gpulet-hook", "create-container", "--disable=create-symlinks",
                                      "--disable=update-ldcache")));
  options.disabled = {"all"};
  EXPECT_THAT(common_hooks(options, kHost, kLinks, kDirectories, false), IsEmpty());
  options.enabled = {"update-ldcache"};
  EXPECT_THAT(arguments(common_hooks(options, {}, kLinks, {"/a"}, false)),
              ElementsAre(ElementsAre(
                  "gpulet-hook", "create-container", "--folder", "/a", "--disable=check-requirements",
                  "--disable=create-symlinks", "--disable=enable-cuda-compat",
                  "--disable=disable-device-node-modification", "--disable=update-application-profile")));
  EXPECT_THAT(
      arguments(common_hooks({}, {}, {}, {}, true)),
      ElementsAre(ElementsAre("gpulet-hook", "create-container", "--disable=disable-device-node-modification",
                              "--disable=update-application-profile")));
}

TEST(Hooks, WritesNvidiasOneByOne) {
  HookOptions options{"/usr/bin/nvidia-cdi-hook", "/sbin/ldconfig"};
  const auto hooks = common_hooks(options, kHost, kLinks, kDirectories, false);
  EXPECT_THAT(
      arguments(hooks),
      ElementsAre(
          ElementsAre("nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so"),
          ElementsAre("nvidia-cdi-hook", "enable-cuda-compat", "--host-driver-version=570.124.06"),
          ElementsAre("nvidia-cdi-hook", "update-ldcache", "--ldconfig-path", "/sbin/ldconfig", "--folder",
                      "/usr/lib64", "--folder", "/usr/lib64/vdpau"),
          ElementsAre("nvidia-cdi-hook", "disable-device-node-modification"),
          ElementsAre("nvidia-cdi-hook", "update-application-profile")));
  EXPECT_THAT(hooks[0].env, ElementsAre("NVIDIA_CTK_DEBUG=false"));
  options.path = "/usr/bin/nvidia-ctk";
  options.disabled = {"all"};
  options.enabled = {"update-ldcache"};
  EXPECT_THAT(arguments(common_hooks(options, kHost, kLinks, {"/a"}, false)),
              ElementsAre(ElementsAre("nvidia-ctk", "hook", "update-ldcache", "--ldconfig-path",
                                      "/sbin/ldconfig", "--folder", "/a")));
  EXPECT_EQ(common_hooks({"/usr/bin/nvidia-cdi-hook"}, kHost, {}, {}, true).size(), 2u);
}

TEST(Hooks, WritesTheHooksOfADevice) {
  const std::vector<Link> links{{"../card0", "/dev/dri/by-path/pci-0000:01:00.0-card"}};
  const std::vector<NodeEdit> nodes{{"/dev/nvidia0"}, {"/dev/dri/card0"}};
  HookOptions options;
  EXPECT_THAT(arguments(device_hooks(options, links, nodes)),
              ElementsAre(ElementsAre("gpulet-hook", "create-symlinks", "--link",
                                      "../card0::/dev/dri/by-path/pci-0000:01:00.0-card")));
  EXPECT_THAT(device_hooks(options, {}, nodes), IsEmpty());
  options.enabled = {"chmod"};
  options.disabled = {"create-symlinks"};
  options.path = "/x/nvidia-cdi-hook";
  EXPECT_THAT(arguments(device_hooks(options, links, nodes)),
              ElementsAre(ElementsAre("nvidia-cdi-hook", "chmod", "--mode", "755", "--path", "/dev/dri")));
}

TEST(Hooks, AsksForMemoryLimitsOnlyWhereASocketIsGiven) {
  HookOptions options{"/opt/gpulet/gpulet-hook"};
  const auto without = common_hooks(options, kHost, kLinks, kDirectories, false);
  options.limit_socket = "/run/gpulet/limits/agent.sock";
  options.disabled = {};
  auto with = common_hooks(options, kHost, kLinks, kDirectories, false);
  ASSERT_EQ(with.size(), without.size() + 1);
  const HookEdit expected{"createRuntime",
                          "/opt/gpulet/gpulet-hook",
                          {"gpulet-hook", "limit-memory", "--socket", "/run/gpulet/limits/agent.sock"},
                          {"GPULET_HOOK=1"},
                          10};
  EXPECT_EQ(with.back(), expected);
  with.pop_back();
  EXPECT_EQ(with, without);
  options.disabled = {"all"};
  EXPECT_THAT(common_hooks(options, kHost, kLinks, kDirectories, false), ElementsAre(expected));
}

// NVIDIA's programs succeed for a hook that they do not know: every container would start without a limit.
TEST(Hooks, RefusesMemoryLimitsWithNvidiasPrograms) {
  for (const char* program : {"/usr/bin/nvidia-ctk", "/usr/bin/nvidia-cdi-hook", "/usr/bin/my-hook", ""}) {
    HookOptions options{program};
    EXPECT_TRUE(check_hook_options(options)) << program;
    options.limit_socket = "/run/a.sock";
    const auto checked = check_hook_options(options);
    ASSERT_FALSE(checked) << program;
    EXPECT_THAT(checked.error().message(), testing::HasSubstr(std::string("found ") + program));
  }
  HookOptions options;
  options.limit_socket = "a.sock";
  EXPECT_FALSE(check_hook_options(options));
  options.limit_socket = "/a.sock";
  EXPECT_TRUE(check_hook_options(options));
}

TEST(Hooks, ChecksNames) {
  for (const char* good : {"create-symlinks", "chmod", "check-requirements", "all"}) {
    EXPECT_TRUE(check_hook_name(good, true)) << good;
  }
  EXPECT_FALSE(check_hook_name("all", false));
  EXPECT_FALSE(check_hook_name("create-symlink", true));
}

}  // namespace
}  // namespace gpulet::cdi
