// Which process is taken for the daemon of a pipe directory, which containers can write.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "mps/control_program.h"
#include "mps/test_mps_node.h"

namespace gpulet::mps {
namespace {

// The name and the variable of a daemon, as a container's process may have them.
TEST(MpsDaemonProcess, IgnoresALookAlikeInAnotherPidNamespace) {
  if (!has_capability(CAP_SYS_ADMIN)) GTEST_SKIP() << "needs CAP_SYS_ADMIN";
  TestMpsNode node;
  const std::string program = node.root.mps_root() + "/nvidia-cuda-mps-control";
  std::filesystem::create_directories(node.root.mps_root());
  std::filesystem::copy_file("/bin/sleep", program);
  const std::string variable = "CUDA_MPS_PIPE_DIRECTORY=" + node.pipes();
  std::filesystem::create_directories(node.pipes());
  for (const bool contained : {false, true}) {
    std::array<int, 2> ends;
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    const pid_t engine = ::fork();
    if (engine == 0) {
      if (contained && ::unshare(CLONE_NEWPID) != 0) ::_exit(2);
      const pid_t process = ::fork();
      if (process == 0) {
        ::execle(program.c_str(), program.c_str(), "1000", nullptr,
                 std::array<const char*, 2>{variable.c_str(), nullptr}.data());
        ::_exit(2);
      }
      static_cast<void>(::write(ends[1], &process, sizeof process) < 0);
      ::waitpid(process, nullptr, 0);
      ::_exit(0);
    }
    pid_t process = 0;
    ASSERT_EQ(::read(ends[0], &process, sizeof process), static_cast<ssize_t>(sizeof process));
    const std::string link = "/proc/" + std::to_string(process) + "/exe";
    std::error_code ignored;
    ASSERT_TRUE(
        node.wait_until([&] { return std::filesystem::read_symlink(link, ignored).string() == program; }));
    EXPECT_TRUE(write_file_atomic(node.pipes() + "/nvidia-cuda-mps-control.pid", std::to_string(process)));
    EXPECT_EQ(DaemonProcess::find_daemon_process(node.pipes()).has_value(), !contained);
    ::kill(process, SIGKILL);
    ::waitpid(engine, nullptr, 0);
    ::close(ends[0]);
    ::close(ends[1]);
  }
}

TEST(MpsDaemonProcess, StartTimeIsThatOfTheProcess) {
  const auto own = process_start_time(::getpid());
  ASSERT_TRUE(own);
  std::array<char, 16> name{};
  ::prctl(PR_GET_NAME, name.data());
  ::prctl(PR_SET_NAME, "a) S 1 (b");  // what separates the fields
  EXPECT_EQ(process_start_time(::getpid()), own);
  ::prctl(PR_SET_NAME, name.data());
  const auto child = Process::spawn({.program = "/bin/sleep", .arguments = {"sleep", "1000"}});
  ASSERT_TRUE(child);
  const auto started = process_start_time((*child)->pid());
  ASSERT_TRUE(started);
  EXPECT_GE(*started, *own);
  EXPECT_EQ(process_start_time((*child)->pid()), started);
  (*child)->send_signal(SIGKILL);
  ASSERT_TRUE((*child)->wait_for_exit(std::chrono::seconds(10)));
  EXPECT_EQ(process_start_time((*child)->pid()), std::nullopt);
}

TEST(MpsDaemonProcess, IgnoresAPidFileOfAnotherProcess) {
  TestMpsNode node;
  EXPECT_EQ(DaemonProcess::find_daemon_process(node.pipes()).error().code(), Code::kNotFound);
  for (const std::string& text : {std::to_string(::getpid()), std::string("1"), std::string("x"),
                                  std::string("-1"), std::string("99999999999999999999")}) {
    ASSERT_TRUE(write_file_atomic(node.pipes() + "/nvidia-cuda-mps-control.pid", text));
    EXPECT_EQ(DaemonProcess::find_daemon_process(node.pipes()).error().code(), Code::kNotFound) << text;
  }
}

TEST(MpsDaemonProcess, IgnoresAPidFileThatIsAPipeOrALink) {
  TestMpsNode node;
  const std::string path = node.pipes() + "/nvidia-cuda-mps-control.pid";
  ASSERT_TRUE(make_directories(node.pipes()));
  ASSERT_EQ(::mkfifo(path.c_str(), 0666), 0);
  EXPECT_FALSE(DaemonProcess::find_daemon_process(node.pipes()));
  const FileDescriptor writer(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(DaemonProcess::find_daemon_process(node.pipes()));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/zero", path);
  EXPECT_FALSE(DaemonProcess::find_daemon_process(node.pipes()));
}

}  // namespace
}  // namespace gpulet::mps
