#include "base/process.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace gpulet {
namespace {

constexpr unsigned kCloseRangeCloexec = 4;  // CLOSE_RANGE_CLOEXEC, of Linux 5.11
constexpr Duration kReapLimit = std::chrono::seconds(2);

int highest_descriptor() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > 65'536) return 65'536;
  return static_cast<int>(limit.rlim_cur);
}

// The child's data between fork and exec, prepared before because the child must not allocate.
struct SpawnPlan {
  std::vector<char*> arguments, environment;
  std::vector<std::pair<int, int>> descriptors;
  std::vector<std::pair<const char*, const char*>> bind_mounts;
  const char* program;
  const char* root;               // nullptr: the parent's
  const char* working_directory;  // nullptr: the parent's
  pid_t parent;
  bool dies_with_parent, own_group;
  int null_device;
  int failure;  // the pipe that reports a Failure
};

// Why the child failed before exec; errno 0 if it did not.
enum class SpawnStep { kProgram, kWorkingDirectory, kMounts };
struct Failure {
  int error = 0;
  SpawnStep step = SpawnStep::kProgram;
};

[[noreturn]] void report_spawn_failure(const SpawnPlan& plan, SpawnStep step = SpawnStep::kProgram) {
  const Failure failure{errno, step};
  [[maybe_unused]] auto written = ::write(plan.failure, &failure, sizeof failure);
  ::_exit(127);
}

void reset_signals() {
  struct sigaction standard{};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

void mark_all_close_on_exec() {
  if (::syscall(SYS_close_range, 3u, ~0u, kCloseRangeCloexec) == 0) return;
  for (int fd = 3, end = highest_descriptor(); fd < end; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

// The mounts of the child go with it: none reaches the parent's namespace.
bool add_bind_mounts(const SpawnPlan& plan) {
  if (plan.bind_mounts.empty()) return true;
  if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0)
    return false;
  for (const auto& [directory, where] : plan.bind_mounts) {
    if (::mount(directory, where, nullptr, MS_BIND | MS_REC, nullptr) != 0) return false;
  }
  return true;
}

// Runs in the child: async-signal-safe calls only.
[[noreturn]] void exec_program(SpawnPlan& plan) {
  if (plan.dies_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) report_spawn_failure(plan);
    if (::getppid() != plan.parent) ::_exit(127);  // the parent exited before PR_SET_PDEATHSIG
  }
  if (plan.own_group && ::setpgid(0, 0) != 0) report_spawn_failure(plan);
  if (plan.working_directory != nullptr && ::chdir(plan.working_directory) != 0)
    report_spawn_failure(plan, SpawnStep::kWorkingDirectory);
  reset_signals();
  // First duplicated above every target number, so that no dup2 overwrites a source that is still needed.
  int above = 3;
  for (const auto& [ours, its] : plan.descriptors) above = std::max(above, its + 1);
  for (auto& [ours, its] : plan.descriptors) {
    ours = ::fcntl(ours, F_DUPFD_CLOEXEC, above);
    if (ours < 0) report_spawn_failure(plan);
  }
  plan.failure = ::fcntl(plan.failure, F_DUPFD_CLOEXEC, above);
  if (plan.failure < 0) ::_exit(127);
  mark_all_close_on_exec();
  for (int standard = 0; standard < 3; ++standard) {
    if (::dup2(plan.null_device, standard) < 0) report_spawn_failure(plan);
  }
  for (const auto& [ours, its] : plan.descriptors) {
    if (::dup2(ours, its) < 0) report_spawn_failure(plan);
  }
  if (!add_bind_mounts(plan)) report_spawn_failure(plan, SpawnStep::kMounts);
  if (plan.root != nullptr && (::chroot(plan.root) != 0 || ::chdir("/") != 0)) report_spawn_failure(plan);
  ::execve(plan.program, plan.arguments.data(), plan.environment.data());
  report_spawn_failure(plan);
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const auto& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// No data once the program runs: exec closed the pipe.
Failure failure_of(int pipe) {
  Failure failure;
  ssize_t got;
  do {
    got = ::read(pipe, &failure, sizeof failure);
  } while (got < 0 && errno == EINTR);
  return got == sizeof failure ? failure : Failure{};
}

}  // namespace

std::string ProcessExit::exit_text() const {
  if (signal == 0) return "exit code " + std::to_string(code);
  return "signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

void close_from(int first) {
  if (::syscall(SYS_close_range, static_cast<unsigned>(first), ~0u, 0u) == 0) return;
  for (int fd = first, end = highest_descriptor(); fd < end; ++fd) ::close(fd);
}

Result<std::unique_ptr<Process>> Process::spawn(const ProcessOptions& options) {
  const FileDescriptor null_device(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_device.is_open()) return fail(errno_error("cannot open", errno, "/dev/null"));
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(errno_error("cannot make a pipe", errno, options.program));
  const FileDescriptor reader(ends[0]);
  FileDescriptor tells(ends[1]);
  SpawnPlan plan{
      .arguments = pointers(options.arguments),
      .environment = pointers(options.environment),
      .descriptors = options.descriptors,
      .bind_mounts = {},
      .program = options.program.c_str(),
      .root = options.root.empty() ? nullptr : options.root.c_str(),
      .working_directory = options.working_directory.empty() ? nullptr : options.working_directory.c_str(),
      .parent = ::getpid(),
      .dies_with_parent = options.dies_with_parent,
      .own_group = options.own_group,
      .null_device = null_device.get(),
      .failure = tells.get()};
  for (const auto& [directory, where] : options.bind_mounts)
    plan.bind_mounts.emplace_back(directory.c_str(), where.c_str());
  const pid_t id = ::fork();
  if (id < 0) return fail(errno_error("cannot fork", errno, options.program));
  if (id == 0) exec_program(plan);
  tells.reset();
  // Only this object reaps it, so the process id cannot have been reused.
  FileDescriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, id, 0u)));
  const int pidfd_error = errno;
  const auto [error, step] = failure_of(reader.get());
  if (error != 0 || !pidfd.is_open()) {
    ::kill(id, SIGKILL);
    ::waitpid(id, nullptr, 0);
    if (step == SpawnStep::kWorkingDirectory)
      return fail(errno_error("cannot enter", error, options.working_directory));
    if (step == SpawnStep::kMounts)
      return fail(errno_error("cannot mount in " + options.root + " for", error, options.program));
    if (error != 0) return fail(errno_error("cannot start", error, options.program));
    return fail(errno_error("cannot watch the process (pidfd_open)", pidfd_error, options.program));
  }
  return std::unique_ptr<Process>(new Process(id, std::move(pidfd), options.own_group));
}

