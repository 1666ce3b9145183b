// For tests: a static program that runs in the sandbox in place of the host's ldconfig and prints what it can
// do there. One line each: "name: yes", "no" or an errno.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace {

std::string out;

void print_line(const char* what, const std::string& answer) {
  out += std::string(what) + ": " + answer + "\n";
}
void attempt_text(const char* what, long result) {
  print_line(what, result >= 0 ? "yes" : std::to_string(errno));
}

void print_privileges() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  // Not a call that ldconfig needs.
  attempt_text("capget", ::syscall(SYS_capget, &header, data));
  attempt_text("chown", ::fchownat(AT_FDCWD, "/", 1, 1, 0));
  attempt_text("mount", ::mount("none", "/", "tmpfs", 0, nullptr));
  attempt_text("unmount", ::umount2("/proc", MNT_DETACH));
  attempt_text("chroot", ::chroot("/"));
  attempt_text("socket", ::socket(AF_UNIX, SOCK_STREAM, 0));
  attempt_text("ptrace", ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr));
  attempt_text("unshare", ::syscall(SYS_unshare, 0x10000000));
  attempt_text("fork", ::syscall(SYS_clone, 17, nullptr, nullptr, nullptr, nullptr));
  attempt_text("handles", ::syscall(SYS_open_by_handle_at, AT_FDCWD, nullptr, 0));
  attempt_text("kill", ::syscall(SYS_kill, 1, 0));
  attempt_text("bpf", ::syscall(SYS_bpf, 0, nullptr, 0));
  attempt_text("keyring", ::syscall(SYS_keyctl, 0, 0, 0, 0, 0));
  attempt_text("memfd", ::syscall(SYS_memfd_create, "x", 0));
  // Pretends success: there is no such descriptor.
  attempt_text("fsync", ::fsync(99));
}

void print_files() {
  attempt_text("create", ::open("/created", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  attempt_text("overwrite", ::open("/file", O_WRONLY | O_CLOEXEC));
  attempt_text("rename", ::rename("/file", "/file2"));
  attempt_text("unlink", ::unlink("/file"));
  attempt_text("chmod", ::chmod("/file", 0777));
  attempt_text("device", ::open("/null", O_RDONLY | O_CLOEXEC));
  attempt_text("read", ::open("/file", O_RDONLY | O_CLOEXEC));
  attempt_text("read of another user's", ::open("/closed/file", O_RDONLY | O_CLOEXEC));
  attempt_text("scratch", ::open("/proc/made", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  attempt_text("procfs", ::access("/proc/self", F_OK));
  char* const arguments[] = {nullptr};
  const int program = ::open("/program", O_PATH | O_CLOEXEC);
  attempt_text("execute the image's",
               program < 0 ? -1 : ::syscall(SYS_execveat, program, "", arguments, arguments, 0x1000));
}

// What a program could do that a hostile library controls.
void misbehave(const std::string& how) {
  const std::string block(1u << 20, 'x');
  if (how == "spin")
    for (volatile bool more = true; more;) {
    }
  if (how == "flood")
    while (::write(STDOUT_FILENO, block.data(), block.size()) > 0) {
    }
  if (how == "complain")
    for (int i = 0; i < 10; ++i)
      if (::write(STDERR_FILENO, block.data(), block.size()) < 0) return;
  if (how == "crash") __builtin_trap();
  if (how == "fail") ::_exit(::write(STDERR_FILENO, "no \x1b library\nmore\n", 18) == 18 ? 3 : 4);
  if (how != "eat") return;
  std::size_t bytes = 0;
  for (; bytes < (4ull << 30); bytes += block.size())
    if (::mmap(nullptr, block.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
        MAP_FAILED)
      break;
  print_line("memory", bytes < (1ull << 30) ? "bounded" : "endless");
  const int file = ::open("/proc/large", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  for (bytes = 0; bytes < (1ull << 30); bytes += block.size())
    if (::write(file, block.data(), block.size()) != static_cast<ssize_t>(block.size())) break;
  print_line("file", bytes < (64u << 20) ? "bounded" : "endless");
}

}  // namespace

int main(int count, char** arguments, char** environment) {
  if (count > 1) misbehave(arguments[1]);
  print_line("environment", environment[0] == nullptr ? "none" : environment[0]);
  for (int fd = 3; fd < 64; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) print_line("descriptor", std::to_string(fd));
  char directory[4096];
  print_line("directory", ::syscall(SYS_getcwd, directory, sizeof directory) > 0 ? directory : "none");
  print_line("pid", std::to_string(::getpid()));
  rlimit processor{};
  ::getrlimit(RLIMIT_CPU, &processor);
  print_line("seconds", std::to_string(processor.rlim_max));
  print_privileges();
  print_files();
  return ::write(STDOUT_FILENO, out.data(), out.size()) == static_cast<ssize_t>(out.size()) ? 0 : 1;
}
