#include "sim/mps/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>

#include "base/file.h"
#include "base/text.h"
#include "base/unix_socket.h"
#include "sim/mps/ask.h"
#include "sim/state/state.h"

namespace gpulet::sim::mps {
namespace {

constexpr std::uint32_t kExclusiveProcess = 3;  // NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
constexpr std::size_t kMaxLine = 4096;
constexpr int kCannotStart = 127;

std::vector<VisibleDevice> all_devices(const Machine& machine) {
  std::vector<VisibleDevice> devices;
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    const auto& gpu = machine.gpus[i];
    if (gpu.mig.current == 0) devices.push_back({gpu.uuid, gpu.compute_mode == kExclusiveProcess});
  }
  return devices;
}

// A MIG device, or a GPU by UUID or its beginning, or by index.
std::optional<VisibleDevice> find_device(const Machine& machine, const std::string& name) {
  const auto all = all_devices(machine);
  if (const auto index = text::parse_unsigned(name)) {
    return *index < all.size() ? std::optional(all[*index]) : std::nullopt;
  }
  for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
    for (const auto& instance : machine.gpus[i].mig.instances) {
      if (instance.used == 0) continue;
      for (const auto& compute : instance.compute) {
        if (compute.used != 0 && name == compute.uuid) return VisibleDevice{compute.uuid, true};
      }
    }
  }
  if (!name.starts_with("GPU-")) return std::nullopt;
  const auto found =
      std::ranges::find_if(all, [&](const VisibleDevice& device) { return device.uuid.starts_with(name); });
  return found == all.end() ? std::nullopt : std::optional(*found);
}