Process::~Process() {
  watching_.reset();
  if (exit_) return;
  send_signal(SIGKILL);
  // Bounded: a process that hangs in the kernel remains until gpulet exits.
  static_cast<void>(wait_for_exit(kReapLimit));
}

void Process::on_exit(Loop& loop, std::function<void(const ProcessExit&)> ended) {
  watching_ = loop.watch_descriptor(pidfd_.get(), EPOLLIN, [this, ended = std::move(ended)](std::uint32_t) {
    const auto exit = reap();
    if (!exit) return;
    watching_.reset();
    const auto keep = ended;  // the callback may destroy this object and its own closure
    keep(*exit);
  });
}

void Process::send_signal(int signal) {
  if (exit_) return;
  // Not reaped yet, so the id still belongs to its process group.
  if (group_) {
    ::kill(-pid_, signal);
  } else {
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0u);
  }
}

std::optional<ProcessExit> Process::reap() {
  if (exit_) return exit_;
  siginfo_t info{};
  int result;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG);
  } while (result != 0 && errno == EINTR);
  if (result == 0 && info.si_pid == 0) return std::nullopt;
  exit_.emplace();
  if (result == 0) (info.si_code == CLD_EXITED ? exit_->code : exit_->signal) = info.si_status;
  return exit_;
}

Result<ProcessExit> Process::wait_for_exit(Duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    if (const auto exit = reap()) return *exit;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0)
      return fail(Code::kDeadlineExceeded, "still running", "process " + std::to_string(pid_));
    pollfd waiting{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 3'600'000)));
  }
}

bool has_capability(int capability) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability)) != 0;
}

std::string program_directory() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  const std::string program(path, static_cast<std::size_t>(length));
  return program.substr(0, program.rfind('/'));
}

Result<std::unique_ptr<SignalWatcher>> SignalWatcher::watch_signals(Loop& loop,
                                                                    std::initializer_list<int> signals,
                                                                    std::function<void(int)> received) {
  sigset_t wanted;
  ::sigemptyset(&wanted);
  for (const int signal : signals) ::sigaddset(&wanted, signal);
  FileDescriptor fd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.is_open()) return fail(errno_error("cannot open a signalfd", errno));
  sigset_t before;
  if (const int error = ::pthread_sigmask(SIG_BLOCK, &wanted, &before); error != 0) {
    return fail(errno_error("cannot block signals", error));
  }
  std::unique_ptr<SignalWatcher> watch(new SignalWatcher(std::move(fd), before));
  watch->reading_ = loop.watch_descriptor(
      watch->fd_.get(), EPOLLIN, [raw = watch->fd_.get(), received = std::move(received)](std::uint32_t) {
        signalfd_siginfo info;
        // One signal per turn: `received` may destroy the watch, and the descriptor stays readable while
        // there are more.
        if (::read(raw, &info, sizeof info) == sizeof info) received(static_cast<int>(info.ssi_signo));
      });
  return watch;
}

SignalWatcher::~SignalWatcher() {
  reading_.reset();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

namespace {

struct flock whole_file() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

// Locks of the open file, not of the process: those would be lost as soon as anything in this process opens
// and closes the same file.
Result<ProcessLock> ProcessLock::lock_file(const std::string& path, int command) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) GPULET_TRY(make_directories(path.substr(0, slash)));
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!fd.is_open()) return fail(errno_error("cannot open", errno, path));
  auto lock = whole_file();
  int result = 0;
  do {
    result = ::fcntl(fd.get(), command, &lock);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return ProcessLock(std::move(fd));
  if (errno == EAGAIN || errno == EACCES)
    return fail(Code::kFailedPrecondition, "another process holds it", path);
  return fail(errno_error("cannot lock", errno, path));
}

Result<ProcessLock> ProcessLock::acquire_lock(const std::string& path) {
  return lock_file(path, F_OFD_SETLK);
}

Result<ProcessLock> ProcessLock::wait_for_lock(const std::string& path) {
  return lock_file(path, F_OFD_SETLKW);
}

Result<bool> ProcessLock::is_locked(const std::string& path) {
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open() && errno == ENOENT) return false;
  if (!fd.is_open()) return fail(errno_error("cannot open", errno, path));
  auto lock = whole_file();
  if (::fcntl(fd.get(), F_OFD_GETLK, &lock) != 0) return fail(errno_error("cannot ask", errno, path));
  return lock.l_type != F_UNLCK;
}

}  // namespace gpulet
