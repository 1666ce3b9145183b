#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/file.h"

namespace gpulet {
namespace {

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string pattern = testing::TempDir() + "gpulet-file-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(FileTest, AtomicWriteLeavesNoTemporaryFile) {
  const std::string path = directory_ + "/a/b/file";
  ASSERT_TRUE(write_file_atomic(path, "one"));
  ASSERT_TRUE(write_file_atomic(path, "two", 0600));
  EXPECT_EQ(read_file(path).value(), "two");
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(RootDirectory::open_root(directory_ + "/a/b")->list_directory("/").value(),
            (std::vector<std::string>{"file"}));
}

TEST_F(FileTest, ReadStopsAtItsLimit) {
  std::ofstream(directory_ + "/big") << std::string(100, 'x');
  EXPECT_EQ(read_file(directory_ + "/big", 99).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(read_file(directory_ + "/big", 100));
  EXPECT_EQ(read_file(directory_ + "/none").error().code(), Code::kNotFound);
}

TEST_F(FileTest, PrefixHasAtMostTheGivenLength) {
  const std::string path = directory_ + "/prefix";
  ASSERT_TRUE(write_file_atomic(path, "0123456789"));
  EXPECT_EQ(read_prefix(path, 4).value(), "0123");
  EXPECT_EQ(read_prefix(path, 100).value(), "0123456789");
  EXPECT_EQ(read_prefix(directory_ + "/none", 4).error().code(), Code::kNotFound);
  EXPECT_FALSE(read_prefix(directory_, 4)) << "a directory";
}

TEST_F(FileTest, CreatesACharacterDeviceBelowTheRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs CAP_MKNOD";
  std::filesystem::create_directories(directory_ + "/dev");
  const auto root = RootDirectory::open_root(directory_);
  const mode_t before = ::umask(077);
  const auto made = root->create_character_device("/dev/nvidia-caps/nvidia-cap1", makedev(1, 3), 0444);
  ::umask(before);
  ASSERT_TRUE(made) << made.error().full_message();
  EXPECT_EQ(root->character_device("/dev/nvidia-caps/nvidia-cap1").value(), makedev(1, 3));
  struct stat status{};
  ASSERT_EQ(::stat((directory_ + "/dev/nvidia-caps/nvidia-cap1").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0444u);
  const auto code_of = [&](const std::string& path) {
    return root->create_character_device(path, makedev(1, 3), 0666).error().code();
  };
  EXPECT_EQ(code_of("/dev/nvidia-caps/nvidia-cap1"), Code::kFailedPrecondition);
  EXPECT_EQ(code_of("/none/at/all"), Code::kNotFound);
  std::filesystem::create_directory_symlink(directory_ + "/dev", directory_ + "/link");
  std::filesystem::create_symlink("/dev/elsewhere", directory_ + "/dev/nvidia-uvm");
  EXPECT_NE(code_of("/link/nvidia0"), Code::kFailedPrecondition);
  EXPECT_EQ(code_of("/dev/nvidia-uvm"), Code::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/dev/nvidia0"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/dev/elsewhere"));
}

TEST_F(FileTest, LinksNeverEscapeTheRoot) {
  std::filesystem::create_directories(directory_ + "/root/etc");
  std::ofstream(directory_ + "/outside") << "outside";
  std::ofstream(directory_ + "/root/etc/inside") << "inside";
  std::filesystem::create_symlink("/etc/inside", directory_ + "/root/absolute");
  std::filesystem::create_symlink("../../outside", directory_ + "/root/etc/up");
  const auto root = RootDirectory::open_root(directory_ + "/root").value();
  EXPECT_EQ(root.read_text_file("/absolute").value(), "inside");
  EXPECT_EQ(root.resolve("absolute").value(), "/etc/inside");
  EXPECT_EQ(root.read_text_file("/etc/up").error().code(), Code::kNotFound);
  EXPECT_EQ(root.read_text_file("/../../outside").error().code(), Code::kNotFound);
  EXPECT_EQ(root.character_device("/etc/inside").error().code(), Code::kFailedPrecondition);
}

}  // namespace

// Without openat2 a path must resolve as with it, in random trees and for random paths from a seed.

namespace {

namespace fs = std::filesystem;

struct Outcome {
  int error = 0;
  dev_t device = 0;
  ino_t inode = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome outcome_of(int fd) {
  if (fd < 0) return {errno};
  const FileDescriptor owned(fd);
  struct stat status{};
  EXPECT_EQ(::fstat(fd, &status), 0);
  return {0, status.st_dev, status.st_ino};
}

bool kernel_has_openat2() {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  const FileDescriptor fd(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof how)));
  return fd.is_open();
}

class OpenInRootTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "gpulet-root-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    fs::create_directories(directory_ / "root/a/b/c");
    std::ofstream(directory_ / "root/a/file") << "x";
    std::ofstream(directory_ / "secret") << "s";
    root_ = FileDescriptor(::open((directory_ / "root").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path directory_;
  FileDescriptor root_;
};

TEST_F(OpenInRootTest, StepwiseWalkMatchesOpenat2) {
  if (!kernel_has_openat2()) GTEST_SKIP() << "this kernel has no openat2 to compare with";
  const bool held = rc::check([this] {
    const auto part =
        rc::gen::element<std::string>("a", "b", "c", "file", "..", ".", "", "l0", "l1", "l2", "none");
    const auto path = rc::gen::map(
        rc::gen::pair(rc::gen::arbitrary<bool>(), rc::gen::container<std::vector<std::string>>(part)),
        [](const auto& made) {
          std::string text = made.first ? "/" : "";
          for (const std::string& each : made.second) text += each + "/";
          if (text.size() > 1 && made.second.size() % 3 != 0) text.pop_back();
          return text.empty() ? std::string(".") : text;
        });
    for (const char* name : {"root/l0", "root/a/l1", "root/a/b/l2"}) {
      fs::remove(directory_ / name);
      fs::create_symlink(*path, directory_ / name);
    }
    const std::string asked = *path;
    const int flags = *rc::gen::element(O_PATH, O_PATH | O_NOFOLLOW, O_PATH | O_DIRECTORY, O_RDONLY,
                                        O_RDONLY | O_DIRECTORY, O_RDONLY | O_NOFOLLOW);
    const std::uint64_t more = *rc::gen::element<std::uint64_t>(0, RESOLVE_NO_SYMLINKS);
    const Outcome kernel = outcome_of(open_in_root(root_.get(), asked, flags, more));
    const Outcome steps = outcome_of(open_in_root_by_steps(root_.get(), asked, flags, more));
    RC_LOG() << asked << " flags " << flags << ": kernel errno " << kernel.error << ", steps errno "
             << steps.error;
    RC_ASSERT(kernel == steps);
  });
  EXPECT_TRUE(held);
}

TEST_F(OpenInRootTest, StepwiseWalkStaysInsideTheRoot) {
  fs::create_symlink(directory_ / "secret", directory_ / "root/absolute");
  fs::create_symlink("../../../../../../../../.." + (directory_ / "secret").string(),
                     directory_ / "root/a/up");
  fs::create_symlink("loop", directory_ / "root/loop");
  for (const char* path : {"absolute", "a/up", "../secret", "/../../secret", "a/b/../../../secret"}) {
    EXPECT_EQ(open_in_root_by_steps(root_.get(), path, O_RDONLY, 0), -1) << path;
    EXPECT_EQ(errno, ENOENT) << path;
  }
  EXPECT_EQ(open_in_root_by_steps(root_.get(), "loop", O_RDONLY, 0), -1);
  EXPECT_EQ(errno, ELOOP);
}

}  // namespace
}  // namespace gpulet
