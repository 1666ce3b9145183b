// gpulet-hook: the OCI hook that completes the driver set-up of a container. It is a static program that
// trusts only the arguments of its caller, and nothing in the container.
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
#include "hook/supervisor.h"

namespace {

using gpulet::Error;

void write_text(int fd, std::string_view rest) {
  while (!rest.empty()) {
    const ssize_t put = ::write(fd, rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return;
    rest.remove_prefix(static_cast<std::size_t>(put));
  }
}

void print_error(std::string_view kind, const Error& error) {
  // One printable line, whatever names of the image it contains.
  constexpr std::size_t kMaxLine = 1000;
  write_text(STDERR_FILENO, "gpulet-hook: " + std::string(kind) +
                                gpulet::hook::printable_text(error.full_message(), kMaxLine) + "\n");
}

// Resets the environment, working directory, umask and descriptors that the runtime passed.
bool reset_process_state() {
  if (::clearenv() != 0 || ::chdir("/") != 0) return false;
  ::umask(022);
  ::prctl(PR_SET_DUMPABLE, 0);
  // 0, 1 and 2 must be open, or the next opened files would take their numbers.
  for (int fd = 0; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) return false;
  if (::syscall(SYS_close_range, STDERR_FILENO + 1, ~0u, 0) == 0) return true;
  for (int fd = STDERR_FILENO + 1; fd < 1024; ++fd) ::close(fd);
  return true;
}

int run_within_limit(const gpulet::hook::HookCommand& command) {
  using gpulet::hook::WorkerResult;
  constexpr int kSignalled = 128;  // plus the signal, as in a shell
  const auto ended =
      gpulet::hook::run_supervised(gpulet::hook::command_time_limit(command), [&](const auto& reach_milestone) {
        const auto done = gpulet::hook::run_command(
            command, [](const Error& error) { print_error("warning: ", error); },
            [&](std::size_t step) { reach_milestone(static_cast<int>(step) + 1); });
        if (done) return EXIT_SUCCESS;
        print_error("", done.error());
        return EXIT_FAILURE;
      });
  if (!ended) {
    print_error("", ended.error());
    return EXIT_FAILURE;
  }
  if (ended->end == WorkerResult::End::kExited) return ended->value;
  if (ended->end == WorkerResult::End::kSignalled) {
    write_text(STDERR_FILENO, "gpulet-hook: ended by signal " + std::to_string(ended->value) + "\n");
    return kSignalled + ended->value;
  }
  const auto overrun = gpulet::hook::describe_overrun(command, static_cast<std::size_t>(ended->milestone));
  print_error(overrun.may_start ? "warning: " : "", overrun.error);
  return overrun.may_start ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int count, char** values) {
  using gpulet::hook::HookCommand;
  constexpr int kUsage = 2;
  if (!reset_process_state()) {
    write_text(STDERR_FILENO, "gpulet-hook: cannot reset the environment of the process\n");
    return EXIT_FAILURE;
  }
  const auto command = gpulet::hook::parse_command(std::vector<std::string>(values, values + count));
  if (!command) {
    print_error("", command.error());
    return kUsage;
  }
  switch (command->kind) {
    case HookCommand::Kind::kHelp:
      write_text(STDOUT_FILENO, gpulet::hook::help_text());
      return EXIT_SUCCESS;
    case HookCommand::Kind::kVersion:
      write_text(STDOUT_FILENO, "gpulet-hook " GPULET_VERSION "\n");
      return EXIT_SUCCESS;
    case HookCommand::Kind::kUnknownHook:
      write_text(STDERR_FILENO,
                 "gpulet-hook: warning: unknown hook '" + command->requested_hook + "' ignored\n");
      return EXIT_SUCCESS;
    case HookCommand::Kind::kRun:
      break;
  }
  return run_within_limit(*command);
}
