#include "device_plugin/pod_resources.h"

#include <algorithm>

#include "base/file.h"
#include "device_plugin/rpc_core.h"
#include "proto/podresources_v1.grpc.pb.h"

namespace gpulet::device_plugin {
namespace {

using Stub = v1::PodResourcesLister::Stub;

void add_devices(const v1::ContainerDevices& from, DevicesByResource& to) {
  auto& ids = to[ResourceName(from.resource_name())];
  for (const auto& id : from.device_ids()) ids.emplace_back(id);
}

void add_claimed_devices(const v1::DynamicResource& claim, DevicesByResource& to) {
  for (const auto& device : claim.claim_resources())
    to[ResourceName(device.driver_name())].emplace_back(device.device_name());
}

std::vector<ContainerDevices> parse_containers(const v1::ListPodResourcesResponse& response) {
  std::vector<ContainerDevices> result;
  for (const auto& pod : response.pod_resources()) {
    for (const auto& container : pod.containers()) {
      ContainerDevices devices{{pod.namespace_(), pod.name()}, container.name(), {}};
      for (const auto& device : container.devices()) add_devices(device, devices.devices);
      for (const auto& claim : container.dynamic_resources()) add_claimed_devices(claim, devices.devices);
      if (!devices.devices.empty()) result.push_back(std::move(devices));
    }
  }
  return result;
}

DevicesByResource parse_containers(const v1::AllocatableResourcesResponse& response) {
  DevicesByResource result;
  for (const auto& device : response.devices()) add_devices(device, result);
  for (auto& [name, ids] : result) std::ranges::sort(ids);
  return result;
}

class GrpcPodResources final : public PodResources {
 public:
  GrpcPodResources(Loop& loop, std::shared_ptr<GrpcThread> rpc, std::string socket, Duration timeout)
      : loop_(loop),
        rpc_(std::move(rpc)),
        socket_(std::move(socket)),
        timeout_(timeout),
        mailbox_(std::make_shared<Mailbox>(loop)) {}
  ~GrpcPodResources() override {
    mailbox_->close_mailbox();
    calls_.clear();
  }

  void list_containers(std::function<void(Result<std::vector<ContainerDevices>>)> done) override {
    start_call<v1::ListPodResourcesRequest, v1::ListPodResourcesResponse>(
        &Stub::AsyncList,
        std::function([this, done = std::move(done), asked = std::chrono::steady_clock::now()](
                          Result<std::vector<ContainerDevices>> containers) {
          if (containers) rpc_->device_service().note_containers(*containers, asked);
          done(std::move(containers));
        }),
        true);
  }
  void list_allocatable(std::function<void(Result<DevicesByResource>)> done) override {
    start_call<v1::AllocatableResourcesRequest, v1::AllocatableResourcesResponse>(
        &Stub::AsyncGetAllocatableResources, std::move(done), true);
  }

 private:
  struct OpenCall {
    ClientCall call;
    Subscription timer;
  };

  template <class Request, class Response, class Value>
  void start_call(AsyncMethod<Stub, Request, Response> method, std::function<void(Result<Value>)> done,
                  bool try_again) {
    const bool fresh = channel_ == nullptr;
    if (fresh) {
      auto socket = connect_unix_socket(socket_);
      if (!socket) {
        const Error& error = socket.error();
        const Code code = error.code() == Code::kNotFound ? Code::kUnavailable : error.code();
        Mailbox::post_task(mailbox_,
                           [done = std::move(done), failed = Error(code, error.message(), error.subject())] {
                             done(fail(failed));
                           });
        return;
      }
      channel_ = channel_over(std::move(*socket), kMaxPodResourcesBytes);
    }
    const std::uint64_t id = next_++;
    auto& open = calls_[id];
    open.timer = loop_.after(timeout_, [this, id, done] {
      calls_.erase(id);  // which cancels it
      channel_.reset();
      done(fail(Code::kDeadlineExceeded, "the kubelet did not answer in time", socket_));
    });
    open.call = call_async<Stub, Request, Response>(
        *rpc_, mailbox_, channel_, method, Request(),
        [this, id, done, method, fresh, try_again](const grpc::Status& status, const Response& response) {
          if (calls_.erase(id) == 0) return;  // timed out before
          if (status.ok()) {
            done(parse_containers(response));
            return;
          }
          channel_.reset();
          // A kept connection breaks when the kubelet restarts: the call is retried on a new one.
          if (!fresh && try_again && status.error_code() == grpc::StatusCode::UNAVAILABLE) {
            start_call<Request, Response>(method, done, false);
            return;
          }
          done(fail(from_grpc(status, socket_)));
        });
  }

  Loop& loop_;
  std::shared_ptr<GrpcThread> rpc_;
  std::string socket_;
  Duration timeout_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<grpc::Channel> channel_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, OpenCall> calls_;
};

}  // namespace

std::map<DeviceId, std::string> pods_by_device(const std::vector<ContainerDevices>& containers,
                                               const ResourceName* resource) {
  std::map<DeviceId, std::string> pods;
  for (const auto& container : containers) {
    for (const auto& [name, ids] : container.devices) {
      if (resource != nullptr && name != *resource) continue;
      for (const auto& id : ids) pods[id] = container.pod.name_space + "/" + container.pod.name;
    }
  }
  return pods;
}

std::unique_ptr<PodResources> make_pod_resources(Loop& loop, std::shared_ptr<GrpcThread> rpc,
                                                 std::string socket, Duration timeout) {
  return std::make_unique<GrpcPodResources>(loop, std::move(rpc), std::move(socket), timeout);
}

}  // namespace gpulet::device_plugin
