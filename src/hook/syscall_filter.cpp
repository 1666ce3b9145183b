#include "hook/syscall_filter.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

namespace gpulet::hook {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kMachine = AUDIT_ARCH_AARCH64;
#else
#error "which system calls does this machine have?"
#endif

// What glibc's ldconfig from 2.17 on was seen to call, and what a C library of another year would instead.
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
// Goes on with the next statement when it is `value`, else with the one after that.
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
  for (const long number : kPretended) answer(number, SECCOMP_RET_ERRNO);  // errno 0: it succeeded
  // A C library that finds no newer call takes an older one.
  out.push_back(statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
  return out;
}

}  // namespace

SyscallFilter::SyscallFilter() : statements_(make_filter()) {}

Status SyscallFilter::install() {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    return fail(errno_error("cannot give up new privileges", errno));
  const sock_fprog program{static_cast<unsigned short>(statements_.size()), statements_.data()};
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0) return {};
  if (errno == EINVAL || errno == ENOSYS)
    return fail(Code::kUnsupported, "this kernel has no seccomp filters");
  return fail(errno_error("cannot filter system calls", errno));
}

}  // namespace gpulet::hook
