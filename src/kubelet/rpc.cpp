#include "kubelet/rpc.h"

#include <absl/synchronization/mutex.h>
#include <grpc/support/cpu.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>

#include <thread>

#include "kubelet/plugin_host.h"
#include "kubelet/rpc_core.h"

// gRPC asks these two for the size of its pools and of its tables per core (32 threads on a host of 32 cores or more),
// and has no setting for it. They are all that their object file in libgpr.a has, so that these take its place.
unsigned gpr_cpu_num_cores() { return 1; }
unsigned gpr_cpu_current_cpu() { return 0; }

namespace gpulet::kubelet {
namespace {

// Buffers of all connections together; gRPC refuses what would need more.
constexpr std::size_t kQuotaBytes = 32u << 20;

// Debian builds Abseil without NDEBUG, so each of gRPC's mutexes becomes a node of 512 bytes in a graph that
// looks for deadlocks, at every lock. gRPC frees many of them with the memory that they are in, never ending
// them: their nodes stay, one for each address that ever held a mutex.
void keep_no_graph_of_mutexes() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace

struct Rpc::Impl {
  DeviceService devices;
  std::unique_ptr<grpc::ServerCompletionQueue> queue;
  std::unique_ptr<grpc::Server> server;
  std::thread thread;
  std::mutex beginning;

  void run() {
    void* tag = nullptr;
    bool ok = false;
    while (queue->Next(&tag, &ok)) {
      { std::lock_guard begun(beginning); }
      static_cast<Tag*>(tag)->run(ok);
    }
  }
};

Rpc::Rpc() : impl_(std::make_unique<Impl>()) {
  keep_no_graph_of_mutexes();
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("gpulet");
  quota.Resize(kQuotaBytes);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(2 * kMaxStreams));
  builder.RegisterService(&impl_->devices.service());
  impl_->queue = builder.AddCompletionQueue();
  impl_->server = builder.BuildAndStart();
  impl_->devices.start(*impl_->queue);
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

Rpc::~Rpc() {
  impl_->devices.stop();
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->queue->Shutdown();
  impl_->thread.join();
}

grpc::CompletionQueue& Rpc::queue() { return *impl_->queue; }
std::mutex& Rpc::beginning() { return impl_->beginning; }
DeviceService& Rpc::devices() { return impl_->devices; }
void Rpc::serve_connection(FileDescriptor socket) {
  grpc::AddInsecureChannelFromFd(impl_->server.get(), socket.release());
}

std::shared_ptr<Rpc> make_rpc() { return std::make_shared<Rpc>(); }

grpc::Status to_grpc(const Error& error) {
  switch (error.code()) {
    case Code::kInvalidArgument: return {grpc::StatusCode::INVALID_ARGUMENT, error.text()};
    case Code::kFailedPrecondition: return {grpc::StatusCode::FAILED_PRECONDITION, error.text()};
    case Code::kNotFound: return {grpc::StatusCode::NOT_FOUND, error.text()};
    case Code::kUnsupported: return {grpc::StatusCode::UNIMPLEMENTED, error.text()};
    case Code::kPermissionDenied: return {grpc::StatusCode::PERMISSION_DENIED, error.text()};
    case Code::kUnavailable:
    case Code::kDeviceLost: return {grpc::StatusCode::UNAVAILABLE, error.text()};
    case Code::kDeadlineExceeded: return {grpc::StatusCode::DEADLINE_EXCEEDED, error.text()};
    case Code::kIo:
    case Code::kInternal: break;
  }
  return {grpc::StatusCode::INTERNAL, error.text()};
}

Error from_grpc(const grpc::Status& status, const std::string& about) {
  Code code = Code::kInternal;
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT: code = Code::kInvalidArgument; break;
    case grpc::StatusCode::FAILED_PRECONDITION: code = Code::kFailedPrecondition; break;
    case grpc::StatusCode::NOT_FOUND: code = Code::kNotFound; break;
    case grpc::StatusCode::UNIMPLEMENTED: code = Code::kUnsupported; break;
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED: code = Code::kPermissionDenied; break;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED: code = Code::kUnavailable; break;
    case grpc::StatusCode::DEADLINE_EXCEEDED: code = Code::kDeadlineExceeded; break;
    default: break;
  }
  const auto& message = status.error_message();
  return Error(code, message.empty() ? "the kubelet gave no reason" : message, about);
}

void Mailbox::post(const std::shared_ptr<Mailbox>& box, std::function<void()> task) {
  std::lock_guard lock(box->mutex_);
  if (box->loop_ == nullptr) return;
  box->loop_->post([box, task = std::move(task)] {
    if (box->open_on_loop_) task();
  });
}

void Mailbox::close() {
  open_on_loop_ = false;
  std::lock_guard lock(mutex_);
  loop_ = nullptr;
}

}  // namespace gpulet::kubelet
