#include "kubelet/async_call.h"
#include "kubelet/plugin_host.h"
#include "proto/deviceplugin_v1beta1.grpc.pb.h"

namespace gpulet::kubelet {

ClientCall call_register(Rpc& rpc, std::shared_ptr<Mailbox> mailbox, FileDescriptor socket,
                         const Registration& registration, std::function<void(Status)> done) {
  v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(registration.endpoint);
  request.set_resource_name(registration.resource);
  request.mutable_options()->set_get_preferred_allocation_available(true);
  using Stub = v1beta1::Registration::Stub;
  return call_async<Stub, v1beta1::RegisterRequest, v1beta1::Empty>(
      rpc, std::move(mailbox), channel_over(std::move(socket), kMaxRequestBytes), &Stub::AsyncRegister, request,
      [done = std::move(done), resource = registration.resource](const grpc::Status& status, const v1beta1::Empty&) {
        if (status.ok()) {
          done({});
        } else {
          done(fail(from_grpc(status, resource).with("the kubelet did not accept the registration")));
        }
      });
}

}  // namespace gpulet::kubelet
