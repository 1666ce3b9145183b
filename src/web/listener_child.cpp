#include "web/listener.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <malloc.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <initializer_list>
#include <memory>
#include <optional>
#include <variant>

#include "base/process.h"
#include "http/access_gate.h"
#include "http/certificate.h"
#include "http/server.h"
#include "web/ipc_messages.h"
#include "web/router.h"

namespace gpulet::web {
namespace {

constexpr int kLastCapability = 63;  // the highest bit of the kernel's masks

// Enters an empty root: a read-only tmpfs in its own mount namespace, mounted over /proc, which exists
// everywhere. It is not visible outside this process.
bool empty_root() {
  if (::unshare(CLONE_NEWNS) != 0) return false;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY;
  if (::mount("none", "/proc", "tmpfs", kFlags, "size=4k,nr_inodes=1,mode=555") != 0) return false;
  if (::chdir("/proc") != 0) return false;
  // pivot_root onto itself, then detach the old root below: only the empty one remains.
  if (::syscall(SYS_pivot_root, ".", ".") == 0) {
    ::umount2(".", MNT_DETACH);
    return ::chdir("/") == 0;
  }
  return ::chroot(".") == 0 && ::chdir("/") == 0;
}

Status limit_resource(int resource, rlim_t value) {
  const rlimit limit{value, value};
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0)
    return fail(errno_error("setrlimit", errno));
  return {};
}

Status drop_user() {
  if (::geteuid() != 0) return {};
  if (::setgroups(0, nullptr) != 0) return fail(errno_error("setgroups", errno));
  if (::setresgid(kListenerUser, kListenerUser, kListenerUser) != 0)
    return fail(errno_error("setresgid", errno));
  if (::setresuid(kListenerUser, kListenerUser, kListenerUser) != 0)
    return fail(errno_error("setresuid", errno));
  return {};
}

void drop_bounding_set() {
  // This fails without CAP_SETPCAP, and no_new_privs makes the set ineffective anyway.
  for (int capability = 0; capability <= kLastCapability; ++capability)
    ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
}

Status drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> none{};
  if (::syscall(SYS_capset, &header, none.data()) != 0) return fail(errno_error("capset", errno));
  return {};
}

// The calls of an epoll loop on open sockets, TLS, malloc and process exit.
constexpr std::initializer_list<int> kAllowed = {
    SCMP_SYS(accept4),   SCMP_SYS(recvfrom),      SCMP_SYS(close),      SCMP_SYS(read),
    SCMP_SYS(write),     SCMP_SYS(epoll_ctl),     SCMP_SYS(epoll_wait), SCMP_SYS(epoll_pwait),
    SCMP_SYS(brk),       SCMP_SYS(munmap),        SCMP_SYS(mremap),     SCMP_SYS(madvise),
    SCMP_SYS(futex),     SCMP_SYS(exit),          SCMP_SYS(exit_group), SCMP_SYS(rt_sigreturn),
    SCMP_SYS(getrandom), SCMP_SYS(clock_gettime), SCMP_SYS(getpid),     SCMP_SYS(restart_syscall),
    SCMP_SYS(sysinfo),  // glibc's qsort reads the memory size
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// The calls of a sanitizer's runtime, and of the thread that it starts beside ours. No release is built with
// one.
constexpr std::initializer_list<int> kSanitizer = {
    SCMP_SYS(mmap),           SCMP_SYS(mprotect),
    SCMP_SYS(sched_yield),    SCMP_SYS(gettid),
    SCMP_SYS(nanosleep),      SCMP_SYS(clock_nanosleep),
    SCMP_SYS(rt_sigprocmask), SCMP_SYS(sigaltstack),
    SCMP_SYS(getrusage),      SCMP_SYS(sched_getaffinity),
    SCMP_SYS(prctl),          SCMP_SYS(pipe),
    SCMP_SYS(pipe2),          SCMP_SYS(rseq),
    SCMP_SYS(gettimeofday),   SCMP_SYS(set_robust_list),
};
#else
constexpr std::initializer_list<int> kSanitizer = {};
#endif

Status install_seccomp_filter() {
  const std::unique_ptr<void, void (*)(scmp_filter_ctx)> filter(::seccomp_init(SCMP_ACT_KILL_PROCESS),
                                                                ::seccomp_release);
  if (!filter) return fail(Code::kInternal, "cannot create a seccomp filter");
  auto checked = [](int result) -> Status {
    if (result < 0) return fail(errno_error("cannot set the seccomp filter", -result));
    return {};
  };
  // For every thread, also those that a library may have started before main().
  GPULET_TRY(checked(::seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1)));
  for (const auto& list : {kAllowed, kSanitizer}) {
    for (const int call : list)
      GPULET_TRY(checked(::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0)));
  }
  // Sending is allowed only on existing connections: not to an address, and not by TCP fast open, with which
  // a socket that was shut down could connect anywhere. Only the write side of a connection can be shut down.
  GPULET_TRY(
      checked(::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(sendto), 2,
                                 SCMP_A3(SCMP_CMP_MASKED_EQ, MSG_FASTOPEN, 0), SCMP_A4(SCMP_CMP_EQ, 0))));
  GPULET_TRY(checked(::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(sendmsg), 1,
                                        SCMP_A2(SCMP_CMP_MASKED_EQ, MSG_FASTOPEN, 0))));
  GPULET_TRY(checked(::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(shutdown), 1,
                                        SCMP_A1(SCMP_CMP_EQ, SHUT_WR))));
  if (kSanitizer.size() == 0) {
    // Memory for malloc: never executable, never file-backed.
    GPULET_TRY(checked(::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2,
                                          SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                                          SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS))));
  }
  return checked(::seccomp_load(filter.get()));
}

}  // namespace