// The log, as the real one writes it: "[2026-05-31 23:46:49.893 Control 11107] …".
class Log {
 public:
  Log(const std::string& folder, bool to_output) : to_output_(to_output) {
    file_ = FileDescriptor(
        ::open((folder + "/control.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  }
  bool valid() const { return file_.valid(); }
  void say(const std::string& text) const {
    const auto now = std::chrono::system_clock::now();
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    const auto milliseconds =
        std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
    std::tm local{};
    ::localtime_r(&seconds, &local);
    char stamp[64];
    const auto length = std::strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", &local);
    char line[256];
    std::snprintf(line, sizeof line, "[%.*s.%03d Control %5d] ", static_cast<int>(length), stamp,
                  static_cast<int>(milliseconds), ::getpid());
    const std::string whole = line + text + "\n";
    for (const int fd : {file_.get(), to_output_ ? STDOUT_FILENO : -1}) {
      if (fd >= 0) static_cast<void>(::write(fd, whole.data(), whole.size()) < 0);
    }
  }

 private:
  FileDescriptor file_;
  bool to_output_;
};

// A process that stands for nvidia-cuda-mps-server: it waits, and goes when the daemon goes.
Result<pid_t> start_server_process() {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail(errno_error("fork", errno));
  if (pid > 0) return pid;
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(kCannotStart);
  ::prctl(PR_SET_NAME, "nvidia-cuda-mps");
  for (int fd = 0; fd < 256; ++fd) ::close(fd);
  for (;;) ::pause();
}

struct Connection {
  FileDescriptor socket;
  std::string received;
  pid_t client = 0;  // a CUDA process, until it hangs up
};

ucred peer_of(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) peer = {};
  return peer;
}

class Server {
 public:
  Server(const DaemonOptions& options, std::vector<VisibleDevice> devices, Log& log)
      : options_(options),
        log_(log),
        control_(std::move(devices), {.start = [this](uid_t user) { return start_server(user); },
                                      .end = [](pid_t pid) { ::kill(pid, SIGKILL); }}) {
    if (!options.active_thread_percentage.empty()) {
      control_.answer("set_default_active_thread_percentage " + options.active_thread_percentage);
    }
  }

  void run(const FileDescriptor& listening) {
    while (!control_.quitting()) {
      std::vector<pollfd> waits{{listening.get(), POLLIN, 0}};
      for (const auto& connection : connections_) waits.push_back({connection.socket.get(), POLLIN, 0});
      if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return;
      reap();
      // From the last on, as one that hangs up is taken out.
      for (std::size_t i = connections_.size(); i-- > 0;) {
        if (waits[i + 1].revents != 0 && !read_from(connections_[i])) {
          if (connections_[i].client != 0) control_.detach(connections_[i].client);
          connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
        }
        if (control_.quitting()) return;
      }
      if (waits[0].revents != 0) accept_one(listening);
    }
  }

 private:
  Result<pid_t> start_server(uid_t user) {
    GPULET_TRY_ASSIGN(const pid_t pid, start_server_process());
    log_.say("Starting new server " + std::to_string(pid) + " for user " + std::to_string(user));
    log_.say("NEW SERVER " + std::to_string(pid) + ": Ready");
    return pid;
  }

  void reap() {
    for (pid_t pid; (pid = ::waitpid(-1, nullptr, WNOHANG)) > 0;) {
      log_.say("Server " + std::to_string(pid) + " exited");
      control_.server_ended(pid);
    }
  }

  void accept_one(const FileDescriptor& listening) {
    FileDescriptor socket(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    log_.say("Accepting connection...");
    connections_.push_back({std::move(socket), {}, 0});
  }

  // False once it is over.
  bool read_from(Connection& connection) {
    char buffer[kMaxLine];
    const ssize_t got = ::recv(connection.socket.get(), buffer, sizeof buffer, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.received.append(buffer, static_cast<std::size_t>(got));
    const auto end = connection.received.find('\n');
    if (end == std::string::npos) return connection.received.size() < kMaxLine;
    const std::string line = connection.received.substr(0, end);
    connection.received.erase(0, end + 1);
    delay();
    if (line.starts_with(kClientHello)) return attach(connection, line.substr(kClientHello.size()));
    log_.say("NEW UI");
    log_.say("Cmd:" + line);
    send(connection, control_.answer(line));
    log_.say("UI closed");
    return false;
  }

  bool attach(Connection& connection, const std::string& wishes) {
    const ucred peer = peer_of(connection.socket.get());
    Client client{peer.pid, {}};
    const auto words = text::split(wishes, ' ');
    if (const auto percentage = parse_percentage(words.empty() ? "" : words[0])) {
      client.limits.threads = *percentage;
    }
    if (const auto limits = parse_memory_limits(words.size() < 2 ? "" : words[1])) {
      client.limits.memory_mib = *limits;
    }
    const auto allowed = control_.attach(peer.uid, client);
    if (!allowed) {
      send(connection, "refused: " + allowed.error().text() + "\n");
      return false;
    }
    log_.say("NEW CLIENT " + std::to_string(peer.pid) + " from user " + std::to_string(peer.uid));
    connection.client = peer.pid;
    std::string text = "threads " + show_percentage(allowed->threads);
    for (const auto& [device, mib] : allowed->memory_mib) {
      text += " memory " + device + "=" + std::to_string(mib) + "M";
    }
    send(connection, text + "\n");
    return true;
  }

  static void send(const Connection& connection, const std::string& text) {
    // A few bytes into an empty buffer; who does not read them does not get them.
    if (!text.empty())
      static_cast<void>(::send(connection.socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0);
  }

  void delay() const {
    const auto text = read_file(options_.pipe_directory + "/" + std::string(kSlowName), 32);
    const auto milliseconds = text ? text::parse_unsigned(text::trim(*text)) : std::nullopt;
    if (milliseconds) ::poll(nullptr, 0, static_cast<int>(std::min<std::uint64_t>(*milliseconds, 600'000)));
  }

  const DaemonOptions& options_;
  Log& log_;
  Control control_;
  std::vector<Connection> connections_;
};

}  // namespace

Result<std::vector<VisibleDevice>> visible_devices(const DaemonOptions& options) {
  auto state = StateFile::open(options.state);
  if (!state) return fail(Code::kUnavailable, "no CUDA driver here", options.state);
  const auto machine = std::make_unique<Machine>(*state->read());
  std::vector<VisibleDevice> devices;
  if (options.visible_devices.empty()) {
    devices = all_devices(*machine);
  } else {
    for (const auto& name : text::split(options.visible_devices, ',')) {
      const auto found = find_device(*machine, name);
      if (!found) break;
      devices.push_back(*found);
    }
  }
  if (devices.empty()) return fail(Code::kUnavailable, "no CUDA-capable device is visible");
  return devices;
}

Status serve(const DaemonOptions& options, const std::function<void()>& ready) {
  GPULET_TRY_ASSIGN(auto devices, visible_devices(options));
  GPULET_TRY(make_directories(options.pipe_directory));
  GPULET_TRY(make_directories(options.log_directory));
  const auto in_pipes = [&](std::string_view name) {
    return options.pipe_directory + "/" + std::string(name);
  };
  const FileDescriptor lock(
      ::open(in_pipes(kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!lock.valid()) return fail(errno_error("open", errno, in_pipes(kLockName)));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(Code::kFailedPrecondition, "An instance of this daemon is already running");
  }
  Log log(options.log_directory, options.log_to_output);
  if (!log.valid()) return fail(errno_error("cannot write control.log", errno, options.log_directory));
  const std::string socket_path = in_pipes(kSocketName);
  GPULET_TRY_ASSIGN(const FileDescriptor listening, bind_unix(socket_path));
  ::chmod(socket_path.c_str(), 0666);
  GPULET_TRY(start_listening(listening, socket_path));
  GPULET_TRY(write_file_atomic(in_pipes(kPidName), std::to_string(::getpid()) + "\n", 0666));
  log.say("Starting control daemon using socket " + socket_path);
  log.say("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" +
          options.pipe_directory);
  for (const auto& device : devices) {
    if (!device.exclusive) log.say("WARNING: " + device.uuid + " is not in EXCLUSIVE_PROCESS mode");
  }
  Server server(options, std::move(devices), log);
  ready();
  server.run(listening);
  log.say("Exit");
  ::unlink(in_pipes(kPidName).c_str());
  return {};
}

}  // namespace gpulet::sim::mps
