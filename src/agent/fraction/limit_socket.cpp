#include "agent/fraction/limit_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

constexpr mode_t kLimitDirectoryMode = 0700;

bool is_peer_of(int socket, uid_t user) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == user;
}

}  // namespace

Result<std::unique_ptr<LimitSocket>> LimitSocket::open_socket(Loop& loop, const std::string& path,
                                                              uid_t allowed_user, Handler handler) {
  GPULET_TRY(make_directories(std::string(text::parent_directory(path)), kLimitDirectoryMode));
  std::unique_ptr<LimitSocket> opened(new LimitSocket(loop, path, allowed_user, std::move(handler)));
  GPULET_TRY_ASSIGN(opened->listener_, bind_unix_socket(path));
  opened->identity_ = file_identity(path);
  GPULET_TRY(start_listening(opened->listener_, path));
  opened->accepting_ = loop.watch_descriptor(opened->listener_.get(), EPOLLIN,
                                             [self = opened.get()](std::uint32_t) { self->accept_some(); });
  return opened;
}

LimitSocket::~LimitSocket() {
  // Another agent may have replaced it.
  if (identity_ && file_identity(path_) == identity_) ::unlink(path_.c_str());
}

void LimitSocket::accept_some() {
  for (std::size_t i = 0; i < kMaxLimitConnections; ++i) {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) return;
    // One that is closed without an answer does not start its container.
    if (!is_peer_of(socket.get(), allowed_user_)) {
      log::warning("another user's process asks for memory limits; it is not answered", {{"socket", path_}});
      continue;
    }
    if (connections_.size() >= kMaxLimitConnections) continue;
    const auto id = next_++;
    auto& connection = connections_[id];
    connection.socket = std::move(socket);
    connection.limit = loop_.after(kLimitRequestLimit, [this, id] {
      answer(id, fail(Code::kDeadlineExceeded, "the agent got no whole request"));
    });
    connection.reading = loop_.watch_descriptor(connection.socket.get(), EPOLLIN,
                                                [this, id](std::uint32_t) { read_some(id); });
  }
}

void LimitSocket::read_some(std::uint64_t id) {
  auto& connection = connections_.at(id);
  std::array<char, 4096> buffer{};
  const ssize_t got = ::recv(connection.socket.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    connections_.erase(id);
    return;
  }
  connection.received.append(buffer.data(), static_cast<std::size_t>(got));
  const auto newline = connection.received.find('\n');
  if (newline != std::string::npos) return use_line(id, connection.received.substr(0, newline));
  if (connection.received.size() > kMaxLimitRequestBytes)
    answer(id, fail(Code::kInvalidArgument, "the request is too long"));
}

void LimitSocket::use_line(std::uint64_t id, const std::string& line) {
  auto& connection = connections_.at(id);
  connection.reading.reset();
  connection.limit.reset();
  connection.received.clear();
  const auto request = parse_limit_request(line);
  if (!request)
    return answer(id, fail(request.error().with_context("the request of gpulet-hook is not valid")));
  handler_(*request, [this, id, alive = lifetime_.watch()](const Status& status) {
    if (alive) answer(id, status);
  });
}

// A line is shorter than a socket's buffer.
void LimitSocket::answer(std::uint64_t id, const Status& status) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const auto connection = std::move(found->second);
  connections_.erase(found);
  const auto line = limit_answer_line(status);
  if (::send(connection.socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    log::debug("gpulet-hook has ended before its answer", {{"socket", path_}});
}

}  // namespace gpulet::agent
