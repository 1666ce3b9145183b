// What every unary call to the kubelet is made of. Includes gRPC: for the .cpp files that make calls.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/support/async_unary_call.h>

#include "kubelet/client_call.h"

namespace gpulet::kubelet {

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
ClientCall call_async(Rpc& rpc, std::shared_ptr<Mailbox> mailbox,
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
  std::lock_guard beginning(rpc.beginning());
  call->self = call;
  call->channel = channel;
  call->context.set_authority("localhost");
  call->stub = std::make_unique<Stub>(channel);
  call->tag.run = [weak = std::weak_ptr(call), mailbox = std::move(mailbox), done = std::move(done)](bool) {
    const auto over = weak.lock();
    over->self.reset();
    Mailbox::post(mailbox, [over, done] { done(over->status, over->response); });
  };
  call->reader = (call->stub.get()->*method)(&call->context, request, &rpc.queue());
  call->reader->Finish(&call->response, &call->status, &call->tag);
  return ClientCall([weak = std::weak_ptr(call)] {
    if (const auto open = weak.lock()) open->context.TryCancel();
  });
}

}  // namespace gpulet::kubelet
