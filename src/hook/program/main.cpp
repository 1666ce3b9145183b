// gpulet-hook: the OCI hook that finishes a container's driver set-up. One static program that trusts nothing
// of the process that started it but its arguments, and nothing of the container at all.
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "hook/command.h"

namespace {

using gpulet::Error;

void tell(int fd, std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t put = ::write(fd, rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return;
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
}

void tell_error(std::string_view kind, const Error& error) {
  // One line, whatever names of the image's stand in it.
  constexpr std::size_t kMaxLine = 1000;
  tell(STDERR_FILENO,
       "gpulet-hook: " + std::string(kind) + gpulet::hook::shown(error.text(), kMaxLine) + "\n");
}

// An environment, a working folder, a mask and descriptors that are ours, not the image's or the runtime's.
bool settle() {
  if (::clearenv() != 0 || ::chdir("/") != 0) return false;
  ::umask(022);
  ::prctl(PR_SET_DUMPABLE, 0);
  // 0, 1 and 2 must be something, or the first files that we open would be them.
  for (int fd = 0; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) return false;
  if (::syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, 0) == 0) return true;
  for (int fd = STDERR_FILENO + 1; fd < 1024; ++fd) ::close(fd);
  return true;
}

}  // namespace

int main(int count, char** values) {
  using gpulet::hook::Command;
  constexpr int kUsage = 2;
  if (!settle()) {
    tell(STDERR_FILENO, "gpulet-hook: cannot leave the environment that it was started in\n");
    return EXIT_FAILURE;
  }
  const auto command = gpulet::hook::parse_command(std::vector<std::string>(values, values + count));
  if (!command) {
    tell_error("", command.error());
    return kUsage;
  }
  switch (command->kind) {
    case Command::Kind::kHelp:
      tell(STDOUT_FILENO, gpulet::hook::help_text());
      return EXIT_SUCCESS;
    case Command::Kind::kVersion:
      tell(STDOUT_FILENO, "gpulet-hook " GPULET_VERSION "\n");
      return EXIT_SUCCESS;
    case Command::Kind::kUnknownHook:
      tell(STDERR_FILENO, "gpulet-hook: warning: no hook '" + command->asked + "': passed over\n");
      return EXIT_SUCCESS;
    case Command::Kind::kRun:
      break;
  }
  const auto done =
      gpulet::hook::run_command(*command, [](const Error& error) { tell_error("warning: ", error); });
  if (done) return EXIT_SUCCESS;
  tell_error("", done.error());
  return EXIT_FAILURE;
}
