#include "hook/command.h"

#include <gmock/gmock.h>

#include "hook/container.h"
#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

HookCommand parse_arguments(const std::vector<std::string>& arguments) {
  auto command = parse_command(arguments);
  if (!command) ADD_FAILURE() << command.error().full_message();
  return command ? *command : HookCommand{.kind = HookCommand::Kind::kHelp, .requested_hook = {}};
}

TEST(HookCommand, CreateContainerRunsAllStepsInOrder) {
  const HookCommand command = parse_arguments(
      {"gpulet-hook", "create-container", "--link", "a::/b", "--link=c::/d", "--folder=/usr/lib", "--folder",
       "/lib", "--ldconfig-path", "@/sbin/ldconfig.real", "--host-driver-version=550.54.14",
       "--host-cuda-version", "12.4", "--host-arch=9.0", "--host-brand=nvidia"});
  EXPECT_THAT(command.steps, ElementsAre(Step::kCheckRequirements, Step::kDeviceParams, Step::kLinks,
                                         Step::kCudaCompat, Step::kAppProfile, Step::kLdcache));
  ASSERT_EQ(command.links.size(), 2u);
  EXPECT_EQ(command.links[1].target, "c");
  EXPECT_EQ(command.links[1].path, "/d");
  EXPECT_THAT(command.directories, ElementsAre("/usr/lib", "/lib"));
  EXPECT_EQ(command.ldconfig_path, "/sbin/ldconfig.real");
  EXPECT_EQ(command.host.driver, "550.54.14");
  EXPECT_EQ(command.host.arch, "9.0");
}

TEST(HookCommand, DisablesStepsByName) {
  EXPECT_THAT(parse_arguments({"h", "create-container", "--disable=update-ldcache,create-symlinks",
                               "--disable", "disable-device-node-modification"})
                  .steps,
              ElementsAre(Step::kCheckRequirements, Step::kCudaCompat, Step::kAppProfile));
  EXPECT_THAT(parse_arguments({"h", "create-container", "--disable=all"}).steps, IsEmpty());
}

// A container starts without a cache, but not without a check or with a right that it must not have.
TEST(HookCommand, StartsAfterAnOverrunOnlyIfNoRequiredStepIsLeft) {
  const HookCommand all = parse_arguments({"h", "create-container"});
  EXPECT_FALSE(describe_overrun(all, 0).may_start);
  EXPECT_THAT(describe_overrun(all, 0).error.message(),
              HasSubstr("the container's state: ended at the limit"));
  EXPECT_FALSE(describe_overrun(all, 1).may_start);
  EXPECT_FALSE(describe_overrun(all, 2).may_start);
  for (std::size_t begun = 3; begun <= all.steps.size(); ++begun)
    EXPECT_TRUE(describe_overrun(all, begun).may_start) << begun;
  EXPECT_TRUE(describe_overrun(parse_arguments({"h", "update-ldcache"}), 1).may_start);
  EXPECT_FALSE(describe_overrun(parse_arguments({"h", "update-ldcache"}), 0).may_start);
  EXPECT_FALSE(describe_overrun(parse_arguments({"h", "disable-device-node-modification"}), 1).may_start);
  EXPECT_FALSE(describe_overrun(parse_arguments({"h", "create-container", "--disable=all"}), 0).may_start);
}

TEST(HookCommand, AcceptsNvidiasCommandLines) {
  for (const std::vector<std::string>& front : {std::vector<std::string>{"nvidia-cdi-hook"},
                                                {"/usr/bin/nvidia-cdi-hook", "--debug"},
                                                {"nvidia-ctk", "hook"},
                                                {"/usr/bin/nvidia-ctk", "--quiet", "hook"},
                                                {"gpulet-hook"}}) {
    const auto with = [&](const std::vector<std::string>& rest) {
      std::vector<std::string> all = front;
      all.insert(all.end(), rest.begin(), rest.end());
      return parse_arguments(all).steps;
    };
    EXPECT_THAT(with({"create-symlinks", "--link", "libcuda.so.1::/usr/lib/libcuda.so"}),
                ElementsAre(Step::kLinks));
    EXPECT_THAT(
        with({"enable-cuda-compat", "--host-driver-version=550.54.14", "--cuda-compat-container-root="}),
        ElementsAre(Step::kCudaCompat));
    EXPECT_THAT(with({"update-ldcache", "--ldconfig-path", "/sbin/ldconfig", "--folder", "/usr/lib64"}),
                ElementsAre(Step::kLdcache));
    EXPECT_THAT(with({"disable-device-node-modification"}), ElementsAre(Step::kDeviceParams));
    EXPECT_THAT(with({"update-application-profile"}), ElementsAre(Step::kAppProfile));
    EXPECT_THAT(with({"chmod", "--mode", "755", "--path", "/dev/dri"}), ElementsAre(Step::kChmod));
    EXPECT_THAT(with({"check-requirements", "--driver-root=/"}), ElementsAre(Step::kCheckRequirements));
  }
  EXPECT_EQ(parse_arguments({"nvidia-cdi-hook", "some-newer-hook", "--whatever"}).kind,
            HookCommand::Kind::kUnknownHook);
}

