#include "http/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::http {
namespace {

Result<SocketAddresses> lookup_addresses(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    return fail(Code::kUnavailable, std::string("cannot look up the name: ") + ::gai_strerror(error), host);
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  SocketAddresses addresses;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (one->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
  }
  if (addresses.empty()) return fail(Code::kUnavailable, "the name has no address", host);
  return addresses;
}

}  // namespace

Result<SocketAddress> unix_address(const std::string& path) {
  if (path.empty() || path.size() > kMaxSocketPath) {
    return fail(Code::kInvalidArgument,
                "the path of a socket must have 1 to " + std::to_string(kMaxSocketPath) + " bytes", path);
  }
  SocketAddress address;
  auto& local = reinterpret_cast<sockaddr_un&>(address.storage);
  local.sun_family = AF_UNIX;
  path.copy(local.sun_path, sizeof local.sun_path - 1);
  address.size = sizeof local;
  return address;
}

Resolver::Resolver(Loop& loop, std::string host, std::uint16_t port)
    : relay_(std::make_shared<LoopRelay>(loop)), host_(std::move(host)), port_(port) {}
Resolver::~Resolver() { relay_->close_relay(); }

void Resolver::resolve(Done done) {
  if (host_ == "localhost") {
    auto addresses = lookup_addresses("127.0.0.1", port_, AI_NUMERICHOST);
    if (const auto six = lookup_addresses("::1", port_, AI_NUMERICHOST); six && addresses) {
      addresses->insert(addresses->end(), six->begin(), six->end());
    }
    return done(std::move(addresses));
  }
  if (auto numeric = lookup_addresses(host_, port_, AI_NUMERICHOST)) return done(std::move(numeric));
  done_ = std::move(done);
  if (looking_up_) return;
  const auto look = [this, alive = lifetime_.watch(), relay = relay_, host = host_, port = port_] {
    relay->post_to_loop([this, alive, addresses = lookup_addresses(host, port, AI_ADDRCONFIG)] {
      if (alive) on_addresses(addresses);
    });
  };
  const Status started = start_detached_thread("a name lookup", look);
  if (!started) return std::exchange(done_, nullptr)(fail(started.error()));
  looking_up_ = true;
}

void Resolver::on_addresses(const Result<SocketAddresses>& addresses) {
  looking_up_ = false;
  if (const Done done = std::exchange(done_, nullptr)) done(addresses);
}

namespace {

// A client that acknowledges nothing for this long is gone.
constexpr unsigned kGoneMs = 20'000;
constexpr int kBacklog = 512;  // connections that wait while the listener child restarts

struct HostPort {
  std::string host;  // empty: every address
  std::string port;
};

Result<HostPort> parse_address(const std::string& text) {
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
  return HostPort{std::move(host), std::to_string(*port)};
}

Result<FileDescriptor> bind_tcp(const addrinfo& where, const std::string& about) {
  FileDescriptor fd(::socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return fail(errno_error("cannot make a socket", errno, about));
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

Result<FileDescriptor> listen_tcp(const std::string& text) {
  GPULET_TRY_ASSIGN(const HostPort address, parse_address(text));
  // "::" also accepts IPv4; "0.0.0.0" is for a host without IPv6.
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
    bound = bind_tcp(*found, text);
    if (bound) break;
  }
  return bound;
}

std::uint16_t socket_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

namespace {

constexpr int kLocalBacklog = 64;  // connections that wait while the listener child restarts
constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

// The path of an open descriptor, for calls that take only paths.
std::string descriptor_path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

Result<FileDescriptor> open_directory(const std::string& directory) {
  GPULET_TRY(make_directories(directory));
  FileDescriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.is_open() && (errno == ELOOP || errno == ENOTDIR)) {
    return fail(Code::kFailedPrecondition, "not a directory; links are not followed", directory);
  }
  if (!fd.is_open()) return fail(errno_error("cannot open", errno, directory));
  struct stat found{};
  if (::fstat(fd.get(), &found) != 0) return fail(errno_error("cannot stat", errno, directory));
  if ((found.st_uid != 0 && found.st_uid != ::geteuid()) || (found.st_mode & kOthersWrite) != 0) {
    return fail(
        Code::kFailedPrecondition,
        "others may write in this directory and could replace the socket; it must belong to root and be "
        "writable by nobody else (chmod 755)",
        directory);
  }
  return fd;
}

// Fails if the path exists and must not be replaced.
Status check_directory(int directory, const std::string& name, const std::string& path) {
  struct stat found{};
  if (::fstatat(directory, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return {};
    return fail(errno_error("cannot stat", errno, path));
  }
  if (S_ISSOCK(found.st_mode)) return {};
  return fail(Code::kFailedPrecondition, "exists and is not a socket", path);
}

}  // namespace

Result<std::unique_ptr<LocalSocket>> LocalSocket::listen_unix(const std::string& path, mode_t mode) {
  const auto slash = path.rfind('/');
  if (path.empty() || path.front() != '/' || slash + 1 == path.size() || path.size() > kMaxSocketPath) {
    return fail(Code::kInvalidArgument,
                "not a path for a socket; it must be absolute and have at most " +
                    std::to_string(kMaxSocketPath) + " bytes",
                path);
  }
  std::unique_ptr<LocalSocket> made(new LocalSocket(path, mode));
  made->name_ = path.substr(slash + 1);
  GPULET_TRY_ASSIGN(made->directory_, open_directory(path.substr(0, std::max<std::size_t>(slash, 1))));
  const int directory = made->directory_.get();
  GPULET_TRY(check_directory(directory, made->name_, path));

  made->socket_ = FileDescriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int socket = made->socket_.get();
  if (socket < 0) return fail(errno_error("cannot make a socket", errno, path));
  // Created under another name first, so that it appears with its mode set and already listening.
  const std::string before = ".gpulet-" + std::to_string(::getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string place = descriptor_path(directory) + "/" + before;
  std::memcpy(address.sun_path, place.data(), place.size());
  ::unlinkat(directory, before.c_str(), 0);
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return fail(errno_error("cannot bind", errno, path));
  }
  const auto finish = [&]() -> Status {
    // Through a descriptor, so that no other file's mode can change.
    const FileDescriptor file(::openat(directory, before.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat found{};
    if (!file.is_open() || ::fstat(file.get(), &found) != 0) {
      return fail(errno_error("cannot stat", errno, path));
    }
    made->device_ = found.st_dev;
    made->inode_ = found.st_ino;
    if (::chmod(descriptor_path(file.get()).c_str(), mode) != 0) {
      return fail(errno_error("cannot set its mode", errno, path));
    }
    if (::listen(socket, kLocalBacklog) != 0) return fail(errno_error("cannot listen", errno, path));
    if (::renameat(directory, before.c_str(), directory, made->name_.c_str()) != 0) {
      return fail(errno_error("cannot rename the new socket", errno, path));
    }
    return {};
  };
  if (auto finished = finish(); !finished) {
    ::unlinkat(directory, before.c_str(), 0);
    return fail(std::move(finished.error()));
  }
  return made;
}

LocalSocket::~LocalSocket() {
  struct stat found{};
  if (!directory_.is_open() || ::fstatat(directory_.get(), name_.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0)
    return;
  if (found.st_dev == device_ && found.st_ino == inode_) ::unlinkat(directory_.get(), name_.c_str(), 0);
}

}  // namespace gpulet::http
