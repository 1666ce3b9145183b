#include "base/driver_root.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <stdlib.h>

#include <filesystem>

#include "base/test_foreign_root.h"

namespace gpulet {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DriverRootTest : public testing::Test {
 protected:
  DriverRootTest() {
    std::string pattern = testing::TempDir() + "gpulet-root-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~DriverRootTest() override { std::filesystem::remove_all(directory_); }

  static ProgramOutput run(const DriverProgram& found, const std::string& argument) {
    auto arguments = found.arguments;
    arguments.push_back(argument);
    return run_to_end({.program = found.program,
                       .arguments = arguments,
                       .environment = found.environment,
                       .bind_mounts = found.bind_mounts,
                       .root = found.root});
  }

  std::string directory_;
};

TEST_F(DriverRootTest, ParsesTheInterpreterOfPrograms) {
  EXPECT_EQ(parse_interpreter("#! /bin/sh -e\n").value(), "/bin/sh");
  EXPECT_EQ(parse_interpreter("#!/bin/sh\nexit 0\n").value(), "/bin/sh");
  const auto program = read_prefix("/bin/echo", 4096);
  ASSERT_TRUE(program);
  EXPECT_THAT(parse_interpreter(*program).value(), AllOf(HasSubstr("/lib"), HasSubstr("ld-")));
  for (const std::size_t length : {0u, 3u, 63u, 64u, 100u, 200u})
    EXPECT_FALSE(parse_interpreter(std::string_view(*program).substr(0, length))) << length;
  EXPECT_FALSE(parse_interpreter("a text"));
}

TEST_F(DriverRootTest, StartsAProgramOfAnotherGlibcByChroot) {
  if (!has_capability(CAP_SYS_CHROOT)) GTEST_SKIP() << "needs CAP_SYS_CHROOT";
  const ForeignRoot root(directory_);
  root.install_program("/bin/echo", "/usr/bin/nvidia-smi");
  const auto found = find_driver_program(directory_, "nvidia-smi");
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_EQ(found->path, directory_ + "/usr/bin/nvidia-smi");
  EXPECT_EQ(found->root, directory_);
  EXPECT_EQ(found->program, "/usr/bin/nvidia-smi");
  EXPECT_THAT(found->arguments, ElementsAre("nvidia-smi"));
  const auto output = run(*found, "hello");
  EXPECT_TRUE(output.succeeded) << output.text;
  EXPECT_EQ(output.text, "hello\n");
}

TEST_F(DriverRootTest, StartsAProgramOfAnotherGlibcByItsLoader) {
  const ForeignRoot root(directory_);
  root.install_program("/bin/echo", "/usr/bin/nvidia-smi");
  const auto found = find_driver_program(directory_, "nvidia-smi", ChrootRule::kNever);
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_THAT(found->root, IsEmpty());
  EXPECT_EQ(found->arguments.back(), directory_ + "/usr/bin/nvidia-smi");
  const auto output = run(*found, "hello");
  EXPECT_TRUE(output.succeeded) << output.text;
  EXPECT_EQ(output.text, "hello\n");
  // What the two ways avoid: this system's loader with that root's libraries.
  const auto mixed =
      run_to_end({.program = found->path,
                  .arguments = {"nvidia-smi", "hello"},
                  .environment = {"LD_LIBRARY_PATH=" + directory_ + "/usr/lib/" GPULET_TRIPLET}});
  EXPECT_FALSE(mixed.succeeded);
  EXPECT_THAT(mixed.text, HasSubstr("GLIBC_"));
}

TEST_F(DriverRootTest, StartsAProgramAsItIsWithoutALoaderInTheRoot) {
  ASSERT_TRUE(write_file_atomic(directory_ + "/usr/local/glibc/usr/lib/libnvidia-ml.so.1", ""));
  std::filesystem::create_directories(directory_ + "/home/kubernetes/bin/nvidia/bin");
  std::filesystem::copy_file("/bin/echo", directory_ + "/home/kubernetes/bin/nvidia/bin/nvidia-smi");
  const auto found = find_driver_program(directory_, "nvidia-smi");
  ASSERT_TRUE(found) << found.error().full_message();
  EXPECT_THAT(found->root, IsEmpty());
  EXPECT_EQ(found->program, found->path);
  EXPECT_THAT(found->environment, Contains("LD_LIBRARY_PATH=" + directory_ + "/usr/local/glibc/usr/lib"));
  EXPECT_EQ(run(*found, "hello").text, "hello\n");
}

TEST_F(DriverRootTest, FindsProgramsBelowTheRootFirst) {
  const auto system = find_driver_program("/", "env");
  ASSERT_TRUE(system) << system.error().full_message();
  EXPECT_EQ(system->path, "/usr/bin/env");
  EXPECT_THAT(system->root, IsEmpty());
  EXPECT_EQ(find_driver_program(directory_, "env")->path, "/usr/bin/env");
  EXPECT_EQ(find_driver_program(directory_, "no-such-program").error().code(), Code::kNotFound);
}

TEST_F(DriverRootTest, FindsTheSameDirectoryInTheRoot) {
  std::filesystem::create_directories(directory_ + "/run/nvidia/mps");
  std::filesystem::create_directories(directory_ + "/mps");
  const std::vector<std::string> candidates{"/none", "/mps", "/run/nvidia/mps"};
  EXPECT_EQ(find_path_in_root(directory_, directory_ + "/run/nvidia/mps", candidates), "/run/nvidia/mps");
  EXPECT_EQ(find_path_in_root(directory_, testing::TempDir(), candidates), std::nullopt);
  EXPECT_EQ(find_path_in_root(directory_, directory_ + "/none", candidates), std::nullopt);
}

TEST_F(DriverRootTest, ChildMountsAreItsOwn) {
  if (!has_capability(CAP_SYS_ADMIN)) GTEST_SKIP() << "needs CAP_SYS_ADMIN";
  std::filesystem::create_directories(directory_ + "/empty");
  ASSERT_TRUE(write_file_atomic(directory_ + "/full/file", "text"));
  ProcessOptions options{.program = "/bin/cat", .arguments = {"cat", directory_ + "/empty/file"}};
  options.bind_mounts = {{directory_ + "/full", directory_ + "/empty"}};
  EXPECT_EQ(run_to_end(options).text, "text");
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/empty/file"));
  options.bind_mounts = {{directory_ + "/none", directory_ + "/empty"}};
  EXPECT_EQ(Process::spawn(options).error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace gpulet