TEST(HookCommand, ReportsMistakes) {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"gpulet-hook"},
                                                {"gpulet-hook", "some-newer-hook"},
                                                {"h", "create-symlinks", "--link", "a"},
                                                {"h", "create-symlinks", "--link", "a::b::c"},
                                                {"h", "create-symlinks", "--link", "::/b"},
                                                {"h", "create-symlinks", "--link", "a::/b/.."},
                                                {"h", "create-symlinks", "--link"},
                                                {"h", "create-symlinks", "a::b"},
                                                {"h", "create-symlinks", "--lnik=a::b"},
                                                {"h", "chmod", "--mode=9"},
                                                {"h", "chmod", "--mode="},
                                                {"h", "update-ldcache", "--ldconfig-path", "ldconfig"},
                                                {"h", "create-container", "--disable=nothing"}})
    EXPECT_EQ(parse_command(wrong).error().code(), Code::kInvalidArgument);
}

TEST(HookCommand, PrintsHelpAndVersion) {
  const TestImage image;
  EXPECT_THAT(image.run_hook({"--help"}).error_output, HasSubstr("create-container"));
  EXPECT_THAT(image.run_hook({"--version"}).error_output, HasSubstr("gpulet-hook 0."));
  EXPECT_EQ(image.run_hook({}).status, 2);
  const HookRun passed = image.run_hook({"some-newer-hook"}, {}, "nvidia-cdi-hook");
  EXPECT_EQ(passed.status, 0);
  EXPECT_THAT(passed.error_output, HasSubstr("unknown hook 'some-newer-hook'"));
}

TEST(HookCommand, ReadsTheStateFromAFile) {
  const TestImage image;
  const auto path = image.base_directory() / "elsewhere.json";
  std::ofstream(path) << image.oci_state();
  EXPECT_EQ(
      image.run_hook_with_state("", {"create-symlinks", "--container-spec", path, "--link=a::/b"}).status, 0);
  EXPECT_EQ(std::filesystem::read_symlink(image.root_directory() / "b"), "a");
}

TEST(HookCommand, CreatesAndReplacesLinks) {
  const TestImage image;
  image.make_directory("usr/lib64");
  image.make_symlink("usr/lib64", "lib64");  // UsrMerge
  image.add_file("usr/lib64/libcuda.so", "a file of the image's");
  const std::vector<std::string> arguments{"create-symlinks", "--link", "libcuda.so.1::/lib64/libcuda.so",
                                           "--link", "/abs/target::new/directory/x"};
  EXPECT_EQ(image.run_hook(arguments).status, 0);
  const auto inode = [&] {
    struct stat status{};
    EXPECT_EQ(::lstat((image.root_directory() / "usr/lib64/libcuda.so").c_str(), &status), 0);
    return status.st_ino;
  };
  const auto first = inode();
  EXPECT_EQ(image.run_hook(arguments).status, 0);
  EXPECT_EQ(inode(), first) << "one that is right is left alone";
  EXPECT_EQ(std::filesystem::read_symlink(image.root_directory() / "usr/lib64/libcuda.so"), "libcuda.so.1");
  EXPECT_EQ(std::filesystem::read_symlink(image.root_directory() / "new/directory/x"), "/abs/target");
  EXPECT_THAT(image.leftover_files(), IsEmpty());
}

TEST(HookCommand, ChmodChangesDirectoriesOfTheContainer) {
  const TestImage image;
  image.make_directory("dev/dri");
  image.add_file("dev/file");
  image.make_symlink(image.outside_directory() / "directory", "dev/out");
  EXPECT_EQ(image
                .run_hook({"chmod", "--mode", "711", "--path", "/dev/dri", "--path", "/dev/none", "--path",
                           "/dev/file", "--path", "/dev/out"})
                .status,
            0);
  struct stat status{};
  ASSERT_EQ(::stat((image.root_directory() / "dev/dri").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0711u);
  EXPECT_TRUE(image.outside_is_untouched());
}

TEST(DeviceParams, ChangesOneLine) {
  EXPECT_EQ(without_device_modification("A: 1\nModifyDeviceFiles: 1\nB: 2\n"),
            "A: 1\nModifyDeviceFiles: 0\nB: 2\n");
  EXPECT_EQ(without_device_modification("ModifyDeviceFiles: 1"), "ModifyDeviceFiles: 0\n");
  EXPECT_EQ(without_device_modification("ModifyDeviceFiles: 0\n"), std::nullopt);
  EXPECT_EQ(without_device_modification("NotModifyDeviceFiles: 1\n"), std::nullopt);
  EXPECT_EQ(without_device_modification(""), std::nullopt);
}

}  // namespace
}  // namespace gpulet::hook
