#include "hook/confinement.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>

#include "hook/test_image.h"

#ifdef GPULET_HOOK_PROBE  // static, therefore not built with sanitizers

namespace gpulet::hook {
namespace {

using testing::HasSubstr;
using testing::Not;

class Confinement : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root may create these mounts here";
    image_.make_directory("proc");
    image_.add_file("file", "the image's");
    image_.make_directory("closed");
    image_.add_file("closed/file");
    ASSERT_EQ(::mknod((image_.root_directory() / "null").c_str(), S_IFCHR | 0666, makedev(1, 3)), 0);
    std::filesystem::copy_file(GPULET_HOOK_PROBE, image_.root_directory() / "program");
    for (const char* path : {"closed/file", "closed"}) {
      ASSERT_EQ(::chown((image_.root_directory() / path).c_str(), 1000, 1000), 0);
      ASSERT_EQ(::chmod((image_.root_directory() / path).c_str(), 0700), 0);
    }
  }

  Result<ConfinedRun> run_probe(const std::string& how = {},
                                std::chrono::milliseconds limit = std::chrono::seconds(20)) const {
    GPULET_TRY_ASSIGN(const Rootfs root, Rootfs::open_root(image_.root_directory()));
    GPULET_TRY_ASSIGN(const FileDescriptor program, sealed_ldconfig(GPULET_HOOK_PROBE));
    ConfinedProgram confined;
    confined.program = program.get();
    confined.arguments = {"probe", how};
    confined.scratch = "/proc";
    confined.time_limit = limit;
    return run_confined(root, confined);
  }

  TestImage image_;
};

TEST_F(Confinement, PermitsOnlyReading) {
  const int stray = ::open("/dev/null", O_RDONLY);  // not closed on exec
  ASSERT_GE(stray, 0);
  const auto ran = run_probe();
  ::close(stray);
  ASSERT_TRUE(ran.has_value()) << ran.error().full_message();
  for (const char* line : {"environment: none", "directory: /", "pid: 1", "seconds: 10", "read: yes",
                           "read of another user's: yes", "scratch: yes", "fsync: yes", "procfs: 2"})
    EXPECT_THAT(ran->output, HasSubstr(std::string(line) + "\n"));
  // EPERM: the filter.
  for (const char* what : {"capget", "chown", "mount", "unmount", "chroot", "socket", "ptrace", "unshare",
                           "fork", "handles", "kill", "bpf", "keyring", "memfd"})
    EXPECT_THAT(ran->output, HasSubstr(std::string(what) + ": 1\n"));
  // EROFS.
  for (const char* what : {"create", "overwrite", "rename", "unlink", "chmod"})
    EXPECT_THAT(ran->output, HasSubstr(std::string(what) + ": 30\n"));
  // EACCES: nodev, noexec.
  for (const char* what : {"device", "execute the image's"})
    EXPECT_THAT(ran->output, HasSubstr(std::string(what) + ": 13\n"));
  EXPECT_THAT(ran->output, Not(HasSubstr("descriptor")));
  EXPECT_EQ(::faccessat(ran->scratch.get(), "made", F_OK, 0), 0);
  EXPECT_TRUE(std::filesystem::is_empty(image_.root_directory() / "proc"));
  EXPECT_EQ(image_.read_text("file"), "the image's");
}

TEST_F(Confinement, KillsAProgramAtItsTimeLimit) {
  const auto ran = run_probe("spin", std::chrono::milliseconds(100));
  ASSERT_FALSE(ran.has_value());
  EXPECT_EQ(ran.error().code(), Code::kDeadlineExceeded);
  // No process is left.
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST_F(Confinement, BoundsOutputAndMemory) {
  const auto flood = run_probe("flood");
  ASSERT_FALSE(flood.has_value());
  EXPECT_EQ(flood.error().code(), Code::kInvalidArgument);
  const auto complaints = run_probe("complain");
  ASSERT_TRUE(complaints.has_value()) << complaints.error().full_message();
  EXPECT_EQ(complaints->error_output.size(), 4096u);
  const auto eaten = run_probe("eat");
  ASSERT_TRUE(eaten.has_value()) << eaten.error().full_message();
  EXPECT_THAT(eaten->output, HasSubstr("memory: bounded\nfile: bounded\n"));
}

TEST_F(Confinement, ReportsFailureAndSignals) {
  const auto crash = run_probe("crash");
  ASSERT_FALSE(crash.has_value());
  EXPECT_THAT(crash.error().full_message(), HasSubstr("ended by signal"));
  const auto fail = run_probe("fail");
  ASSERT_FALSE(fail.has_value());
  EXPECT_EQ(fail.error().code(), Code::kFailedPrecondition);
  EXPECT_THAT(fail.error().full_message(), HasSubstr("failed with status 3: no"));
  EXPECT_THAT(fail.error().full_message(), Not(HasSubstr("\x1b")));
  EXPECT_THAT(fail.error().full_message(), Not(HasSubstr("more")));
}

TEST_F(Confinement, ReportsAProgramThatCannotStart) {
  const auto root = Rootfs::open_root(image_.root_directory());
  ASSERT_TRUE(root.has_value());
  ConfinedProgram confined;
  const FileDescriptor directory(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  confined.program = directory.get();
  confined.arguments = {"probe"};
  confined.scratch = "/proc";
  const auto ran = run_confined(*root, confined);
  ASSERT_FALSE(ran.has_value());
  EXPECT_THAT(ran.error().full_message(), HasSubstr("cannot start it"));
  confined.scratch = "/nowhere";
  const auto nowhere = run_confined(*root, confined);
  ASSERT_FALSE(nowhere.has_value());
  EXPECT_THAT(nowhere.error().full_message(), HasSubstr("cannot find a directory for output"));
}

TEST_F(Confinement, SealsTheCopy) {
  const auto copy = sealed_ldconfig(GPULET_HOOK_PROBE);
  ASSERT_TRUE(copy.has_value()) << copy.error().full_message();
  EXPECT_LT(::write(copy->get(), "x", 1), 0);
  EXPECT_NE(::ftruncate(copy->get(), 0), 0);
  EXPECT_EQ(::fcntl(copy->get(), F_GET_SEALS), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  EXPECT_EQ(TestImage::file_content("/proc/self/fd/" + std::to_string(copy->get())),
            TestImage::file_content(GPULET_HOOK_PROBE));
}

}  // namespace
}  // namespace gpulet::hook

#endif
