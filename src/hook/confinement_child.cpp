#include "hook/confinement.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace gpulet::hook {
namespace {

constexpr std::size_t kMaxMountinfoBytes = 16u << 20;

class Child {
 public:
  // Allocates now, before the memory limit.
  explicit Child(const ChildPlan& plan) : plan_(plan), texts_(plan.arguments) {
    for (std::string& text : texts_) arguments_.push_back(text.data());
    arguments_.push_back(nullptr);
  }

  [[noreturn]] void enter_and_execute() {
    // Die with the hook from now on. The parent cannot have exited yet: it waits for this pipe.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    enter_tree();
    attach_scratch();
    set_up_descriptors();
    set_resource_limits();
    drop_privileges();
    if (const auto filtered = filter_.install(); !filtered) report_failure(filtered.error().message(), 0);
    execute_program();
  }

 private:
  [[noreturn]] void report_failure(std::string_view what, int error_number) const {
    ChildFailure failure{};
    what.copy(failure.what, sizeof failure.what - 1);
    failure.error_number = error_number;
    if (::write(plan_.failure, &failure, sizeof failure) < 0) ::_exit(126);
    ::_exit(127);
  }
  void require_success(bool done, std::string_view what) const {
    if (!done) report_failure(what, errno);
  }

  void enter_tree() const {
    require_success(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0,
                    "cannot make mounts private");
    const FileDescriptor old(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    const FileDescriptor proc(::open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!proc.is_open()) report_failure("cannot open the host's /proc", 0);
    require_success(::move_mount(plan_.tree, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) == 0,
                    "cannot mount its files");
    require_success(::fchdir(plan_.tree) == 0, "cannot enter its files");
    if (::syscall(SYS_pivot_root, ".", ".") == 0) {
      require_success(::fchdir(old.get()) == 0 && ::umount2(".", MNT_DETACH) == 0,
                      "cannot leave the host's files");
    } else {
      // An initramfs cannot be pivoted: the tree is mounted over it.
      require_success(errno == EINVAL && ::chroot(".") == 0, "cannot change its root");
    }
    require_success(::chdir("/") == 0, "cannot enter its root");
    detach_procfs(proc.get());
  }

  // /proc/<pid>/root, cwd and fd of other processes lead out of any root.
  void detach_procfs(int proc) const {
    constexpr int kMaxLayers = 16;
    for (int layer = 0; layer < kMaxLayers; ++layer) {
      const FileDescriptor file(::openat(proc, "self/mountinfo", O_RDONLY | O_CLOEXEC));
      const auto content = read_all(file.get(), "mountinfo", kMaxMountinfoBytes);
      if (!content) report_failure("cannot read its mounts", 0);
      std::vector<std::string> places;
      std::string_view rest = *content;
      while (!rest.empty()) {
        const auto end = rest.find('\n');
        const std::string_view line = rest.substr(0, end);
        rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
        if (line.find(" - proc ") != std::string_view::npos) places.push_back(next_procfs_mount(line));
      }
      if (places.empty()) return;
      // Innermost first. A mount that covers one goes first; the covered one follows in the next round.
      for (auto place = places.rbegin(); place != places.rend(); ++place)
        require_success(::umount2(place->c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0,
                        "cannot unmount a procfs in its files");
    }
    report_failure("cannot unmount every procfs in its files", 0);
  }

  // Decodes the fifth field: spaces, newlines and backslashes are "\ooo".
  static std::string next_procfs_mount(std::string_view line) {
    for (int field = 0; field < 4; ++field) line.remove_prefix(std::min(line.find(' '), line.size() - 1) + 1);
    line = line.substr(0, line.find(' '));
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] != '\\' || i + 3 >= line.size()) {
        out += line[i];
        continue;
      }
      out += static_cast<char>((line[i + 1] - '0') * 64 + (line[i + 2] - '0') * 8 + (line[i + 3] - '0'));
      i += 3;
    }
    return out;
  }

