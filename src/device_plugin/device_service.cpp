#include "device_plugin/device_service.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/async_unary_call.h>

#include <map>
#include <mutex>
#include <set>
#include <type_traits>

#include "base/log.h"
#include "base/text.h"
#include "device_plugin/allocation.h"
#include "device_plugin/held_devices.h"
#include "device_plugin/met_demands.h"
#include "device_plugin/plugin_host.h"
#include "device_plugin/pod_resources.h"
#include "device_plugin/rpc_core.h"
#include "proto/deviceplugin_v1beta1.grpc.pb.h"

namespace gpulet::device_plugin {
namespace {

using AsyncService = v1beta1::DevicePlugin::AsyncService;
using ListPtr = std::shared_ptr<const v1beta1::ListAndWatchResponse>;
using Clock = std::chrono::steady_clock;
using Containers = std::vector<ContainerDevices>;

struct Stream;

// One resource as requests see it. A slot that was removed keeps its name and no offer.
struct Slot {
  ResourceName name;
  OfferPtr offer;
  ListPtr list;
  std::uint64_t version = 0;  // of `list`
  std::set<Stream*> streams;
  ResourceCalls calls;
};
using SlotPtr = std::shared_ptr<Slot>;

template <class Request, class Response>
struct Unary {
  grpc::ServerContext context;
  Request request;
  Response response;
  std::optional<std::int64_t> score;
  grpc::ServerAsyncResponseWriter<Response> writer{&context};
  Tag taken, finished;
  Clock::time_point arrived;
  SlotPtr slot;
  OfferPtr offer;  // of the moment of the request
  std::vector<PodDemand> demands;
};

// The handlers, under the API's names.
template <class Request, class Response>
struct Compute {
  std::string_view name;
  Status (*answer)(const Offer&, const Request&, Response&, const Demands&,
                   std::optional<std::int64_t>& score);
};

// A call that waits for what the kubelet lists, or for what Pods accept.
template <class Known>
struct WaitingCall {
  std::function<void(Known)> resume;
  std::function<void()> drop;
};
using ListingCall = WaitingCall<const Result<Containers>&>;

}  // namespace

// The lock covers every field and the beginning of every operation: an operation that began before stop() is
// completed, and none begins after it. It is held for microseconds, never while a request is computed.
struct DeviceService::Impl {
  AsyncService service;
  std::mutex mutex;
  grpc::ServerCompletionQueue* queue = nullptr;
  bool stopped = false;
  std::function<void(const ResourceName&, bool)> watched;
  std::function<void()> allocated;
  std::function<void(std::uint64_t)> ask_holders;
  std::uint64_t next_call = 1;
  std::map<std::uint64_t, ListingCall> waiting;
  std::function<void(std::uint64_t)> ask_demands;
  std::map<std::uint64_t, WaitingCall<Demands>> demanding;
  MetDemands met;
  HeldDevices held{Clock::now()};
  AllocationCalls allocations;
  std::map<ResourceName, SlotPtr> slots;
  struct Connection {
    std::uint64_t serial;
    SlotPtr slot;
  };
  std::map<int, Connection> connections;

  // Requires the lock. Returns none for a closed connection.
  SlotPtr slot_of(const grpc::ServerContext& context) const {
    const std::string peer = context.peer();
    if (!text::starts_with(peer, "fd:")) return nullptr;
    const auto number = text::parse_unsigned(std::string_view(peer).substr(3));
    const auto it = number ? connections.find(static_cast<int>(*number)) : connections.end();
    return it == connections.end() ? nullptr : it->second.slot;
  }