Status enter_sandbox(pid_t parent, unsigned descriptors, const std::function<Status()>& start_threads) {
  static_cast<void>(empty_root());
  drop_bounding_set();
  GPULET_TRY(limit_resource(RLIMIT_NOFILE, descriptors));
  GPULET_TRY(limit_resource(RLIMIT_CORE, 0));
  GPULET_TRY(limit_resource(RLIMIT_FSIZE, 0));
  GPULET_TRY(drop_user());
  GPULET_TRY(drop_capabilities());
  // A change of user clears PR_SET_PDEATHSIG.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::prctl(PR_SET_DUMPABLE, 0) != 0) {
    return fail(errno_error("prctl", errno));
  }
  if (::getppid() != parent) return fail(Code::kFailedPrecondition, "the agent has exited");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail(errno_error("no_new_privs", errno));
  if (start_threads) GPULET_TRY(start_threads());
  GPULET_TRY(limit_resource(RLIMIT_NPROC, 0));
  return install_seccomp_filter();
}

// The child's side of listener.h.

namespace {

constexpr int kListeningFd = 3;
constexpr int kAgentSocketFd = 4;
constexpr int kLocalSocketFd = 5;
// The standard ones, the three above, the loop's two, and for each server one connection that is accepted
// before an older one is closed.
constexpr unsigned kMaxDescriptors = 10 + http::kMaxConnections + http::kMaxLocalConnections;

// Proxies and load balancers close connections that are silent for a minute, some for half a minute.
constexpr Duration kHeartbeat = std::chrono::seconds(15);
constexpr std::size_t kMaxTurnBytes = 1u << 20;  // read from the agent in one turn of the loop
constexpr Duration kReportDelay = std::chrono::milliseconds(50);
// Until a request for metrics that the agent does not write is answered: within a scrape's 10 s.
constexpr Duration kMetricsTimeout = std::chrono::seconds(5);

[[noreturn]] void exit_with_error(const Error& error) {
  const std::string text = error.full_message();
  static_cast<void>(::send(kAgentSocketFd, text.data(), text.size(), MSG_NOSIGNAL));
  ::_exit(1);
}

bool is_listening(int fd) {
  int yes = 0;
  socklen_t size = sizeof yes;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) == 0 && yes != 0;
}

// Reads the agent's messages, reports the number of subscribers, and exits with the agent.
class AgentMessages {
 public:
  AgentMessages(Loop& loop, Router& router, http::CheckRunner& passwords, bool network, bool local)
      : loop_(loop), router_(router), network_(network), local_(local), gate_(&passwords) {
    router_.subscribers().on_count_changed = [this] { report_subscribers(); };
    router_.on_metrics_wanted = [this] { request_metrics(); };
    reading_ = loop_.watch_descriptor(kAgentSocketFd, EPOLLIN, [this](std::uint32_t) { read_messages(); });
    send_heartbeat();
  }

 private:
  // Until the agent has no more, within a limit: however many clients there are, its pages arrive.
  void read_messages() {
    std::array<char, 65'536> buffer;
    for (std::size_t turn_bytes = 0; turn_bytes < kMaxTurnBytes;) {
      const ssize_t got = ::recv(kAgentSocketFd, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) ::_exit(0);
      turn_bytes += static_cast<std::size_t>(got);
      reader_.append_bytes({buffer.data(), static_cast<std::size_t>(got)});
      handle_messages();
    }
  }

