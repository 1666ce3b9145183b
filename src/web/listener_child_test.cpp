#include "web/listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <tuple>
#include <vector>

#include "http/certificate.h"
#include "http/test_client.h"

namespace gpulet::web {
namespace {

// In a child process, as a death test: enters the sandbox, runs `attempt`, and exits with 0 if it is still
// alive.
template <class Attempt>
[[noreturn]] void inside(Attempt attempt) {
  const auto entered = enter_sandbox(::getppid(), 80);
  if (!entered) ::_exit(3);
  attempt();
  ::_exit(0);
}

TEST(Sandbox, ServesOnOpenSockets) {
  EXPECT_EXIT(
      {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) ::_exit(4);
        inside([&] {
          std::vector<std::string> texts;
          for (int i = 0; i < 1000; ++i) texts.emplace_back(10'000, 'x');  // more than malloc maps at a time
          char byte = 0;
          if (::send(pair[0], "x", 1, MSG_NOSIGNAL) != 1 || ::recv(pair[1], &byte, 1, 0) != 1) ::_exit(5);
          if (byte != 'x') ::_exit(6);
        });
      },
      testing::ExitedWithCode(0), "");
}

TEST(Sandbox, OtherActionsKillTheProcess) {
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

// The child with its thread: `attempt` runs on the loop's thread and may use the other.
[[noreturn]] void inside_with_worker(const std::function<void(http::PasswordWorker&)>& attempt) {
  ::mallopt(M_ARENA_MAX, 1);  // as run_listener_child() does
  if (!http::initialize_openssl()) ::_exit(5);
  EpollLoop loop;
  std::unique_ptr<http::PasswordWorker> worker;
  const auto entered = enter_sandbox(::getppid(), 80, [&]() -> Status {
    GPULET_TRY_ASSIGN(worker, http::PasswordWorker::start_worker(loop));
    return {};
  });
  if (!entered) ::_exit(3);
  attempt(*worker);
  loop.run_loop();
  ::_exit(4);
}

// A thread that was started on the way in has no more rights, and needs none for what it does.
TEST(Sandbox, HoldsForItsThreadsToo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process without heaps of earlier threads
  const auto run_on_thread = [](std::function<bool()> check) {
    inside_with_worker([&](http::PasswordWorker& worker) {
      worker.run_check(std::move(check), [](http::CheckRunner::Outcome) { ::_exit(0); });
    });
  };
  const auto killed = testing::KilledBySignal(SIGSYS);
  EXPECT_EXIT(run_on_thread([] { return ::open("/dev/null", O_RDONLY) < 0; }), killed, "");
  EXPECT_EXIT(run_on_thread([] { return ::socket(AF_INET, SOCK_STREAM, 0) < 0; }), killed, "");
  EXPECT_EXIT(run_on_thread([] { return ::fork() < 0; }), killed, "");
  const auto check_password = [](http::PasswordWorker& worker) {
    static http::PasswordChecker passwords({{"alice", http::secret_hash()}}, &worker);
    passwords.check_password("Basic YWxpY2U6c2VjcmV0", "here", Time{}, [](auto verdict) {
      ::_exit(verdict == http::PasswordChecker::Verdict::kAccepted ? 0 : 6);
    });
  };
  EXPECT_EXIT(inside_with_worker(check_password), testing::ExitedWithCode(0), "");
  const auto no_thread = [] { return Status(fail(Code::kUnavailable, "none")); };
  EXPECT_EXIT(::_exit(enter_sandbox(::getppid(), 80, no_thread) ? 0 : 7), testing::ExitedWithCode(7), "");
}

// An attacker in this process has only its open connections.
TEST(Sandbox, NoOtherSocketIsReachable) {
  static constexpr sockaddr_in kSomewhere{
      .sin_family = AF_INET, .sin_port = 80, .sin_addr = {}, .sin_zero = {}};
  static const auto* kAddress = reinterpret_cast<const sockaddr*>(&kSomewhere);
  const auto killed = testing::KilledBySignal(SIGSYS);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  EXPECT_EXIT(inside([&] { ::sendto(fd, "x", 1, 0, kAddress, sizeof kSomewhere); }), killed, "");
  EXPECT_EXIT(inside([&] { ::sendto(fd, "x", 1, MSG_FASTOPEN, nullptr, 0); }), killed, "");
  EXPECT_EXIT(inside([&] {
                iovec part{const_cast<char*>("x"), 1};
                msghdr message{};
                message.msg_name = const_cast<sockaddr*>(kAddress);
                message.msg_namelen = sizeof kSomewhere;
                message.msg_iov = &part;
                message.msg_iovlen = 1;
                ::sendmsg(fd, &message, MSG_FASTOPEN | MSG_NOSIGNAL);
              }),
              killed, "");
  EXPECT_EXIT(inside([&] { ::shutdown(fd, SHUT_RDWR); }), killed, "");
  EXPECT_EXIT(inside([&] { ::shutdown(fd, SHUT_RD); }), killed, "");
  ::close(fd);
}

// Nothing can be reached through a listening Unix socket either.
TEST(Sandbox, LocalSocketReachesNothing) {
  std::string directory = testing::TempDir() + "sandbox_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const auto listen_at = [&](const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (directory + "/" + name).copy(address.sun_path, sizeof address.sun_path - 1);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(fd, 1), 0);
    return std::pair(fd, address);
  };
  const auto [ours, our_address] = listen_at("ours");
  const auto [other, address] = listen_at("other");
  const auto* there = reinterpret_cast<const sockaddr*>(&address);
  const auto killed = testing::KilledBySignal(SIGSYS);
  EXPECT_EXIT(inside([&] { static_cast<void>(::connect(ours, there, sizeof address)); }), killed, "");
  EXPECT_EXIT(inside([&] { ::sendto(ours, "x", 1, 0, there, sizeof address); }), killed, "");
  EXPECT_EXIT(inside([&] {
                char byte = 0;
                iovec part{&byte, 1};
                msghdr message{};
                message.msg_iov = &part;
                message.msg_iovlen = 1;
                ::recvmsg(ours, &message, 0);  // recvmsg could receive a descriptor
              }),
              killed, "");
  EXPECT_EXIT(inside([&] {
                iovec part{const_cast<char*>("x"), 1};
                msghdr message{};
                message.msg_name = const_cast<sockaddr*>(there);
                message.msg_namelen = sizeof address;
                message.msg_iov = &part;
                message.msg_iovlen = 1;
                if (::sendmsg(ours, &message, MSG_NOSIGNAL) >= 0) ::_exit(9);
              }),
              testing::ExitedWithCode(0), "");
  EXPECT_EQ(::accept(other, nullptr, nullptr), -1);
  ::close(ours);
  ::close(other);
  std::filesystem::remove_all(directory);
}

// Every system call number of the kernel, with arguments that are harmless if the call is allowed.
TEST(Sandbox, OnlyListedSystemCallsAreAllowed) {
  constexpr long kLast = 470, kX32 = 0x40000000;
  std::set<long> allowed = {SYS_accept4,   SYS_recvfrom,      SYS_close,      SYS_read,
                            SYS_write,     SYS_epoll_ctl,     SYS_epoll_wait, SYS_epoll_pwait,
                            SYS_brk,       SYS_munmap,        SYS_mremap,     SYS_madvise,
                            SYS_futex,     SYS_exit,          SYS_exit_group, SYS_rt_sigreturn,
                            SYS_getrandom, SYS_clock_gettime, SYS_getpid,     SYS_restart_syscall,
                            SYS_sysinfo,   SYS_sendto,        SYS_sendmsg,    SYS_mmap};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  allowed.insert({SYS_mprotect, SYS_sched_yield, SYS_gettid, SYS_nanosleep, SYS_clock_nanosleep,
                  SYS_rt_sigprocmask, SYS_sigaltstack, SYS_getrusage, SYS_sched_getaffinity, SYS_prctl,
                  SYS_pipe, SYS_pipe2, SYS_rseq, SYS_gettimeofday, SYS_set_robust_list});
#endif
  std::vector<long> calls = {kX32 + SYS_write, kX32 + SYS_open};
  for (long call = 0; call <= kLast; ++call) {
    // The kernel exempts the two calls of uprobes (335, 336) from filters; they have no effect for others.
    if (allowed.count(call) == 0 && call != 335 && call != 336) calls.push_back(call);
  }
  for (const long call : calls) {
    const pid_t parent = ::getpid();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      if (!enter_sandbox(parent, 80)) ::_exit(3);
      ::syscall(call, -1L, -1L, -1L, -1L, -1L, -1L);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        << "call " << call << ", status " << status;
  }
}

TEST(Sandbox, ExitsIfTheAgentHasExited) {
  EXPECT_EXIT(::_exit(enter_sandbox(::getppid() + 1, 80) ? 0 : 7), testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace gpulet::web
