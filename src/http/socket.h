// Stream sockets: the addresses of a host, and sockets that listen over TCP or at a path.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet::http {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};
using SocketAddresses = std::vector<SocketAddress>;  // in the order in which to try them

// The address of a Unix socket. Errors: kInvalidArgument for a path that is empty or too long for a socket.
Result<SocketAddress> unix_address(const std::string& path);

// Looks up the addresses of a host without blocking the loop: a numeric address and "localhost" at once,
// any other name by getaddrinfo on a detached thread that shares nothing with the loop. Loop's thread only.
class Resolver {
 public:
  using Done = std::function<void(Result<SocketAddresses>)>;

  Resolver(Loop& loop, std::string host, std::uint16_t port);
  ~Resolver();
  Resolver(const Resolver&) = delete;

  // Calls `done` once, at once or later from the loop; never after this object is destroyed or resolve() is
  // called again. At most one lookup runs: a second call waits for the result of the first. Errors:
  // kUnavailable for an unknown name, and when the kernel starts no thread.
  void resolve(Done done);

 private:
  void on_addresses(const Result<SocketAddresses>& addresses);

  std::shared_ptr<LoopRelay> relay_;
  std::string host_;
  std::uint16_t port_;
  bool looking_up_ = false;
  Done done_;
  Lifetime lifetime_;
};

// A non-blocking listening socket. `address`: "127.0.0.1:8080", "[::1]:8080", "localhost:8080", or ":8080"
// for every address of the host; port 0 for any. Errors: kInvalidArgument for a bad address, kIo or
// kPermissionDenied when it cannot be bound.
Result<FileDescriptor> listen_tcp(const std::string& address);
// The local port of a TCP socket; 0 on failure.
std::uint16_t socket_port(int socket);

// A Unix stream socket that listens at a path. The file's mode alone decides who may connect, so only root
// and the process's own user may be able to replace the file.
class LocalSocket {
 public:
  // Replaces a socket left at `path`: a client finds the old or the new one, never none, and never one of
  // another mode. Makes the directory (0755) where it is missing. The directory must belong to root or this
  // user, and nobody else may write in it. No link is followed for the directory or the socket. Errors:
  // kInvalidArgument for a path that is not absolute or too long for a socket; kFailedPrecondition where
  // the path holds something else than a socket, or others may write in the directory; kPermissionDenied
  // and others of the file system.
  static Result<std::unique_ptr<LocalSocket>> listen_unix(const std::string& path, mode_t mode);
  // Removes the file, unless it has been replaced.
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;

  int fd() const { return socket_.get(); }  // listening, non-blocking
  const std::string& socket_path() const { return path_; }
  mode_t mode() const { return mode_; }

 private:
  LocalSocket(std::string path, mode_t mode) : path_(std::move(path)), mode_(mode) {}

  std::string path_, name_;
  mode_t mode_;
  FileDescriptor directory_, socket_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace gpulet::http
