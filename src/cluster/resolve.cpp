#include "cluster/resolve.h"

#include <netdb.h>

#include <cstring>
#include <utility>

namespace gpulet::cluster {
namespace {

Result<Addresses> look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    return fail(Code::kUnavailable, std::string("cannot look the name up: ") + ::gai_strerror(error), host);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  Addresses addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_addrlen > sizeof(sockaddr_storage)) continue;
    Address& address = addresses.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  if (addresses.empty()) return fail(Code::kUnavailable, "the name has no address", host);
  return addresses;
}

}  // namespace

Resolver::Resolver(Loop& loop, std::string host, std::uint16_t port)
    : relay_(std::make_shared<Relay>(loop)), host_(std::move(host)), port_(port) {}
Resolver::~Resolver() { relay_->close(); }

void Resolver::resolve(Done done) {
  if (host_ == "localhost") {
    auto addresses = look_up("127.0.0.1", port_, AI_NUMERICHOST);
    if (const auto six = look_up("::1", port_, AI_NUMERICHOST); six && addresses) {
      addresses->insert(addresses->end(), six->begin(), six->end());
    }
    return done(std::move(addresses));
  }
  if (auto numeric = look_up(host_, port_, AI_NUMERICHOST)) return done(std::move(numeric));
  done_ = std::move(done);
  if (looking_up_) return;
  const auto look = [this, alive = std::weak_ptr(alive_), relay = relay_, host = host_, port = port_] {
    relay->post([this, alive, addresses = look_up(host, port, AI_ADDRCONFIG)] {
      if (!alive.expired()) answered(addresses);
    });
  };
  const Status started = start_detached("a name look-up", look);
  if (!started) return std::exchange(done_, nullptr)(fail(started.error()));
  looking_up_ = true;
}

void Resolver::answered(const Result<Addresses>& addresses) {
  looking_up_ = false;
  if (const Done done = std::exchange(done_, nullptr)) done(addresses);
}

}  // namespace gpulet::cluster
