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
    if (gpu.mig.current != 0) continue;
    devices.push_back({gpu.uuid, gpu.compute_mode == kExclusiveProcess, gpu.multiprocessors,
                       sms_of_chunk(gpu.compute_major)});
  }
  return devices;
}

// Finds a MIG device by UUID, or a GPU by UUID, its prefix, or index.
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

// The log in the real one's format: "[2026-05-31 23:46:49.893 Control 11107] …".
class DaemonLog {
 public:
  DaemonLog(const std::string& directory, bool to_output) : to_output_(to_output) {
    file_ = FileDescriptor(
        ::open((directory + "/control.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  }
  bool is_open() const { return file_.is_open(); }
  void write_line(const std::string& text) const {
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

// Starts a process in place of nvidia-cuda-mps-server: it waits and ends with the daemon.
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
  pid_t client = 0;         // a CUDA process, until it disconnects
  std::string directory{};  // of the socket, below the pipe directory
};

// Where one connects: the pipe directory's socket, and with protocol 3 those of servers and namespaces.
struct Listener {
  std::string directory;  // below the pipe directory
  FileDescriptor socket;
};

Result<FileDescriptor> listen_in(const std::string& directory) {
  const std::string path = directory + "/" + std::string(kSocketName);
  GPULET_TRY_ASSIGN(FileDescriptor listening, bind_unix_socket(path));
  ::chmod(path.c_str(), 0666);
  GPULET_TRY(start_listening(listening, path));
  return listening;
}

ucred peer_credentials(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) peer = {};
  return peer;
}

class DaemonServer {
 public:
  DaemonServer(const DaemonOptions& options, std::vector<VisibleDevice> devices, DaemonLog& log)
      : options_(options),
        log_(log),
        control_(devices, processes(), options.has_sm_partitions),
        namespaces_(std::move(devices), options.pipe_directory, options.is_multi_user, processes()) {
    if (!options.active_thread_percentage.empty()) {
      control_.execute_command("set_default_active_thread_percentage " + options.active_thread_percentage);
    }
  }

  void serve_until_quit(FileDescriptor listening) {
    listeners_.push_back({"", std::move(listening)});
    while (!is_quitting()) {
      std::vector<pollfd> waits;
      for (const auto& listener : listeners_) waits.push_back({listener.socket.get(), POLLIN, 0});
      for (const auto& connection : connections_) waits.push_back({connection.socket.get(), POLLIN, 0});
      if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return;
      reap_servers();
      const auto listeners = listeners_.size();
      // Backwards, because disconnected ones are removed.
      for (std::size_t i = connections_.size(); i-- > 0;) {
        if (waits[i + listeners].revents == 0 || read_connection(connections_[i])) continue;
        if (is_quitting()) {
          // Before the reply's end: a client that has seen it cannot connect any more.
          ::shutdown(listeners_.front().socket.get(), SHUT_RDWR);
          return;
        }
        remove_client(connections_[i].client);
        connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
      }
      for (std::size_t i = 0; i < listeners; ++i) {
        if (waits[i].revents != 0) accept_one(listeners_[i]);
      }
      follow_namespaces();
    }
  }

 private:
  ServerProcesses processes() {
    return {.start = [this](uid_t user) { return start_server(user); },
            .end = [](pid_t pid) { ::kill(pid, SIGKILL); }};
  }
  bool is_quitting() const { return control_.is_quitting() || namespaces_.is_quitting(); }
  void remove_client(pid_t client) {
    if (client == 0) return;
    control_.remove_client(client);
    namespaces_.remove_client(client);
  }
  // The sockets of the servers and namespaces that there are.
  void follow_namespaces() {
    const auto wanted = namespaces_.client_directories();
    const auto path = [this](const std::string& below) { return options_.pipe_directory + "/" + below; };
    std::erase_if(listeners_, [&](const Listener& listener) {
      if (listener.directory.empty() || std::ranges::count(wanted, listener.directory) != 0) return false;
      ::unlink((path(listener.directory) + "/" + std::string(kSocketName)).c_str());
      ::rmdir(path(listener.directory).c_str());
      return true;
    });
    for (const auto& directory : wanted) {
      if (std::ranges::find(listeners_, directory, &Listener::directory) != listeners_.end()) continue;
      auto listening = make_directories(path(directory)) ? listen_in(path(directory))
                                                         : fail(Code::kIo, "no directory", directory);
      if (!listening) {
        log_.write_line("cannot listen: " + listening.error().full_message());
        continue;
      }
      listeners_.push_back({directory, std::move(*listening)});
    }
  }
  Result<pid_t> start_server(uid_t user) {
    GPULET_TRY_ASSIGN(const pid_t pid, start_server_process());
    log_.write_line("Starting new server " + std::to_string(pid) + " for user " + std::to_string(user));
    log_.write_line("NEW SERVER " + std::to_string(pid) + ": Ready");
    return pid;
  }

  void reap_servers() {
    for (pid_t pid; (pid = ::waitpid(-1, nullptr, WNOHANG)) > 0;) {
      log_.write_line("Server " + std::to_string(pid) + " exited");
      control_.remove_server(pid);
      namespaces_.remove_server(pid);
    }
  }

  void accept_one(const Listener& listener) {
    FileDescriptor socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) return;
    log_.write_line("Accepting connection...");
    connections_.push_back({std::move(socket), {}, 0, listener.directory});
  }

  // Returns false once the connection ends.
  bool read_connection(Connection& connection) {
    char buffer[kMaxLine];
    const ssize_t got = ::recv(connection.socket.get(), buffer, sizeof buffer, 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    connection.received.append(buffer, static_cast<std::size_t>(got));
    const auto end = connection.received.find('\n');
    if (end == std::string::npos) return connection.received.size() < kMaxLine;
    const std::string line = connection.received.substr(0, end);
    connection.received.erase(0, end + 1);
    delay_reply();
    if (line.starts_with(kClientHello)) return accept_client(connection, line.substr(kClientHello.size()));
    log_.write_line("NEW UI");
    log_.write_line("Cmd:" + line);
    send_reply(connection, answer_line(connection, line));
    for (const auto& ended : {control_.take_terminated(), namespaces_.take_terminated()}) {
      for (const auto& other : connections_) {
        if (other.client != 0 && std::ranges::count(ended, other.client) != 0)
          send_reply(other, std::string(kClientTerminated));
      }
    }
    log_.write_line("UI closed");
    return false;
  }

  std::string answer_line(const Connection& connection, const std::string& line) {
    const bool has_arguments = line.starts_with(kArgumentsHello);
    if (has_arguments != (options_.protocol == 3)) {
      const std::string text =
          "Error: the daemon that runs has protocol " + std::to_string(options_.protocol);
      return (has_arguments ? "1\n" : "") + text + "\n";
    }
    if (!has_arguments) return control_.execute_command(line);
    const auto arguments = text::split(line.substr(kArgumentsHello.size()), kArgumentEnd);
    Answer answer;
    if (arguments == std::vector<std::string>{"-q"}) {
      namespaces_.quit();
    } else {
      answer = namespaces_.execute_command(peer_credentials(connection.socket.get()).uid, arguments);
    }
    // Before the answer: who has read it finds the namespace's directory.
    follow_namespaces();
    return std::to_string(answer.code) + "\n" + answer.text;
  }

  bool accept_client(Connection& connection, const std::string& request) {
    const ucred peer = peer_credentials(connection.socket.get());
    Client client{peer.pid, {}};
    const auto words = text::split(request, ' ');
    if (const auto percentage = parse_percentage(words.empty() ? "" : words[0])) {
      client.limits.threads = *percentage;
    }
    if (const auto limits = parse_memory_limits(words.size() < 2 ? "" : words[1])) {
      client.limits.memory_mib = *limits;
    }
    if (words.size() >= 3) client.sm_partition = words[2];
    const auto allowed = options_.protocol == 3
                             ? namespaces_.add_client(connection.directory, peer.uid, client)
                             : control_.add_client(peer.uid, client);
    if (!allowed) {
      send_reply(connection, "refused: " + allowed.error().full_message() + "\n");
      return false;
    }
    log_.write_line("NEW CLIENT " + std::to_string(peer.pid) + " from user " + std::to_string(peer.uid));
    connection.client = peer.pid;
    std::string text = "threads " + percentage_text(allowed->threads);
    for (const auto& [device, mib] : allowed->memory_mib) {
      text += " memory " + device + "=" + std::to_string(mib) + "M";
    }
    if (allowed->sms != 0) text += " sms " + std::to_string(allowed->sms);
    send_reply(connection, text + "\n");
    return true;
  }

  static void send_reply(const Connection& connection, const std::string& text) {
    // A few bytes into an empty buffer: never blocks on a client that does not read.
    if (!text.empty())
      static_cast<void>(::send(connection.socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0);
  }

  void delay_reply() const {
    const auto text = read_file(options_.pipe_directory + "/" + std::string(kDelayName), 32);
    const auto milliseconds = text ? text::parse_unsigned(text::trim(*text)) : std::nullopt;
    if (milliseconds) ::poll(nullptr, 0, static_cast<int>(std::min<std::uint64_t>(*milliseconds, 600'000)));
  }

  const DaemonOptions& options_;
  DaemonLog& log_;
  Control control_;
  NamespaceControl namespaces_;
  std::vector<Listener> listeners_;
  std::vector<Connection> connections_;
};

}  // namespace

Result<std::vector<VisibleDevice>> visible_devices(const DaemonOptions& options) {
  auto state = StateFile::open_state(options.state);
  if (!state) return fail(Code::kUnavailable, "no CUDA driver here", options.state);
  const auto machine = std::make_unique<Machine>(*state->lock_for_read());
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

Status run_daemon(const DaemonOptions& options, const std::function<void()>& ready) {
  GPULET_TRY_ASSIGN(auto devices, visible_devices(options));
  GPULET_TRY(make_directories(options.pipe_directory));
  GPULET_TRY(make_directories(options.log_directory));
  const auto in_pipes = [&](std::string_view name) {
    return options.pipe_directory + "/" + std::string(name);
  };
  const FileDescriptor lock(
      ::open(in_pipes(kLockName).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!lock.is_open()) return fail(errno_error("open", errno, in_pipes(kLockName)));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(Code::kFailedPrecondition, "An instance of this daemon is already running");
  }
  DaemonLog log(options.log_directory, options.log_to_output);
  if (!log.is_open()) return fail(errno_error("cannot write control.log", errno, options.log_directory));
  const std::string socket_path = in_pipes(kSocketName);
  GPULET_TRY_ASSIGN(FileDescriptor listening, listen_in(options.pipe_directory));
  GPULET_TRY(write_file_atomic(in_pipes(kPidName), std::to_string(::getpid()) + "\n", 0666));
  log.write_line("Starting control daemon using socket " + socket_path);
  log.write_line("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" +
                 options.pipe_directory);
  for (const auto& device : devices) {
    if (!device.exclusive) log.write_line("WARNING: " + device.uuid + " is not in EXCLUSIVE_PROCESS mode");
  }
  DaemonServer server(options, std::move(devices), log);
  ready();
  server.serve_until_quit(std::move(listening));
  log.write_line("Exit");
  ::unlink(in_pipes(kPidName).c_str());
  return {};
}

namespace {

Result<FileDescriptor> connect_to_daemon(const std::string& pipe_directory) {
  auto socket = connect_unix_socket(pipe_directory + "/" + std::string(kSocketName));
  if (!socket) return fail(Code::kUnavailable, "Cannot find MPS control daemon process");
  ::fcntl(socket->get(), F_SETFL, ::fcntl(socket->get(), F_GETFL) & ~O_NONBLOCK);
  return socket;
}

Status send_line(const FileDescriptor& socket, const std::string& line) {
  const std::string whole = line + "\n";
  if (::send(socket.get(), whole.data(), whole.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(whole.size())) {
    return {};
  }
  return fail(Code::kUnavailable, "the MPS control daemon closed the connection");
}

// Reads to the end of the stream, or of a line.
std::string receive_reply(const FileDescriptor& socket, bool one_line) {
  std::string text;
  char buffer[1024];
  for (;;) {
    const ssize_t got = ::recv(socket.get(), buffer, sizeof buffer, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (one_line && text.back() == '\n') return text;
  }
}

Status send_signal(const std::string& pipe_directory, int signal) {
  GPULET_TRY_ASSIGN(const pid_t pid, daemon_pid(pipe_directory));
  if (::kill(pid, signal) != 0) return fail(errno_error("kill", errno, "process " + std::to_string(pid)));
  return {};
}

}  // namespace

Result<std::string> send_command(const std::string& pipe_directory, const std::string& command) {
  GPULET_TRY_ASSIGN(const FileDescriptor socket, connect_to_daemon(pipe_directory));
  GPULET_TRY(send_line(socket, command));
  return receive_reply(socket, false);
}

Result<Answer> send_arguments(const std::string& pipe_directory, const std::vector<std::string>& arguments) {
  GPULET_TRY_ASSIGN(const FileDescriptor socket, connect_to_daemon(pipe_directory));
  std::string line(kArgumentsHello);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (i > 0) line += kArgumentEnd;
    line += arguments[i];
  }
  GPULET_TRY(send_line(socket, line));
  const auto reply = receive_reply(socket, false);
  const auto end = reply.find('\n');
  const auto code = end == std::string::npos ? std::nullopt : text::parse_unsigned(reply.substr(0, end));
  if (!code) return fail(Code::kUnavailable, "the MPS control daemon closed the connection");
  return Answer{static_cast<int>(*code), reply.substr(end + 1)};
}

Result<AttachedClient> attach_client(const std::string& pipe_directory, const std::string& threads,
                                     const std::string& memory, const std::string& partition) {
  GPULET_TRY_ASSIGN(FileDescriptor socket, connect_to_daemon(pipe_directory));
  GPULET_TRY(send_line(socket, std::string(kClientHello) + (threads.empty() ? "100" : threads) + " " +
                                   memory + " " + partition));
  std::string answer = receive_reply(socket, true);
  if (!answer.empty()) answer.pop_back();
  if (!answer.starts_with("threads ")) {
    return fail(Code::kFailedPrecondition,
                answer.empty() ? "the MPS control daemon closed the connection" : answer);
  }
  return AttachedClient{std::move(socket), std::move(answer)};
}

Result<pid_t> daemon_pid(const std::string& pipe_directory) {
  GPULET_TRY_ASSIGN(const FileDescriptor socket, connect_to_daemon(pipe_directory));
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0) {
    return fail(Code::kUnavailable, "the MPS control daemon's process is not visible here");
  }
  return peer.pid;
}

Status crash_daemon(const std::string& pipe_directory) { return send_signal(pipe_directory, SIGKILL); }
Status hang_daemon(const std::string& pipe_directory) { return send_signal(pipe_directory, SIGSTOP); }

Status delay_daemon(const std::string& pipe_directory, unsigned milliseconds) {
  GPULET_TRY(daemon_pid(pipe_directory));
  const std::string path = pipe_directory + "/" + std::string(kDelayName);
  if (milliseconds != 0) return write_file_atomic(path, std::to_string(milliseconds) + "\n");
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail(errno_error("unlink", errno, path));
  return {};
}

Status restore_daemon(const std::string& pipe_directory) {
  GPULET_TRY(delay_daemon(pipe_directory, 0));
  return send_signal(pipe_directory, SIGCONT);
}

}  // namespace gpulet::sim::mps
