#include "mps/daemon_process.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "base/text.h"
#include "mps/control.h"

namespace gpulet::mps {
namespace {

constexpr std::string_view kPidFile = "/nvidia-cuda-mps-control.pid";
constexpr std::string_view kDeleted = " (deleted)";  // after a driver update

bool runs_control_program(const std::string& process) {
  char link[PATH_MAX];
  const ssize_t length = ::readlink((process + "/exe").c_str(), link, sizeof link);
  if (length <= 0) return false;
  std::string_view path(link, static_cast<std::size_t>(length));
  if (path.ends_with(kDeleted)) path.remove_suffix(kDeleted.size());
  return text::base_name(path) == kControlProgram;
}

bool was_started_for(const std::string& process, const std::string& pipe_directory) {
  const auto environment = read_file(process + "/environ");
  if (!environment) return false;
  for (const auto& variable : text::split(*environment, '\0')) {
    if (variable == "CUDA_MPS_PIPE_DIRECTORY=" + pipe_directory) return true;
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<DaemonProcess>> DaemonProcess::find(const std::string& pipe_directory) {
  const std::string path = pipe_directory + std::string(kPidFile);
  // Whatever a container puts there: neither a link is followed nor a pipe waited for.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) return fail(errno_error("open", errno, path));
  GPULET_TRY_ASSIGN(const std::string text, read_all(file.get(), path, 64));
  const auto number = text::parse_unsigned(text::trim(text));
  if (!number || *number == 0 || *number > std::numeric_limits<pid_t>::max()) {
    return fail(Code::kNotFound, "holds no process id", path);
  }
  const auto id = static_cast<pid_t>(*number);
  // First held, then looked at: the number cannot become another process's in between.
  FileDescriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, id, 0u)));
  if (!pidfd.valid()) return fail(Code::kNotFound, "no process " + std::to_string(id), path);
  const std::string process = "/proc/" + std::to_string(id);
  if (!runs_control_program(process) || !was_started_for(process, pipe_directory)) {
    return fail(Code::kNotFound, "process " + std::to_string(id) + " is not its control daemon", path);
  }
  return std::unique_ptr<DaemonProcess>(new DaemonProcess(id, std::move(pidfd)));
}

void DaemonProcess::on_end(Loop& loop, std::function<void()> ended) {
  watching_.reset();
  watching_ = loop.watch(pidfd_.get(), EPOLLIN, [this, ended = std::move(ended)](std::uint32_t) {
    watching_.reset();
    // Where we are its container's first process it became our child, and would stay behind as a zombie.
    siginfo_t info{};
    static_cast<void>(::waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG) == 0);
    const auto tell = ended;
    tell();
  });
}

void DaemonProcess::kill() {
  static_cast<void>(::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0u) == 0);
}

}  // namespace gpulet::mps
