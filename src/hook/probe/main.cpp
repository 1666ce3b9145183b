// For tests: a static program that is confined as the host's ldconfig is, and says what it can do there. One
// line for each thing: "name: yes", "no" or an errno's number.
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

void tell(const char* what, const std::string& answer) { out += std::string(what) + ": " + answer + "\n"; }
void tried(const char* what, long result) { tell(what, result >= 0 ? "yes" : std::to_string(errno)); }

void rights() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  // Not one of the calls that ldconfig needs.
  tried("capget", ::syscall(SYS_capget, &header, data));
  tried("chown", ::fchownat(AT_FDCWD, "/", 1, 1, 0));
  tried("mount", ::mount("none", "/", "tmpfs", 0, nullptr));
  tried("unmount", ::umount2("/proc", MNT_DETACH));
  tried("chroot", ::chroot("/"));
  tried("socket", ::socket(AF_UNIX, SOCK_STREAM, 0));
  tried("ptrace", ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr));
  tried("unshare", ::syscall(SYS_unshare, 0x10000000));
  tried("fork", ::syscall(SYS_clone, 17, nullptr, nullptr, nullptr, nullptr));
  tried("handles", ::syscall(SYS_open_by_handle_at, AT_FDCWD, nullptr, 0));
  tried("kill", ::syscall(SYS_kill, 1, 0));
  tried("bpf", ::syscall(SYS_bpf, 0, nullptr, 0));
  tried("keyring", ::syscall(SYS_keyctl, 0, 0, 0, 0, 0));
  tried("memfd", ::syscall(SYS_memfd_create, "x", 0));
  // Pretended: there is no such descriptor.
  tried("fsync", ::fsync(99));
}

void files() {
  tried("create", ::open("/created", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  tried("overwrite", ::open("/file", O_WRONLY | O_CLOEXEC));
  tried("rename", ::rename("/file", "/file2"));
  tried("unlink", ::unlink("/file"));
  tried("chmod", ::chmod("/file", 0777));
  tried("device", ::open("/null", O_RDONLY | O_CLOEXEC));
  tried("read", ::open("/file", O_RDONLY | O_CLOEXEC));
  tried("read of another user's", ::open("/closed/file", O_RDONLY | O_CLOEXEC));
  tried("scratch", ::open("/proc/made", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  tried("procfs", ::access("/proc/self", F_OK));
  char* const arguments[] = {nullptr};
  const int program = ::open("/program", O_PATH | O_CLOEXEC);
  tried("execute the image's",
        program < 0 ? -1 : ::syscall(SYS_execveat, program, "", arguments, arguments, 0x1000));
}

// What a program could do that a hostile library has taken over.
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
  tell("memory", bytes < (1ull << 30) ? "bounded" : "endless");
  const int file = ::open("/proc/large", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  for (bytes = 0; bytes < (1ull << 30); bytes += block.size())
    if (::write(file, block.data(), block.size()) != static_cast<ssize_t>(block.size())) break;
  tell("file", bytes < (64u << 20) ? "bounded" : "endless");
}

}  // namespace

int main(int count, char** arguments, char** environment) {
  if (count > 1) misbehave(arguments[1]);
  tell("environment", environment[0] == nullptr ? "none" : environment[0]);
  for (int fd = 3; fd < 64; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) tell("descriptor", std::to_string(fd));
  char folder[4096];
  tell("folder", ::syscall(SYS_getcwd, folder, sizeof folder) > 0 ? folder : "none");
  tell("pid", std::to_string(::getpid()));
  rlimit processor{};
  ::getrlimit(RLIMIT_CPU, &processor);
  tell("seconds", std::to_string(processor.rlim_max));
  rights();
  files();
  return ::write(STDOUT_FILENO, out.data(), out.size()) == static_cast<ssize_t>(out.size()) ? 0 : 1;
}