  void attach_scratch() const {
    open_how how{};
    how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    const FileDescriptor place(
        static_cast<int>(::syscall(SYS_openat2, plan_.tree, plan_.scratch_name.c_str(), &how, sizeof how)));
    require_success(place.is_open(), "cannot find a directory for output");
    require_success(::move_mount(plan_.scratch, "", place.get(), "",
                                 MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0,
                    "cannot mount a directory for output");
    for (const std::string& directory : plan_.hidden) hide_directories(directory);
  }

  // Runs inside the new root, where every path is the container's. A missing directory needs no cover.
  void hide_directories(const std::string& directory) const {
    const FileDescriptor place(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!place.is_open()) return;
    const FileDescriptor again(
        ::open_tree(plan_.scratch, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
    require_success(again.is_open() && ::move_mount(again.get(), "", place.get(), "",
                                                    MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) == 0,
                    "cannot cover a directory");
  }

  // Sets 0, 1 and 2; all others close on exec.
  void set_up_descriptors() const {
    require_success(::dup2(plan_.null, STDIN_FILENO) >= 0 && ::dup2(plan_.output, STDOUT_FILENO) >= 0 &&
                        ::dup2(plan_.error_output, STDERR_FILENO) >= 0,
                    "cannot set up its descriptors");
    constexpr unsigned kOnExec =
        1u << 2;  // CLOSE_RANGE_CLOEXEC; where it is unknown, all descriptors have O_CLOEXEC anyway
    ::syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, kOnExec);
  }

  void set_resource_limits() const {
    // Limits private memory only: a mapped library can take gigabytes.
    constexpr std::pair<__rlimit_resource, rlim_t> kLimits[] = {
        {RLIMIT_CPU, 10},          {RLIMIT_FSIZE, kMaxConfinedFile},
        {RLIMIT_DATA, 512u << 20}, {RLIMIT_AS, 32ull << 30},
        {RLIMIT_NOFILE, 64},       {RLIMIT_CORE, 0},
        {RLIMIT_MEMLOCK, 0},       {RLIMIT_STACK, 8u << 20},
    };
    for (const auto& [what, most] : kLimits) {
      rlimit now{};
      require_success(::getrlimit(what, &now) == 0, "cannot set its resource limits");
      // The current limit may be lower, and raising it may not be permitted.
      const rlimit wanted{std::min(most, now.rlim_max), std::min(most, now.rlim_max)};
      require_success(::setrlimit(what, &wanted) == 0, "cannot set its resource limits");
    }
    ::umask(022);
  }

  void drop_privileges() const {
    // Only reading libraries and directories of other users needs a capability.
    constexpr unsigned kKept = 1u << CAP_DAC_READ_SEARCH;
    for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; ++capability)
      if (capability != CAP_DAC_READ_SEARCH)
        require_success(::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0, "cannot drop capabilities");
    ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    require_success(::syscall(SYS_capget, &header, data) == 0, "cannot drop capabilities");
    data[0] = {data[0].effective & kKept, data[0].permitted & kKept, 0};
    data[1] = {};
    require_success(::syscall(SYS_capset, &header, data) == 0, "cannot drop capabilities");
  }

  [[noreturn]] void execute_program() const {
    char* const environment[] = {nullptr};
    ::syscall(SYS_execveat, plan_.program, "", arguments_.data(), environment, AT_EMPTY_PATH);
    report_failure("cannot start it", errno);
  }

  const ChildPlan& plan_;
  std::vector<std::string> texts_;
  std::vector<char*> arguments_;
  SyscallFilter filter_;
};

}  // namespace

void run_child(const ChildPlan& plan) { Child(plan).enter_and_execute(); }

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_AARCH64;
#else
#error "unknown architecture: add its audit number"
#endif

// System calls observed of glibc's ldconfig since 2.17, and their equivalents in other C libraries.
constexpr long kAllowed[] = {
    SYS_read,
    SYS_readv,
    SYS_pread64,
    SYS_write,
    SYS_writev,
    SYS_close,
    SYS_lseek,
    SYS_openat,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_faccessat,
    SYS_getdents64,
    SYS_readlinkat,
    SYS_getcwd,
    SYS_chdir,
    SYS_fcntl,
    SYS_dup,
    SYS_ftruncate,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_unlinkat,
    SYS_renameat,
    SYS_renameat2,
    SYS_umask,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_exit,
    SYS_exit_group,
    SYS_set_tid_address,
    SYS_set_robust_list,
    SYS_futex,
    SYS_prlimit64,
    SYS_getrandom,
    SYS_uname,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_clock_gettime,
    SYS_gettimeofday,
    SYS_getpid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_execveat,
#ifdef SYS_rseq
    SYS_rseq,
#endif
#ifdef SYS_openat2
    SYS_openat2,
#endif
#ifdef SYS_faccessat2
    SYS_faccessat2,
#endif
#ifdef __x86_64__
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_getdents,
    SYS_rename,
    SYS_unlink,
    SYS_chmod,
    SYS_arch_prctl,
    SYS_time,
    SYS_getrlimit,
#endif
};
constexpr long kPretended[] = {SYS_fsync, SYS_fdatasync, SYS_sync_file_range, SYS_syncfs};

constexpr sock_filter statement(int code, std::uint32_t value) {
  return {static_cast<std::uint16_t>(code), 0, 0, value};
}
// Continues with the next statement if equal to `value`, else skips it.
constexpr sock_filter unless_skip(std::uint32_t value) { return {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value}; }

std::vector<sock_filter> make_filter() {
  std::vector<sock_filter> out{
      statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      {BPF_JMP | BPF_JEQ | BPF_K, 1, 0, kMachine},
      statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  const auto answer = [&](long number, std::uint32_t what) {
    out.push_back(unless_skip(static_cast<std::uint32_t>(number)));
    out.push_back(statement(BPF_RET | BPF_K, what));
  };
  for (const long number : kAllowed) answer(number, SECCOMP_RET_ALLOW);
  for (const long number : kPretended) answer(number, SECCOMP_RET_ERRNO);  // errno 0: success
  // ENOSYS makes a C library fall back to an older call.
  out.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  return out;
}

}  // namespace

SyscallFilter::SyscallFilter() : statements_(make_filter()) {}

Status SyscallFilter::install() {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return fail(errno_error("cannot set no-new-privileges", errno));
  const sock_fprog program{static_cast<unsigned short>(statements_.size()), statements_.data()};
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0) return {};
  if (errno == EINVAL || errno == ENOSYS)
    return fail(Code::kUnsupported, "this kernel has no seccomp filters");
  return fail(errno_error("cannot install the system call filter", errno));
}

}  // namespace gpulet::hook