  template <class Request, class Response>
  void accept_call(void (AsyncService::*method)(grpc::ServerContext*, Request*,
                                                grpc::ServerAsyncResponseWriter<Response>*,
                                                grpc::CompletionQueue*, grpc::ServerCompletionQueue*, void*),
                   Compute<Request, Response> compute);
  template <class Request, class Response>
  void begin_call(Unary<Request, Response>* call, Compute<Request, Response> compute);
  template <class Request, class Response>
  void answer_call(Unary<Request, Response>* call, Compute<Request, Response> compute);
  template <class Request, class Response>
  void answer_again(Unary<Request, Response>* call, Compute<Request, Response> compute,
                    const Result<Containers>& containers);
  // Requires the lock.
  template <class Request, class Response>
  void finish_call(Unary<Request, Response>* call, Compute<Request, Response> compute, const Status& status);

  void accept_stream();
  void send_newest_list(Stream& stream);
  void on_stream_opened(Stream& stream);
  void on_stream_closed(Stream& stream);
};

namespace {

grpc::Status not_offered(const SlotPtr& slot) {
  return {grpc::StatusCode::UNAVAILABLE,
          slot ? "\"" + slot->name.str() + "\" is no longer offered" : "this connection is closing"};
}

// A ListAndWatch: at most one Write at a time, of the newest list.
struct Stream {
  grpc::ServerContext context;
  v1beta1::Empty request;
  grpc::ServerAsyncWriter<v1beta1::ListAndWatchResponse> writer{&context};
  Tag started, over, wrote;
  SlotPtr slot;
  std::uint64_t sent = 0;  // version
  bool writing = false;
  bool ended = false;  // Finish was called, or the call has ended
  int operations = 0;  // in progress; the stream is deleted at zero after `over`
};

}  // namespace

template <class Request, class Response>
void DeviceService::Impl::accept_call(void (AsyncService::*method)(grpc::ServerContext*, Request*,
                                                                   grpc::ServerAsyncResponseWriter<Response>*,
                                                                   grpc::CompletionQueue*,
                                                                   grpc::ServerCompletionQueue*, void*),
                                      Compute<Request, Response> compute) {
  if (stopped) return;
  auto* call = new Unary<Request, Response>;
  call->finished.on_complete = [this, call](bool) {
    {
      std::lock_guard lock(mutex);  // the answer may be sent by another thread: it has let go of the call
    }
    delete call;
  };
  call->taken.on_complete = [this, call, method, compute](bool ok) {
    if (!ok) return delete call;
    {
      std::lock_guard lock(mutex);
      accept_call(method, compute);
      call->slot = slot_of(call->context);
      if (call->slot) call->offer = call->slot->offer;
      if constexpr (kGivesDevices<Request>) ++allocations.open;
    }
    call->arrived = Clock::now();
    begin_call(call, compute);
  };
  (service.*method)(&call->context, &call->request, &call->writer, queue, queue, &call->taken);
}

template <class Request, class Response>
void DeviceService::Impl::begin_call(Unary<Request, Response>* call, Compute<Request, Response> compute) {
  if constexpr (kGivesDevices<Request>) {
    std::lock_guard lock(mutex);
    if (call->offer && ask_demands && !stopped) {
      const auto number = next_call++;
      demanding[number] = {.resume =
                               [this, call, compute](Demands demands) {
                                 call->demands = std::move(demands);
                                 answer_call(call, compute);
                               },
                           .drop = [call] { delete call; }};
      return ask_demands(number);
    }
  }
  answer_call(call, compute);
}

template <class Request, class Response>
void DeviceService::Impl::answer_call(Unary<Request, Response>* call, Compute<Request, Response> compute) {
  Status status;
  if (call->offer)
    status = compute.answer(*call->offer, call->request, call->response, call->demands, call->score);
  std::lock_guard lock(mutex);
  const bool asks = call->offer && status && ask_holders && !stopped &&
                    held.may_be_held(call->slot->name, given_devices(call->request, call->response));
  if (!asks) return finish_call(call, compute, status);
  const auto number = next_call++;
  waiting[number] = {.resume = [this, call, compute](
                                   const auto& containers) { this->answer_again(call, compute, containers); },
                     .drop = [call] { delete call; }};
  ask_holders(number);
}

// Answers a call whose devices a container may hold.
template <class Request, class Response>
void DeviceService::Impl::answer_again(Unary<Request, Response>* call, Compute<Request, Response> compute,
                                       const Result<Containers>& containers) {
  Status status;
  std::map<DeviceId, std::string> holders;
  if (std::unique_lock lock(mutex); containers) {
    // Pods are admitted one at a time: what was allocated before this call is recorded.
    held.replace_list(*containers, call->arrived, call->arrived);
    lock.unlock();
    holders = pods_by_device(*containers, &call->slot->name);
  } else if (std::is_same_v<Request, v1beta1::PreferredAllocationRequest>) {
    holders = held.last_known(call->slot->name);
  }
  const auto devices = given_devices(call->request, call->response);
  const auto it = std::ranges::find_if(devices, [&](const auto& id) { return holders.contains(id); });
  if (it != devices.end()) {
    log::warning("the kubelet offers a device that a Pod holds",
                 {{"resource", call->slot->name.str()}, {"device", it->str()}, {"pod", holders.at(*it)}});
    if constexpr (std::is_same_v<Request, v1beta1::AllocateRequest>) {
      status = reject_held_device(*call->offer, *it, holders.at(*it));
    }
    if constexpr (std::is_same_v<Request, v1beta1::PreferredAllocationRequest>) {
      remove_held_devices(call->request, holders);
      call->response.Clear();
      status = compute.answer(*call->offer, call->request, call->response, call->demands, call->score);
    }
  }
  std::lock_guard lock(mutex);
  finish_call(call, compute, status);
}

template <class Request, class Response>
void DeviceService::Impl::finish_call(Unary<Request, Response>* call, Compute<Request, Response> compute,
                                      const Status& status) {
  if constexpr (kGivesDevices<Request>) allocations = {allocations.open - 1, Clock::now()};
  if (call->offer) {
    auto& count = call->slot->calls.calls[compute.name];
    ++(status ? count.answered : count.refused);
    count.time += Clock::now() - call->arrived;
    if (call->score) call->slot->calls.score = call->score;
  }
  if (stopped) return delete call;
  if (!call->offer) {
    call->writer.FinishWithError(not_offered(call->slot), &call->finished);
  } else if (!status) {
    call->writer.FinishWithError(to_grpc(status.error()), &call->finished);
  } else {
    if constexpr (std::is_same_v<Request, v1beta1::AllocateRequest>) {
      held.add_allocation(call->slot->name, given_devices(call->request, call->response), Clock::now());
      met.note_allocation(call->slot->name, call->request, call->demands);
      if (allocated) allocated();
    }
    call->writer.Finish(call->response, grpc::Status::OK, &call->finished);
  }
}

void DeviceService::Impl::accept_stream() {
  if (stopped) return;
  auto* stream = new Stream;
  stream->started.on_complete = [this, stream](bool ok) {
    std::lock_guard lock(mutex);
    if (!ok) return delete stream;
    accept_stream();
    on_stream_opened(*stream);
  };
  stream->over.on_complete = [this, stream](bool) {
    std::lock_guard lock(mutex);
    stream->ended = true;
    on_stream_closed(*stream);
    if (--stream->operations == 0) delete stream;
  };
  stream->wrote.on_complete = [this, stream](bool ok) {
    std::lock_guard lock(mutex);
    stream->writing = false;
    if (ok && !stopped) send_newest_list(*stream);
    if (--stream->operations == 0) delete stream;
  };
  stream->operations = 1;  // `over`
  stream->context.AsyncNotifyWhenDone(&stream->over);
  service.RequestListAndWatch(&stream->context, &stream->request, &stream->writer, queue, queue,
                              &stream->started);
}

void DeviceService::Impl::on_stream_opened(Stream& stream) {
  const auto slot = slot_of(stream.context);
  if (stopped || stream.ended) return;
  if (!slot || !slot->offer || slot->streams.size() >= kMaxStreams) {
    stream.ended = true;
    ++stream.operations;
    const bool full = slot && slot->offer;
    stream.writer.Finish(
        full ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many ListAndWatch streams")
             : not_offered(slot),
        &stream.wrote);
    return;
  }
  stream.slot = slot;
  slot->streams.insert(&stream);
  if (slot->streams.size() == 1 && watched) watched(slot->name, true);
  send_newest_list(stream);
}

// Sends the newest list unless this stream already has it.
void DeviceService::Impl::send_newest_list(Stream& stream) {
  if (stream.writing || stream.ended || !stream.slot) return;
  if (!stream.slot->offer) {  // withdrawn
    stream.ended = true;
    ++stream.operations;
    stream.writer.Finish(not_offered(stream.slot), &stream.wrote);
    return;
  }
  if (stream.sent == stream.slot->version) return;
  stream.sent = stream.slot->version;
  stream.writing = true;
  ++stream.operations;
  stream.writer.Write(*stream.slot->list, &stream.wrote);
}

void DeviceService::Impl::on_stream_closed(Stream& stream) {
  if (!stream.slot || stream.slot->streams.erase(&stream) == 0) return;
  if (stream.slot->streams.empty() && stream.slot->offer && watched) watched(stream.slot->name, false);
}

DeviceService::DeviceService() : impl_(std::make_unique<Impl>()) {}
DeviceService::~DeviceService() = default;

grpc::Service& DeviceService::service() { return impl_->service; }

void DeviceService::start_serving(grpc::ServerCompletionQueue& queue) {
  std::lock_guard lock(impl_->mutex);
  impl_->queue = &queue;
  using Score = std::optional<std::int64_t>;
  impl_->accept_call<v1beta1::Empty, v1beta1::DevicePluginOptions>(
      &AsyncService::RequestGetDevicePluginOptions,
      {"GetDevicePluginOptions",
       [](const Offer&, const v1beta1::Empty&, v1beta1::DevicePluginOptions& options, const Demands&,
          Score&) -> Status {
         options.set_get_preferred_allocation_available(true);
         return {};
       }});
  impl_->accept_call<v1beta1::AllocateRequest, v1beta1::AllocateResponse>(
      &AsyncService::RequestAllocate,
      {"Allocate",
       [](const Offer& offer, const v1beta1::AllocateRequest& request, v1beta1::AllocateResponse& response,
          const Demands& demands, Score&) { return fill_response(offer, request, response, demands); }});
  impl_->accept_call<v1beta1::PreferredAllocationRequest, v1beta1::PreferredAllocationResponse>(
      &AsyncService::RequestGetPreferredAllocation,
      {"GetPreferredAllocation",
       [](const Offer& offer, const v1beta1::PreferredAllocationRequest& request,
          v1beta1::PreferredAllocationResponse& response, const Demands& demands, Score& score) -> Status {
         std::int64_t sum = 0;
         GPULET_TRY(fill_response(offer, request, response, &sum, demands));
         score = sum;
         return {};
       }});
  impl_->accept_call<v1beta1::PreStartContainerRequest, v1beta1::PreStartContainerResponse>(
      &AsyncService::RequestPreStartContainer,
      {"PreStartContainer",
       [](const Offer&, const v1beta1::PreStartContainerRequest&, v1beta1::PreStartContainerResponse&,
          const Demands&, Score&) -> Status { return {}; }});
  impl_->accept_stream();
}

void DeviceService::stop_serving() {
  std::lock_guard lock(impl_->mutex);
  impl_->stopped = true;
  impl_->watched = nullptr;
  impl_->allocated = nullptr;
  impl_->ask_holders = nullptr;
  impl_->ask_demands = nullptr;
  for (const auto& [number, call] : std::exchange(impl_->demanding, {})) call.drop();
  for (const auto& [number, call] : std::exchange(impl_->waiting, {})) call.drop();
}

void DeviceService::set_holder_callback(std::function<void(std::uint64_t)> ask) {
  std::unique_lock lock(impl_->mutex);
  impl_->ask_holders = std::move(ask);
  const auto waiting = std::exchange(impl_->waiting, {});
  lock.unlock();
  for (const auto& [number, call] : waiting)
    call.resume(fail(Code::kUnavailable, "nobody asks the kubelet any more"));
}

void DeviceService::resume_call(std::uint64_t call, const Result<std::vector<ContainerDevices>>& containers) {
  std::unique_lock lock(impl_->mutex);
  const auto waiting = impl_->waiting.extract(call);
  lock.unlock();
  if (waiting) waiting.mapped().resume(containers);
}

void DeviceService::set_demand_callback(std::function<void(std::uint64_t)> ask) {
  std::unique_lock lock(impl_->mutex);
  impl_->ask_demands = std::move(ask);
  const auto demanding = std::exchange(impl_->demanding, {});
  lock.unlock();
  for (const auto& [number, call] : demanding) call.resume({});
}

void DeviceService::resume_with_demands(std::uint64_t call, std::vector<PodDemand> demands) {
  std::unique_lock lock(impl_->mutex);
  const auto demanding = impl_->demanding.extract(call);
  demands = impl_->met.remove_met(std::move(demands));
  lock.unlock();
  if (demanding) demanding.mapped().resume(std::move(demands));
}

void DeviceService::note_containers(const Containers& containers, Clock::time_point asked) {
  std::lock_guard lock(impl_->mutex);
  impl_->held.replace_list(containers, asked, asked - kAllocationRecorded);
}

bool DeviceService::shows_allocations() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->held.shows_allocations();
}

