#include "web/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tuple>
#include <vector>

namespace gpulet::web {
namespace {

// In a process of its own, as a death test is: enters the sandbox, does `attempt`, and ends well if it still
// lives.
template <class Attempt>
[[noreturn]] void inside(Attempt attempt) {
  const auto entered = enter_sandbox(::getppid(), 80);
  if (!entered) ::_exit(3);
  attempt();
  ::_exit(0);
}

TEST(Sandbox, ServingOnOpenSocketsWorksInIt) {
  EXPECT_EXIT(
      {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) ::_exit(4);
        inside([&] {
          std::vector<std::string> texts;
          for (int i = 0; i < 1000; ++i) texts.emplace_back(10'000, 'x');  // beyond what malloc maps at once
          char byte = 0;
          if (::send(pair[0], "x", 1, MSG_NOSIGNAL) != 1 || ::recv(pair[1], &byte, 1, 0) != 1) ::_exit(5);
          if (byte != 'x') ::_exit(6);
        });
      },
      testing::ExitedWithCode(0), "");
}

TEST(Sandbox, EverythingElseEndsTheProcess) {
  static constexpr sockaddr kNowhere{};
  const auto killed = testing::KilledBySignal(SIGSYS);
  EXPECT_EXIT(inside([] { ::open("/etc/passwd", O_RDONLY); }), killed, "");
  EXPECT_EXIT(inside([] { ::open("/dev/null", O_RDONLY); }), killed, "");
  EXPECT_EXIT(inside([] { ::socket(AF_INET, SOCK_STREAM, 0); }), killed, "");
  EXPECT_EXIT(inside([] { static_cast<void>(::connect(3, &kNowhere, sizeof kNowhere)); }), killed, "");
  EXPECT_EXIT(inside([] { static_cast<void>(::bind(3, &kNowhere, sizeof kNowhere)); }), killed, "");
  EXPECT_EXIT(inside([] { ::execl("/bin/true", "true", nullptr); }), killed, "");
  EXPECT_EXIT(inside([] { static_cast<void>(::fork()); }), killed, "");
  EXPECT_EXIT(inside([] { ::kill(::getppid(), 0); }), killed, "");
  EXPECT_EXIT(inside([] { ::ptrace(PTRACE_TRACEME); }), killed, "");
  EXPECT_EXIT(inside([] { std::ignore = ::setuid(0); }), killed, "");
  EXPECT_EXIT(inside([] { std::ignore = ::chroot("/"); }), killed, "");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;
  EXPECT_EXIT(
      inside([] { static_cast<void>(::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, kAnonymous, -1, 0)); }),
      killed, "");
  EXPECT_EXIT(inside([] { static_cast<void>(::mprotect(nullptr, 4096, PROT_EXEC)); }), killed, "");
#endif
}

TEST(Sandbox, AChildWhoseAgentIsGoneDoesNotGoOn) {
  EXPECT_EXIT(::_exit(enter_sandbox(::getppid() + 1, 80) ? 0 : 7), testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace gpulet::web
