// The inside of Rpc: one gRPC server without a listener, one completion queue, one thread. For the .cpp files
// of the libraries that speak gRPC: this one and dra/.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/async_unary_call.h>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"
#include "device_plugin/device_service.h"
#include "device_plugin/pod_resources.h"

namespace grpc {
class CompletionQueue;
class ServerCompletionQueue;
class Service;
class Status;
}  // namespace grpc

namespace gpulet::device_plugin {

// What an operation on the queue runs when it is over, on the gRPC thread. Must outlive its operation; may
// delete itself from inside `run`.
struct Tag {
  std::function<void(bool ok)> on_complete;
};

// Services of another library, on the same server and queue.
class AddedServices {
 public:
  virtual ~AddedServices() = default;
  virtual std::vector<grpc::Service*> services() = 0;
  // Begins to take requests. `queue` lives until after stop_serving() and until it is drained.
  virtual void start_serving(grpc::ServerCompletionQueue& queue) = 0;
  // No new operation is begun after this, and calls that were not answered are dropped.
  virtual void stop_serving() = 0;
};

class GrpcThread {
 public:
  // `more` may be null.
  explicit GrpcThread(std::shared_ptr<AddedServices> more);
  ~GrpcThread();
  GrpcThread(const GrpcThread&) = delete;

  grpc::CompletionQueue& queue();
  DeviceService& device_service();
  // Held while an operation is begun outside the gRPC thread: its tag does not run before it is all there.
  std::mutex& start_mutex();
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
  static void post_task(const std::shared_ptr<Mailbox>& box, std::function<void()> task);
  void close_mailbox();

 private:
  std::mutex mutex_;
  Loop* loop_;
  bool open_on_loop_ = true;  // the loop's thread only
};

}  // namespace gpulet::device_plugin

namespace gpulet::device_plugin {

// One call to the kubelet over a connected socket. For this library's .cpp files.

// Owns an open call; destroying it cancels the call. The callback comes once all the same, through the
// mailbox.
class [[nodiscard]] ClientCall {
 public:
  ClientCall() = default;
  explicit ClientCall(std::function<void()> cancel) : cancel_(std::move(cancel)) {}
  ClientCall(ClientCall&& other) noexcept : cancel_(std::exchange(other.cancel_, nullptr)) {}
  ClientCall& operator=(ClientCall&& other) noexcept {
    if (this != &other) {
      cancel();
      cancel_ = std::exchange(other.cancel_, nullptr);
    }
    return *this;
  }
  ~ClientCall() { cancel(); }
  void cancel() {
    if (auto cancel = std::exchange(cancel_, nullptr)) cancel();
  }
  bool is_open() const { return static_cast<bool>(cancel_); }

 private:
  std::function<void()> cancel_;
};

struct Registration {
  std::string endpoint;
  std::string resource;
};
// Register of the kubelet at the other end of `socket`.
ClientCall call_register(GrpcThread& rpc, std::shared_ptr<Mailbox> mailbox, FileDescriptor socket,
                         const Registration& registration, std::function<void(Status)> done);

}  // namespace gpulet::device_plugin

namespace gpulet::device_plugin {

// What every unary call to the kubelet is made of. Includes gRPC: for the .cpp files that make calls.

// A channel over a connected socket: no resolver, no reconnecting. `max_bytes` limits what is received.
inline std::shared_ptr<grpc::Channel> channel_over(FileDescriptor socket, int max_bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_bytes);
  return grpc::CreateCustomInsecureChannelFromFd("localhost", socket.release(), arguments);
}

template <class Stub, class Request, class Response>
using AsyncMethod = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (Stub::*)(
    grpc::ClientContext*, const Request&, grpc::CompletionQueue*);

// Calls `Stub::method` over `channel`; `done(status, response)` runs on the loop unless the mailbox was
// closed.
template <class Stub, class Request, class Response>
ClientCall call_async(GrpcThread& rpc, std::shared_ptr<Mailbox> mailbox,
                      const std::shared_ptr<grpc::Channel>& channel,
                      AsyncMethod<Stub, Request, Response> method, const Request& request,
                      std::function<void(const grpc::Status&, const Response&)> done) {
  struct Call {
    std::shared_ptr<grpc::Channel> channel;
    grpc::ClientContext context;
    std::unique_ptr<Stub> stub;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
    Response response;
    grpc::Status status;
    Tag tag;
    std::shared_ptr<Call> self;  // until it is over
  };
  auto call = std::make_shared<Call>();
  std::lock_guard beginning(rpc.start_mutex());
  call->self = call;
  call->channel = channel;
  call->context.set_authority("localhost");
  call->stub = std::make_unique<Stub>(channel);
  call->tag.on_complete = [weak = std::weak_ptr(call), mailbox = std::move(mailbox),
                           done = std::move(done)](bool) {
    const auto over = weak.lock();
    over->self.reset();
    Mailbox::post_task(mailbox, [over, done] { done(over->status, over->response); });
  };
  call->reader = (call->stub.get()->*method)(&call->context, request, &rpc.queue());
  call->reader->Finish(&call->response, &call->status, &call->tag);
  return ClientCall([weak = std::weak_ptr(call)] {
    if (const auto open = weak.lock()) open->context.TryCancel();
  });
}

}  // namespace gpulet::device_plugin
