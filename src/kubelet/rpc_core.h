// The inside of Rpc: one gRPC server without a listener, one completion queue, one thread. For this room's .cpp files.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"
#include "kubelet/device_service.h"
#include "kubelet/rpc.h"

namespace grpc {
class CompletionQueue;
class Status;
}  // namespace grpc

namespace gpulet::kubelet {

// What an operation on the queue runs when it is over, on the gRPC thread. Must outlive its operation; may delete
// itself from inside `run`.
struct Tag {
  std::function<void(bool ok)> run;
};

class Rpc {
 public:
  Rpc();
  ~Rpc();
  Rpc(const Rpc&) = delete;

  grpc::CompletionQueue& queue();
  DeviceService& devices();
  // Held while an operation is begun outside the gRPC thread: its tag does not run before it is all there.
  std::mutex& beginning();
  // Serves a connected socket; gRPC owns it from here on and names its requests' peer "fd:<number>".
  void serve_connection(FileDescriptor socket);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The Status as gRPC says it, and back.
grpc::Status to_grpc(const Error& error);
Error from_grpc(const grpc::Status& status, const std::string& about);

// Hands work from the gRPC thread to the loop while its owner is alive.
class Mailbox {
 public:
  explicit Mailbox(Loop& loop) : loop_(&loop) {}
  // The task does not run once close() was called.
  static void post(const std::shared_ptr<Mailbox>& box, std::function<void()> task);
  void close();

 private:
  std::mutex mutex_;
  Loop* loop_;
  bool open_on_loop_ = true;  // the loop's thread only
};

}  // namespace gpulet::kubelet
