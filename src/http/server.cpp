#include "http/server.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace gpulet::http {
namespace {

// Limit of connections accepted in one turn of the loop, so that a flood does not block the existing ones.
constexpr int kMaxAccepts = 32;
// Without a free descriptor or memory in the kernel, the socket would stay ready and the loop would spin.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

PeerAddress peer_address(const sockaddr_storage& peer) {
  const auto bytes = [](const auto& address) {
    return PeerAddress(reinterpret_cast<const char*>(&address), sizeof address);
  };
  if (peer.ss_family == AF_INET) return bytes(reinterpret_cast<const sockaddr_in&>(peer).sin_addr);
  if (peer.ss_family == AF_INET6) return bytes(reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr);
  return {};
}

}  // namespace

Server::Server(Loop& loop, int listening, RequestHandler& service, AccessGate& gate,
               const ServerLimits& limits)
    : loop_(loop), listening_(listening), service_(service), gate_(gate), limits_(limits) {
  watch_listening_socket();
}

Server::~Server() = default;

void Server::watch_listening_socket() {
  accepting_ = loop_.watch_descriptor(listening_, EPOLLIN, [this](std::uint32_t) { accept_all(); });
}

void Server::accept_all() {
  for (int accepted = 0; accepted < kMaxAccepts; ++accepted) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    FileDescriptor socket(
        ::accept4(listening_, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      accepting_.reset();
      again_ = loop_.after(kAcceptPause, [this] { watch_listening_socket(); });
      return;
    }
    if (connections_.size() >= limits_.connections) close_oldest();
    const std::uint64_t id = next_id_++;
    auto& connection = connections_[id];
    connection = std::make_unique<ServerConnection>(*this, id, std::move(socket), peer_address(peer));
    // Most requests arrive with the connection: those are handled before a newer connection can replace it.
    if (!connection->serve_requests()) remove_connection(id);
  }
}

// One client cannot close the connections of others by opening more.
void Server::close_oldest() {
  std::map<std::string_view, std::size_t> counts;
  for (const auto& [id, connection] : connections_) {
    if (!connection->is_subscribed()) ++counts[connection->address()];
  }
  auto chosen = connections_.end();
  std::size_t most = 0;
  for (auto one = connections_.begin(); one != connections_.end(); ++one) {
    if (one->second->is_subscribed() || counts[one->second->address()] <= most) continue;
    most = counts[one->second->address()];
    chosen = one;
  }
  if (chosen != connections_.end()) connections_.erase(chosen);
}

bool Server::make_body_room(std::uint64_t id, std::size_t bytes) {
  if (limits_.body_budget == 0) return true;
  for (;;) {
    std::size_t total = bytes;
    auto idlest = connections_.end();
    for (auto one = connections_.begin(); one != connections_.end(); ++one) {
      const auto held = one->second->body_bytes();
      total += held;
      if (one->first == id || held == 0) continue;
      if (idlest == connections_.end() || one->second->last_progress() < idlest->second->last_progress())
        idlest = one;
    }
    if (total <= limits_.body_budget) return true;
    if (idlest == connections_.end()) return false;
    connections_.erase(idlest);
  }
}

void Server::make_subscriber_room(const PeerAddress& address) {
  const auto* subscribers = service_.event_subscribers();
  if (subscribers == nullptr || subscribers->subscriber_count() < limits_.subscribers) return;
  std::map<std::string_view, std::size_t> counts;
  auto stalled = connections_.end();
  for (auto one = connections_.begin(); one != connections_.end(); ++one) {
    if (!one->second->is_subscribed()) continue;
    ++counts[one->second->address()];
    if (stalled == connections_.end() && one->second->is_stalled()) stalled = one;
  }
  if (stalled != connections_.end()) return static_cast<void>(connections_.erase(stalled));
  auto chosen = connections_.end();
  std::size_t most = counts[address] + 1;
  for (auto one = connections_.begin(); one != connections_.end(); ++one) {
    if (!one->second->is_subscribed() || counts[one->second->address()] <= most) continue;
    most = counts[one->second->address()];
    chosen = one;
  }
  if (chosen != connections_.end()) connections_.erase(chosen);
}

void Server::drop_subscribers() {
  std::erase_if(connections_, [](const auto& entry) { return entry.second->is_subscribed(); });
}

void Server::remove_connection(std::uint64_t id) { connections_.erase(id); }

void Server::delay_connection(std::uint64_t id) {
  delayed_.push_back(id);
  if (!next_turn_) next_turn_ = loop_.after(Duration::zero(), [this] { serve_delayed(); });
}

void Server::serve_delayed() {
  next_turn_.reset();
  for (std::size_t count = std::min(delayed_.size(), kMaxDelayedRequests); count > 0; --count) {
    const std::uint64_t id = delayed_.front();
    delayed_.pop_front();
    const auto found = connections_.find(id);
    if (found != connections_.end() && !found->second->serve_requests()) remove_connection(id);
  }
  if (!delayed_.empty() && !next_turn_)
    next_turn_ = loop_.after(Duration::zero(), [this] { serve_delayed(); });
}

}  // namespace gpulet::http
