// A gRPC server on a Unix socket whose bind, listen and end are the caller's: what a killed process leaves behind, and
// the moment between bind and listen, can be had.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"

namespace grpc {
class Service;
}

namespace gpulet::sim {

class SocketServer {
 public:
  // Binds at once and listens `listen_delay` later. `service` outlives the server.
  static Result<std::unique_ptr<SocketServer>> start(const std::string& path, grpc::Service& service,
                                                     std::chrono::milliseconds listen_delay);
  // Breaks every connection and leaves the socket's file.
  ~SocketServer();
  SocketServer(const SocketServer&) = delete;

 private:
  struct Impl;
  explicit SocketServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpulet::sim
