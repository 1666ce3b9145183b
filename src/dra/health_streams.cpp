#include "dra/health_streams.h"

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>

#include "device_plugin/rpc_core.h"
#include "proto/dra_health_v1.grpc.pb.h"
#include "proto/dra_health_v1alpha1.grpc.pb.h"

namespace gpulet::dra {
namespace {

using Response = v1::NodeWatchResourcesResponse;

v1::HealthStatus to_proto(DeviceCondition condition) {
  switch (condition) {
    case DeviceCondition::kHealthy:
      return v1::HEALTHY;
    case DeviceCondition::kUnhealthy:
      return v1::UNHEALTHY;
    case DeviceCondition::kUnknown:
      break;
  }
  return v1::UNKNOWN;
}

Response make_response(const HealthReport& report) {
  Response response;
  for (const auto& reported : report.devices) {
    auto& device = *response.add_devices();
    device.mutable_device()->set_pool_name(report.pool);
    device.mutable_device()->set_device_name(reported.device);
    device.set_health(to_proto(reported.condition));
    device.set_last_updated_time(report.unix_time_s);
    device.set_health_check_timeout_seconds(kHealthTimeout.count());
    device.set_message(reported.message);
  }
  return response;
}

grpc::Status not_served() { return {grpc::StatusCode::UNAVAILABLE, kNotServed}; }

// One that is accepted, or waits for its call. At most one write at a time.
struct Stream {
  grpc::ServerContext context;
  v1::NodeWatchResourcesRequest request;
  grpc::ServerAsyncWriter<Response> writer{&context};
  device_plugin::Tag started, over, wrote;
  std::uint64_t sent = 0;  // version of the report
  bool is_open = false;    // accepted and not ended
  bool is_writing = false;
  int operations = 0;  // in progress; without one it is deleted
};

}  // namespace

// The lock covers every field and the beginning of every operation: none begins after stop_serving().
struct HealthStreams::Impl {
  v1::DRAResourceHealth::AsyncService service_v1;
  v1alpha1::DRAResourceHealth::AsyncService service_v1alpha1;
  std::mutex mutex;
  grpc::ServerCompletionQueue* queue = nullptr;
  bool is_stopped = false;
  bool is_serving = false;
  std::optional<Response> report;
  std::uint64_t version = 0;  // of the report
  std::map<Stream*, std::unique_ptr<Stream>> streams;

  // The members below require the lock.
  template <class Service>
  void accept_stream(Service& service);
  void begin_stream(Stream& stream);
  void finish_stream(Stream& stream, const grpc::Status& status);
  void write_report(Stream& stream);
  void end_operation(Stream& stream) {
    if (--stream.operations == 0) streams.erase(&stream);
  }
};

template <class Service>
void HealthStreams::Impl::accept_stream(Service& service) {
  if (is_stopped) return;
  auto owned = std::make_unique<Stream>();
  auto* stream = owned.get();
  streams.emplace(stream, std::move(owned));
  stream->started.on_complete = [this, stream, &service](bool ok) {
    std::lock_guard lock(mutex);
    if (!ok) {  // there is no call, so `over` does not come either
      streams.erase(stream);
      return;
    }
    accept_stream(service);
    begin_stream(*stream);
  };
  stream->over.on_complete = [this, stream](bool) {
    std::lock_guard lock(mutex);
    stream->is_open = false;
    end_operation(*stream);
  };
  stream->wrote.on_complete = [this, stream](bool ok) {
    std::lock_guard lock(mutex);
    stream->is_writing = false;
    if (ok) write_report(*stream);
    end_operation(*stream);
  };
  stream->operations = 1;  // `over`
  stream->context.AsyncNotifyWhenDone(&stream->over);
  service.RequestNodeWatchResources(&stream->context, &stream->request, &stream->writer, queue, queue,
                                    &stream->started);
}

void HealthStreams::Impl::begin_stream(Stream& stream) {
  std::size_t open = 0;
  for (const auto& [other, owned] : streams) open += other->is_open ? 1 : 0;
  if (!is_serving) return finish_stream(stream, not_served());
  if (open >= kMaxHealthStreams) {
    return finish_stream(stream, {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many health streams"});
  }
  stream.is_open = true;
  write_report(stream);
}

void HealthStreams::Impl::finish_stream(Stream& stream, const grpc::Status& status) {
  stream.is_open = false;
  if (is_stopped) return;
  if (stream.is_writing) {
    stream.context.TryCancel();  // a client that does not read must not delay this
    return;
  }
  ++stream.operations;
  stream.writer.Finish(status, &stream.wrote);
}

// The newest, unless this stream already has it.
void HealthStreams::Impl::write_report(Stream& stream) {
  if (is_stopped || !stream.is_open || stream.is_writing || !report || stream.sent == version) return;
  stream.sent = version;
  stream.is_writing = true;
  ++stream.operations;
  stream.writer.Write(*report, &stream.wrote);
}

HealthStreams::HealthStreams() : impl_(std::make_unique<Impl>()) {}
HealthStreams::~HealthStreams() = default;

std::vector<grpc::Service*> HealthStreams::services() {
  return {&impl_->service_v1, &impl_->service_v1alpha1};
}

void HealthStreams::start_serving(grpc::ServerCompletionQueue& queue) {
  std::lock_guard lock(impl_->mutex);
  impl_->queue = &queue;
  impl_->accept_stream(impl_->service_v1);
  impl_->accept_stream(impl_->service_v1alpha1);
}

void HealthStreams::stop_serving() {
  std::lock_guard lock(impl_->mutex);
  impl_->is_stopped = true;
}

void HealthStreams::open_streams() {
  std::lock_guard lock(impl_->mutex);
  impl_->is_serving = true;
}

void HealthStreams::close_streams() {
  std::lock_guard lock(impl_->mutex);
  impl_->is_serving = false;
  impl_->report.reset();
  for (const auto& [stream, owned] : impl_->streams) {
    if (stream->is_open) impl_->finish_stream(*stream, not_served());
  }
}

void HealthStreams::send_report(const HealthReport& report) {
  Response response = make_response(report);
  std::lock_guard lock(impl_->mutex);
  if (!impl_->is_serving) return;
  impl_->report = std::move(response);
  ++impl_->version;
  for (const auto& [stream, owned] : impl_->streams) impl_->write_report(*stream);
}

}  // namespace gpulet::dra
