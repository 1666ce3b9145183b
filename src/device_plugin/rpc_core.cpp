#include "device_plugin/rpc_core.h"

#include <thread>

#include <absl/synchronization/mutex.h>
#include <grpc/support/cpu.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include "device_plugin/grpc_event_engine.h"
#include "device_plugin/plugin_host.h"
#include "device_plugin/pod_resources.h"
#include "proto/deviceplugin_v1beta1.grpc.pb.h"

// gRPC sizes its pools and per-core tables by these two functions (32 threads on a host of 32 cores or more)
// and has no setting for it. Their object file in libgpr.a has nothing else, so these definitions replace it.
unsigned gpr_cpu_num_cores() { return 1; }
unsigned gpr_cpu_current_cpu() { return 0; }

// Of gRPC, which has no setting for it either: whether a thread looks once a second for timers that are due.
void grpc_timer_manager_set_threading(bool enabled);

namespace gpulet::device_plugin {
namespace {

// Limit of the buffers of all connections together; gRPC refuses requests beyond it.
constexpr std::size_t kQuotaBytes = 32u << 20;

// Debian builds Abseil without NDEBUG, so each of gRPC's mutexes becomes a node of 512 bytes in a graph that
// looks for deadlocks, at every lock. gRPC frees many of them without destroying them, so their nodes remain,
// one for each address that ever held a mutex.
void disable_mutex_graph() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace

struct GrpcThread::Impl {
  DeviceService devices;
  std::shared_ptr<AddedServices> more;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  std::unique_ptr<grpc::Server> server;
  std::thread thread;
  std::mutex beginning;

  void run_queue() {
    void* tag = nullptr;
    bool ok = false;
    while (queue->Next(&tag, &ok)) {
      {
        std::lock_guard begun(beginning);
      }
      static_cast<Tag*>(tag)->on_complete(ok);
    }
  }
};

GrpcThread::GrpcThread(std::shared_ptr<AddedServices> more) : impl_(std::make_unique<Impl>()) {
  disable_mutex_graph();
  use_sleeping_event_engine();
  impl_->more = std::move(more);
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("gpulet");
  quota.Resize(kQuotaBytes);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(2 * kMaxStreams));
  builder.RegisterService(&impl_->devices.service());
  if (impl_->more) {
    for (auto* service : impl_->more->services()) builder.RegisterService(service);
  }
  impl_->queue = builder.AddCompletionQueue();
  impl_->server = builder.BuildAndStart();
  // Its timers are those of deadlines and keepalives, which we do not set: the loop watches our calls.
  grpc_timer_manager_set_threading(false);
  impl_->devices.start_serving(*impl_->queue);
  if (impl_->more) impl_->more->start_serving(*impl_->queue);
  impl_->thread = std::thread([impl = impl_.get()] { impl->run_queue(); });
}

GrpcThread::~GrpcThread() {
  impl_->devices.stop_serving();
  if (impl_->more) impl_->more->stop_serving();
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->queue->Shutdown();
  impl_->thread.join();
}

grpc::CompletionQueue& GrpcThread::queue() { return *impl_->queue; }
std::mutex& GrpcThread::start_mutex() { return impl_->beginning; }
DeviceService& GrpcThread::device_service() { return impl_->devices; }
void GrpcThread::serve_connection(FileDescriptor socket) {
  grpc::AddInsecureChannelFromFd(impl_->server.get(), socket.release());
}

std::shared_ptr<GrpcThread> start_grpc_thread(std::shared_ptr<AddedServices> more) {
  return std::make_shared<GrpcThread>(std::move(more));
}

grpc::Status to_grpc(const Error& error) {
  switch (error.code()) {
    case Code::kInvalidArgument:
      return {grpc::StatusCode::INVALID_ARGUMENT, error.full_message()};
    case Code::kFailedPrecondition:
    case Code::kResetRequired:
      return {grpc::StatusCode::FAILED_PRECONDITION, error.full_message()};
    case Code::kNotFound:
      return {grpc::StatusCode::NOT_FOUND, error.full_message()};
    case Code::kUnsupported:
      return {grpc::StatusCode::UNIMPLEMENTED, error.full_message()};
    case Code::kPermissionDenied:
      return {grpc::StatusCode::PERMISSION_DENIED, error.full_message()};
    case Code::kUnavailable:
    case Code::kDeviceLost:
      return {grpc::StatusCode::UNAVAILABLE, error.full_message()};
    case Code::kDeadlineExceeded:
      return {grpc::StatusCode::DEADLINE_EXCEEDED, error.full_message()};
    case Code::kIo:
    case Code::kInternal:
      break;
  }
  return {grpc::StatusCode::INTERNAL, error.full_message()};
}

Error from_grpc(const grpc::Status& status, const std::string& about) {
  Code code = Code::kInternal;
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      code = Code::kInvalidArgument;
      break;
    case grpc::StatusCode::FAILED_PRECONDITION:
      code = Code::kFailedPrecondition;
      break;
    case grpc::StatusCode::NOT_FOUND:
      code = Code::kNotFound;
      break;
    case grpc::StatusCode::UNIMPLEMENTED:
      code = Code::kUnsupported;
      break;
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      code = Code::kPermissionDenied;
      break;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      code = Code::kUnavailable;
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      code = Code::kDeadlineExceeded;
      break;
    default:
      break;
  }
  const auto& message = status.error_message();
  return Error(code, message.empty() ? "the kubelet gave no reason" : message, about);
}

void Mailbox::post_task(const std::shared_ptr<Mailbox>& box, std::function<void()> task) {
  std::lock_guard lock(box->mutex_);
  if (box->loop_ == nullptr) return;
  box->loop_->post([box, task = std::move(task)] {
    if (box->open_on_loop_) task();
  });
}

void Mailbox::close_mailbox() {
  open_on_loop_ = false;
  std::lock_guard lock(mutex_);
  loop_ = nullptr;
}

}  // namespace gpulet::device_plugin

namespace gpulet::device_plugin {

ClientCall call_register(GrpcThread& rpc, std::shared_ptr<Mailbox> mailbox, FileDescriptor socket,
                         const Registration& registration, std::function<void(Status)> done) {
  v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(registration.endpoint);
  request.set_resource_name(registration.resource);
  request.mutable_options()->set_get_preferred_allocation_available(true);
  using Stub = v1beta1::Registration::Stub;
  return call_async<Stub, v1beta1::RegisterRequest, v1beta1::Empty>(
      rpc, std::move(mailbox), channel_over(std::move(socket), kMaxRequestBytes), &Stub::AsyncRegister,
      request,
      [done = std::move(done), resource = registration.resource](const grpc::Status& status,
                                                                 const v1beta1::Empty&) {
        if (status.ok()) {
          done({});
        } else {
          done(fail(from_grpc(status, resource).with_context("the kubelet did not accept the registration")));
        }
      });
}

}  // namespace gpulet::device_plugin
