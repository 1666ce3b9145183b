#include "mps/control_program.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/text.h"
#include "mps/shared_memory.h"

namespace gpulet::mps {
namespace {

Result<std::pair<FileDescriptor, FileDescriptor>> make_pipe() {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail(errno_error("pipe", errno));
  return std::pair(FileDescriptor(ends[0]), FileDescriptor(ends[1]));
}

// The first line, which has the cause.
std::string first_line(const std::string& text) {
  return std::string(text::trim(std::string_view(text).substr(0, text.find('\n'))));
}

}  // namespace

std::vector<std::string> lines_of_output(const std::string& output) {
  std::vector<std::string> lines;
  for (const auto& line : text::split(output, '\n')) {
    if (const auto trimmed = text::trim(line); !trimmed.empty()) lines.emplace_back(trimmed);
  }
  return lines;
}

bool holds_thread_percentage(const std::string& output, unsigned percentage) {
  const auto lines = lines_of_output(output);
  if (lines.empty()) return false;
  const std::string& last = lines.back();
  char* end = nullptr;
  const double held = std::strtod(last.c_str(), &end);
  return end != last.c_str() && *end == '\0' && std::abs(held - percentage) <= 0.05;
}

Result<ControlProgram> find_control_program(const std::string& driver_root, const std::string& root,
                                            const std::string& host_root, const std::string& shm) {
  GPULET_TRY_ASSIGN(DriverProgram found, find_driver_program(driver_root, kControlProgram));
  if (found.root.empty()) return ControlProgram{std::move(found), root};
  GPULET_TRY_ASSIGN(const RootDirectory there, RootDirectory::open_root(found.root));
  std::vector<std::string> candidates{root};
  if (!host_root.empty() && host_root != root) candidates.push_back(host_root);
  auto inside = find_path_in_root(found.root, root, candidates);
  const bool may_mount = has_capability(CAP_SYS_ADMIN);
  const auto mount_over = [&](const std::string& directory, const std::string& path) {
    const auto where = there.resolve(path);
    if (where) found.bind_mounts.emplace_back(directory, found.root + *where);
    return where.has_value();
  };
  for (const auto& candidate : candidates) {
    if (!inside && may_mount && mount_over(root, candidate)) inside = candidate;
  }
  if (!inside) {
    GPULET_TRY_ASSIGN(found, find_driver_program(driver_root, kControlProgram, ChrootRule::kNever));
    return ControlProgram{std::move(found), root};
  }
  if (may_mount && is_other_file_system(shm, root)) mount_over(shm, "/dev/shm");
  return ControlProgram{std::move(found), *inside};
}

Result<std::unique_ptr<ProgramCall>> ProgramCall::start_call(Loop& loop, const Request& request,
                                                             Duration limit,
                                                             std::function<void(Result<std::string>)> done) {
  GPULET_TRY_ASSIGN(auto input, make_pipe());
  GPULET_TRY_ASSIGN(auto output, make_pipe());
  // A few commands are far less than a pipe holds, so this write does not block.
  ::fcntl(input.second.get(), F_SETFL, O_NONBLOCK);
  const auto written = ::write(input.second.get(), request.input.data(), request.input.size());
  if (written != static_cast<ssize_t>(request.input.size())) {
    return fail(errno_error("cannot send commands to it", errno, request.program.path));
  }
  input.second.reset();
  ::fcntl(output.first.get(), F_SETFL, O_NONBLOCK);
  std::vector<std::string> arguments = request.program.arguments;
  arguments.insert(arguments.end(), request.arguments.begin(), request.arguments.end());
  std::vector<std::string> environment = request.program.environment;
  environment.insert(environment.end(), request.environment.begin(), request.environment.end());
  GPULET_TRY_ASSIGN(
      auto process,
      Process::spawn(
          {.program = request.program.program,
           .arguments = arguments,
           .environment = environment,
           .descriptors = {{input.first.get(), 0}, {output.second.get(), 1}, {output.second.get(), 2}},
           .bind_mounts = request.program.bind_mounts,
           .root = request.program.root,
           .dies_with_parent = !request.spawns_daemon}));
  std::unique_ptr<ProgramCall> call(new ProgramCall);
  call->done_ = std::move(done);
  call->name_ = text::base_name(request.program.path);
  call->output_ = std::move(output.first);
  call->process_ = std::move(process);
  ProgramCall* const self = call.get();
  call->reading_ =
      loop.watch_descriptor(self->output_.get(), EPOLLIN, [self](std::uint32_t) { self->read_output(); });
  call->limit_ = loop.after(limit, [self, limit] {
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    self->end(fail(Code::kDeadlineExceeded, "did not answer in " + std::to_string(milliseconds) + " ms",
                   self->name_));
  });
  // Waits for the exit, not for the end of the output, which a daemon left behind may keep open.
  call->process_->on_exit(loop, [self](const ProcessExit& exit) {
    self->read_output();
    if (exit.succeeded()) return self->end(std::move(self->output_text_));
    const std::string message = first_line(self->output_text_);
    self->end(fail(exit.signal == 0 ? Code::kUnavailable : Code::kIo,
                   message.empty() ? exit.exit_text() : message + " (" + exit.exit_text() + ")",
                   self->name_));
  });
  return call;
}

void ProgramCall::read_output() {
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(output_.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return reading_.reset();
    const auto remaining = kMaxOutputBytes - std::min(kMaxOutputBytes, output_text_.size());
    output_text_.append(buffer, std::min(remaining, static_cast<std::size_t>(got)));
  }
}

void ProgramCall::end(Result<std::string> result) {
  reading_.reset();
  limit_.reset();
  process_.reset();
  const auto done = std::move(done_);
  done(std::move(result));  // which may destroy this object
}

std::optional<std::uint64_t> process_start_time(pid_t pid) {
  constexpr std::size_t kMaxStatBytes = 4096;
  constexpr std::size_t kStartTime = 22 - 3;  // of the fields after the name, the first of which is the third
  const auto stat = read_file("/proc/" + std::to_string(pid) + "/stat", kMaxStatBytes);
  if (!stat) return std::nullopt;
  // The name may contain blanks and parentheses.
  const auto name_end = stat->rfind(") ");
  if (name_end == std::string::npos) return std::nullopt;
  const auto fields = text::split(std::string_view(*stat).substr(name_end + 2), ' ');
  return fields.size() > kStartTime ? text::parse_unsigned(fields[kStartTime]) : std::nullopt;
}

namespace {

constexpr std::string_view kPidFile = "/nvidia-cuda-mps-control.pid";
constexpr std::string_view kDeleted = " (deleted)";  // after a driver update

// Of a program that was started by its loader, the loader is the process' file.
bool loads_control_program(const std::string& process) {
  const auto command = read_file(process + "/cmdline");
  return command && std::ranges::any_of(text::split(*command, '\0'), [](const std::string& argument) {
           return text::base_name(argument) == kControlProgram;
         });
}

bool runs_control_program(const std::string& process) {
  char link[PATH_MAX];
  const ssize_t length = ::readlink((process + "/exe").c_str(), link, sizeof link);
  if (length <= 0) return false;
  std::string_view path(link, static_cast<std::size_t>(length));
  if (path.ends_with(kDeleted)) path.remove_suffix(kDeleted.size());
  const auto name = text::base_name(path);
  return name == kControlProgram || (name.starts_with("ld-") && loads_control_program(process));
}

// A container's process looks like a daemon as it likes, but not in this process's namespace.
bool shares_pid_namespace(const std::string& process) {
  struct stat own{}, other{};
  return ::stat("/proc/self/ns/pid", &own) == 0 && ::stat((process + "/ns/pid").c_str(), &other) == 0 &&
         own.st_ino == other.st_ino && own.st_dev == other.st_dev;
}

bool was_started_for(const std::string& process, const std::string& pipe_directory) {
  const auto environment = read_file(process + "/environ");
  if (!environment) return false;
  for (const auto& variable : text::split(*environment, '\0')) {
    if (variable == "CUDA_MPS_PIPE_DIRECTORY=" + pipe_directory) return true;
  }
  return false;
}

// Started as a daemon, not to send a command, and in this process's cgroups: by it, or by the agent before it
// in the same container or unit. A daemon of another container may have the same name and directory.
bool is_daemon_beside_this_process(const std::string& process) {
  const auto command = read_file(process + "/cmdline");
  const auto cgroups = read_file(process + "/cgroup"), own = read_file("/proc/self/cgroup");
  if (!command || !cgroups || !own || *cgroups != *own) return false;
  const auto arguments = text::split(*command, '\0');
  return std::ranges::any_of(arguments, [](const auto& one) { return one == "-d" || one == "-f"; });
}

bool is_daemon_of(const std::string& process, const std::string& pipe_directory,
                  const std::string& own_name) {
  const bool ours =
      was_started_for(process, pipe_directory) || (!own_name.empty() && was_started_for(process, own_name));
  return ours && runs_control_program(process) && shares_pid_namespace(process);
}

Result<pid_t> read_pid_file(const std::string& path) {
  // A container may have put anything there: do not follow a link or block on a FIFO.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open()) return fail(errno_error("open", errno, path));
  GPULET_TRY_ASSIGN(const std::string text, read_all(file.get(), path, 64));
  const auto number = text::parse_unsigned(text::trim(text));
  if (!number || *number == 0 || *number > std::numeric_limits<pid_t>::max()) {
    return fail(Code::kNotFound, "contains no process id", path);
  }
  return static_cast<pid_t>(*number);
}

}  // namespace

Result<std::unique_ptr<DaemonProcess>> DaemonProcess::find_daemon_process(const std::string& pipe_directory,
                                                                          const std::string& own_name) {
  using Found = Result<std::unique_ptr<DaemonProcess>>;
  const auto open_process = [&](pid_t id) -> Found {
    // The pidfd is opened first and its process still exists after the checks: nothing in between was about
    // another process with this number.
    FileDescriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, id, 0u)));
    if (!pidfd.is_open()) return fail(Code::kNotFound, "no process " + std::to_string(id), pipe_directory);
    const auto start_time = process_start_time(id);
    if (!start_time || !is_daemon_of("/proc/" + std::to_string(id), pipe_directory, own_name) ||
        ::syscall(SYS_pidfd_send_signal, pidfd.get(), 0, nullptr, 0u) != 0) {
      return fail(Code::kNotFound, "process " + std::to_string(id) + " is not its control daemon",
                  pipe_directory);
    }
    return std::unique_ptr<DaemonProcess>(new DaemonProcess(id, *start_time, std::move(pidfd)));
  };
  const auto id = read_pid_file(pipe_directory + std::string(kPidFile));
  auto found = id ? open_process(*id) : Found(fail(id.error()));
  if (found) return found;
  // The file is gone, or a container has replaced it.
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc", error), end; !error && at != end;
       at.increment(error)) {
    const std::string process = at->path().string();
    const auto number = text::parse_unsigned(at->path().filename().string());
    if (!number || !runs_control_program(process) || !is_daemon_beside_this_process(process)) continue;
    if (auto other = open_process(static_cast<pid_t>(*number))) return other;
  }
  return found;
}

void DaemonProcess::on_end(Loop& loop, std::function<void()> ended) {
  watching_.reset();
  watching_ = loop.watch_descriptor(pidfd_.get(), EPOLLIN, [this, ended = std::move(ended)](std::uint32_t) {
    watching_.reset();
    // If this process is PID 1 of the container, it must reap the daemon.
    siginfo_t info{};
    static_cast<void>(::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG) == 0);
    const auto tell = ended;
    tell();
  });
}

void DaemonProcess::kill() {
  static_cast<void>(::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0u) == 0);
}

}  // namespace gpulet::mps