  void handle_messages() {
    for (;;) {
      auto message = reader_.next_message();
      if (!message) exit_with_error(message.error());
      if (!*message) return;
      if (auto* frame = std::get_if<PagesMessage>(&**message)) {
        router_.publish_message(std::move(*frame), loop_.now());
        if (!router_.waits_for_metrics()) metrics_timeout_.reset();
      } else {
        start_servers(std::move(std::get<http::AccessRules>(**message)));
      }
    }
  }

  // No connection is accepted before the agent has sent the access rules.
  void start_servers(http::AccessRules access) {
    if (const auto set = gate_.set_rules(std::move(access)); !set) exit_with_error(set.error());
    if (server_) server_->drop_subscribers();
    if (!server_ && network_) server_.emplace(loop_, kListeningFd, router_, gate_);
    if (!local_server_ && local_)
      local_server_.emplace(loop_, kLocalSocketFd, router_, open_gate_, http::kLocalLimits);
  }

  // After a short delay, so that short-lived subscribers cost nothing; again if the agent does not read now.
  void report_subscribers() {
    if (error_lines_) return;
    error_lines_ = loop_.after(kReportDelay, [this] {
      error_lines_.reset();
      const char byte = encode_subscriber_count(router_.subscribers().subscriber_count());
      if (::send(kAgentSocketFd, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EAGAIN)
        report_subscribers();
    });
  }

  void request_metrics() {
    metrics_timeout_ = loop_.after(kMetricsTimeout, [this] { router_.give_up_on_metrics(); });
    send_metrics_request();
  }

  // Again if the agent does not read now.
  void send_metrics_request() {
    if (::send(kAgentSocketFd, &kMetricsWanted, 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EAGAIN)
      metrics_request_ = loop_.after(kReportDelay, [this] { send_metrics_request(); });
  }

  void send_heartbeat() {
    beating_ = loop_.after(kHeartbeat, [this] {
      router_.subscribers().publish_event(Router::heartbeat_event(), Router::heartbeat_event());
      send_heartbeat();
    });
  }

  Loop& loop_;
  Router& router_;
  bool network_, local_;
  http::AccessGate gate_, open_gate_;
  std::optional<http::Server> server_, local_server_;
  MessageReader reader_;
  Subscription reading_, error_lines_, beating_, metrics_timeout_, metrics_request_;
};

// The thread that checks passwords shares the heap: glibc would otherwise give it another, with a system call
// that the sandbox does not allow. Source: mallopt(3), M_ARENA_MAX.
void share_the_heap() { ::mallopt(M_ARENA_MAX, 1); }

// Documents of tens of KiB are freed between the small ones of the history, which stay for minutes and would
// fragment the heap. Each large document therefore gets its own pages, which are returned to the kernel with
// it. Source: mallopt(3), M_MMAP_THRESHOLD.
void keep_documents_out_of_the_heap() {
  constexpr int kDocumentBytes = 16 << 10;
  ::mallopt(M_MMAP_THRESHOLD, kDocumentBytes);
}

}  // namespace

void run_listener_child() {
  ::prctl(PR_SET_NAME, kListenerName);
  share_the_heap();
  keep_documents_out_of_the_heap();
  close_from(kLocalSocketFd + 1);
  const bool network = is_listening(kListeningFd), local = is_listening(kLocalSocketFd);
  ::signal(SIGPIPE, SIG_IGN);  // TLS writes to sockets that their clients have left
  const pid_t parent = ::getppid();
  EpollLoop loop;
  // The access rules, and with them the first use of OpenSSL, come when no file can be opened any more.
  if (const auto ready = http::initialize_openssl(); !ready) exit_with_error(ready.error());
  std::unique_ptr<http::PasswordWorker> passwords;
  const auto start_worker = [&]() -> Status {
    GPULET_TRY_ASSIGN(passwords, http::PasswordWorker::start_worker(loop));
    return {};
  };
  if (const auto entered = enter_sandbox(parent, kMaxDescriptors, start_worker); !entered)
    exit_with_error(entered.error());
  Router router;
  const AgentMessages messages(loop, router, *passwords, network, local);
  loop.run_loop();
  ::_exit(0);
}

}  // namespace gpulet::web