AllocationCalls DeviceService::allocation_calls() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->allocations;
}

void DeviceService::set_allocation_callback(std::function<void()> allocated) {
  std::lock_guard lock(impl_->mutex);
  impl_->allocated = std::move(allocated);
}

void DeviceService::set_watch_callback(std::function<void(const ResourceName&, bool)> watched) {
  std::lock_guard lock(impl_->mutex);
  impl_->watched = std::move(watched);
}

void DeviceService::set_offer(OfferPtr offer) {
  auto list = std::make_shared<const v1beta1::ListAndWatchResponse>(make_device_list(*offer));
  std::lock_guard lock(impl_->mutex);
  auto& slot = impl_->slots[offer->resource.name];
  if (!slot) {
    slot = std::make_shared<Slot>();
    slot->name = offer->resource.name;
  }
  slot->offer = std::move(offer);
  // Without maps inside, equal messages have equal bytes.
  if (slot->list && slot->list->SerializeAsString() == list->SerializeAsString()) return;
  slot->list = std::move(list);
  ++slot->version;
  if (impl_->stopped) return;
  for (Stream* stream : slot->streams) impl_->send_newest_list(*stream);
}

void DeviceService::remove_offer(const ResourceName& resource) {
  std::lock_guard lock(impl_->mutex);
  const auto it = impl_->slots.find(resource);
  if (it == impl_->slots.end()) return;
  const SlotPtr slot = it->second;
  impl_->slots.erase(it);
  slot->offer = nullptr;
  if (impl_->stopped) return;
  for (Stream* stream : slot->streams) {
    if (stream->writing) {
      stream->context.TryCancel();  // a client that does not read must not delay this
    } else {
      impl_->send_newest_list(*stream);
    }
  }
}

std::map<ResourceName, ResourceCalls> DeviceService::call_counts() const {
  std::lock_guard lock(impl_->mutex);
  std::map<ResourceName, ResourceCalls> all;
  for (const auto& [name, slot] : impl_->slots) all[name] = slot->calls;
  return all;
}

void DeviceService::add_connection(int fd, std::uint64_t serial, const ResourceName& resource) {
  std::lock_guard lock(impl_->mutex);
  const auto it = impl_->slots.find(resource);
  if (it != impl_->slots.end()) impl_->connections[fd] = {serial, it->second};
}

void DeviceService::remove_connection(int fd, std::uint64_t serial) {
  std::lock_guard lock(impl_->mutex);
  const auto it = impl_->connections.find(fd);
  if (it != impl_->connections.end() && it->second.serial == serial) impl_->connections.erase(it);
}

}  // namespace gpulet::device_plugin
