#include "sim/mps/ask.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/unix_socket.h"
#include "sim/mps/daemon.h"

namespace gpulet::sim::mps {
namespace {

Result<FileDescriptor> connect(const std::string& pipe_directory) {
  auto socket = connect_unix(pipe_directory + "/" + std::string(kSocketName));
  if (!socket) return fail(Code::kUnavailable, "Cannot find MPS control daemon process");
  ::fcntl(socket->get(), F_SETFL, ::fcntl(socket->get(), F_GETFL) & ~O_NONBLOCK);
  return socket;
}

Status send_line(const FileDescriptor& socket, const std::string& line) {
  const std::string whole = line + "\n";
  if (::send(socket.get(), whole.data(), whole.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(whole.size())) {
    return {};
  }
  return fail(Code::kUnavailable, "the MPS control daemon hung up");
}

// Up to the end, or to the end of a line.
std::string receive(const FileDescriptor& socket, bool one_line) {
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

Result<std::string> ask(const std::string& pipe_directory, const std::string& command) {
  GPULET_TRY_ASSIGN(const FileDescriptor socket, connect(pipe_directory));
  GPULET_TRY(send_line(socket, command));
  return receive(socket, false);
}

Result<Attached> attach(const std::string& pipe_directory, const std::string& threads,
                        const std::string& memory) {
  GPULET_TRY_ASSIGN(FileDescriptor socket, connect(pipe_directory));
  GPULET_TRY(
      send_line(socket, std::string(kClientHello) + (threads.empty() ? "100" : threads) + " " + memory));
  std::string answer = receive(socket, true);
  if (!answer.empty()) answer.pop_back();
  if (!answer.starts_with("threads ")) {
    return fail(Code::kFailedPrecondition, answer.empty() ? "the MPS control daemon hung up" : answer);
  }
  return Attached{std::move(socket), std::move(answer)};
}

Result<pid_t> daemon_pid(const std::string& pipe_directory) {
  GPULET_TRY_ASSIGN(const FileDescriptor socket, connect(pipe_directory));
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || peer.pid <= 0) {
    return fail(Code::kUnavailable, "the MPS control daemon's process is not to be seen from here");
  }
  return peer.pid;
}

Status die(const std::string& pipe_directory) { return send_signal(pipe_directory, SIGKILL); }
Status hang(const std::string& pipe_directory) { return send_signal(pipe_directory, SIGSTOP); }

Status slow(const std::string& pipe_directory, unsigned milliseconds) {
  GPULET_TRY(daemon_pid(pipe_directory));
  const std::string path = pipe_directory + "/" + std::string(kSlowName);
  if (milliseconds != 0) return write_file_atomic(path, std::to_string(milliseconds) + "\n");
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail(errno_error("unlink", errno, path));
  return {};
}

Status heal(const std::string& pipe_directory) {
  GPULET_TRY(slow(pipe_directory, 0));
  return send_signal(pipe_directory, SIGCONT);
}

}  // namespace gpulet::sim::mps
