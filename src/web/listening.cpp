#include "web/listening.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>

#include "base/text.h"

namespace gpulet::web {
namespace {

// A client that acknowledges nothing for so long is gone, though its host never said so.
constexpr unsigned kGoneMs = 20'000;
constexpr int kBacklog = 512;  // connections that wait while the child is started anew

struct Address {
  std::string host;  // empty: every address
  std::string port;
};

Result<Address> parse_address(const std::string& text) {
  const auto colon = text.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt : text::parse_unsigned(text.substr(colon + 1));
  if (!port || *port > 65'535) {
    return fail(Code::kInvalidArgument,
                "not an address to listen on; it must be HOST:PORT, for example :8080", text);
  }
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return fail(Code::kInvalidArgument, "an IPv6 address must be in brackets, for example [::1]:8080", text);
  }
  if (host == "localhost") host = "127.0.0.1";
  return Address{std::move(host), std::to_string(*port)};
}

Result<FileDescriptor> bind_to(const addrinfo& where, const std::string& about) {
  FileDescriptor fd(::socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return fail(errno_error("cannot make a socket", errno, about));
  const int on = 1, off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // accepted connections inherit it
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kGoneMs, sizeof kGoneMs);
  if (where.ai_family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd.get(), where.ai_addr, where.ai_addrlen) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    return fail(errno_error("cannot listen", errno, about));
  }
  return fd;
}

}  // namespace

Result<FileDescriptor> listen_on(const std::string& text) {
  GPULET_TRY_ASSIGN(const Address address, parse_address(text));
  // Every address is the IPv6 one, which takes IPv4 too, or IPv4's on a host without IPv6.
  const std::array<const char*, 2> hosts = {address.host.empty() ? "::" : address.host.c_str(),
                                            address.host.empty() ? "0.0.0.0" : nullptr};
  Result<FileDescriptor> bound =
      fail(Code::kInvalidArgument, "not an address to listen on; the host must be numeric", text);
  for (const char* host : hosts) {
    if (host == nullptr) break;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host, address.port.c_str(), &hints, &found) != 0) continue;
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
    bound = bind_to(*found, text);
    if (bound) break;
  }
  return bound;
}

std::uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace gpulet::web
