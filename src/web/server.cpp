#include "web/server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "web/connection.h"

namespace gpulet::web {
namespace {

// Accepted in one turn of the loop, so that a flood of connections does not keep those that wait from being
// served.
constexpr int kMaxAccepts = 32;
// Without a free descriptor or memory in the kernel, the socket would stay ready and the loop would spin.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

Server::Server(Loop& loop, int listening, Service& service, Door& door, const ServerLimits& limits)
    : loop_(loop), listening_(listening), service_(service), door_(door), limits_(limits) {
  watch();
}

Server::~Server() = default;

void Server::watch() {
  accepting_ = loop_.watch(listening_, EPOLLIN, [this](std::uint32_t) { accept_all(); });
}

void Server::accept_all() {
  for (int accepted = 0; accepted < kMaxAccepts; ++accepted) {
    FileDescriptor socket(::accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      accepting_.reset();
      again_ = loop_.after(kAcceptPause, [this] { watch(); });
      return;
    }
    if (connections_.size() >= limits_.connections) make_room();
    const std::uint64_t id = next_id_++;
    auto& connection = connections_[id];
    connection = std::make_unique<Connection>(loop_, std::move(socket), service_, door_, limits_,
                                              [this, id] { remove(id); });
    // Most requests are there with the connection: those are answered before a newer one can take their
    // place.
    if (!connection->serve()) remove(id);
  }
}

void Server::make_room() {
  const auto waits = [](const auto& entry) { return !entry.second->watching(); };
  const auto oldest = std::find_if(connections_.begin(), connections_.end(), waits);
  if (oldest != connections_.end()) connections_.erase(oldest);
}

void Server::drop_watchers() {
  std::erase_if(connections_, [](const auto& entry) { return entry.second->watching(); });
}

void Server::remove(std::uint64_t id) { connections_.erase(id); }

}  // namespace gpulet::web
