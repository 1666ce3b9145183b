#include "sim/kubelet/rpc.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/server_posix.h>

#include "base/file.h"
#include "proto/deviceplugin_v1beta1.grpc.pb.h"
#include "proto/podresources_v1.grpc.pb.h"

namespace gpulet::sim {
namespace {

constexpr std::chrono::seconds kCallTimeout{10};
constexpr std::string_view kCodeNames[] = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

tl::unexpected<Error> rpc_failure(const grpc::Status& status) {
  const auto number = static_cast<std::size_t>(status.error_code());
  const std::string_view name = number < std::size(kCodeNames) ? kCodeNames[number] : "Unknown";
  return fail(Code::kFailedPrecondition,
              "rpc error: code = " + std::string(name) + " desc = " + status.error_message());
}

void prepare_context(grpc::ClientContext& context) {
  context.set_authority("localhost");
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
}

PluginClient::List device_list(const v1beta1::ListAndWatchResponse& response) {
  PluginClient::List list;
  for (const auto& device : response.devices()) {
    KubeletDevice out;
    out.healthy = device.health() == "Healthy";
    for (const auto& node : device.topology().nodes()) out.numa_nodes.insert(static_cast<int>(node.id()));
    list[device.id()] = std::move(out);
  }
  return list;
}

}  // namespace

struct PluginClient::Impl {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1beta1::DevicePlugin::Stub> stub;
  grpc::ClientContext watch_context;
  std::thread thread;
};

PluginClient::PluginClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PluginClient::~PluginClient() { close_client(); }

Result<std::shared_ptr<PluginClient>> PluginClient::connect_plugin(const std::string& path) {
  GPULET_TRY_ASSIGN(FileDescriptor socket, connect_unix_socket(path));
  auto impl = std::make_unique<Impl>();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  impl->channel = grpc::CreateCustomInsecureChannelFromFd("localhost", socket.release(), arguments);
  impl->stub = v1beta1::DevicePlugin::NewStub(impl->channel);
  return std::shared_ptr<PluginClient>(new PluginClient(std::move(impl)));
}

Result<PluginClient::Options> PluginClient::get_plugin_options() {
  grpc::ClientContext context;
  prepare_context(context);
  v1beta1::DevicePluginOptions response;
  const auto status = impl_->stub->GetDevicePluginOptions(&context, {}, &response);
  if (!status.ok()) return rpc_failure(status);
  return Options{response.pre_start_required(), response.get_preferred_allocation_available()};
}

Result<std::vector<std::string>> PluginClient::get_preferred_allocation(
    const std::vector<std::string>& available, const std::vector<std::string>& required, std::size_t size) {
  grpc::ClientContext context;
  prepare_context(context);
  v1beta1::PreferredAllocationRequest request;
  auto& container = *request.add_container_requests();
  for (const auto& id : available) container.add_available_deviceids(id);
  for (const auto& id : required) container.add_must_include_deviceids(id);
  container.set_allocation_size(static_cast<std::int32_t>(size));
  v1beta1::PreferredAllocationResponse response;
  const auto status = impl_->stub->GetPreferredAllocation(&context, request, &response);
  if (!status.ok()) return rpc_failure(status);
  std::vector<std::string> ids;
  if (response.container_responses_size() > 0) {
    for (const auto& id : response.container_responses(0).deviceids()) ids.push_back(id);
  }
  return ids;
}

Result<std::string> PluginClient::call_allocate(const std::vector<std::string>& ids) {
  grpc::ClientContext context;
  prepare_context(context);
  v1beta1::AllocateRequest request;
  auto& container = *request.add_container_requests();
  for (const auto& id : ids) container.add_devices_ids(id);
  v1beta1::AllocateResponse response;
  const auto status = impl_->stub->Allocate(&context, request, &response);
  if (!status.ok()) return rpc_failure(status);
  if (response.container_responses_size() == 0) {
    return fail(Code::kFailedPrecondition, "no containers return in allocation response");
  }
  return response.container_responses(0).SerializeAsString();
}

void PluginClient::start_list_and_watch(std::function<void(List)> on_list, std::function<void()> on_end) {
  impl_->watch_context.set_authority("localhost");
  impl_->thread = std::thread([impl = impl_.get(), on_list = std::move(on_list), on_end = std::move(on_end)] {
    const auto reader = impl->stub->ListAndWatch(&impl->watch_context, {});
    v1beta1::ListAndWatchResponse response;
    while (reader->Read(&response)) on_list(device_list(response));
    [[maybe_unused]] const auto status = reader->Finish();
    on_end();
  });
}

void PluginClient::close_client() {
  impl_->watch_context.TryCancel();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void add_response(const std::string& serialized, ContainerGrant& grant) {
  v1beta1::ContainerAllocateResponse response;
  if (!response.ParseFromString(serialized)) return;
  for (const auto& [key, value] : response.envs()) grant.envs.emplace(key, value);
  for (const auto& [key, value] : response.annotations()) grant.annotations.emplace(key, value);
  for (const auto& mount : response.mounts()) {
    grant.mounts.push_back({mount.host_path(), mount.container_path(), mount.read_only()});
  }
  for (const auto& device : response.devices()) {
    const auto same = [&](const auto& other) { return other.container_path == device.container_path(); };
    if (std::ranges::any_of(grant.device_specs, same)) continue;
    grant.device_specs.push_back({device.host_path(), device.container_path(), device.permissions()});
  }
  for (const auto& device : response.cdi_devices()) grant.cdi_devices.push_back(device.name());
}

namespace {

class RegistrationService final : public v1beta1::Registration::Service {
 public:
  explicit RegistrationService(RegisterFunction function) : function_(std::move(function)) {}

  grpc::Status Register(grpc::ServerContext* context, const v1beta1::RegisterRequest* request,
                        v1beta1::Empty*) override {
    const auto status = function_({request->version(), request->endpoint(), request->resource_name()},
                                  [context] { return context->IsCancelled(); });
    if (status) return grpc::Status::OK;
    return {grpc::StatusCode::UNKNOWN, status.error().message()};
  }

 private:
  RegisterFunction function_;
};

// One ContainerDevices for each device, with its own topology, as from the real kubelet.
void to_proto(const ListedDevice& device, v1::ContainerDevices& out) {
  out.set_resource_name(device.resource);
  out.add_device_ids(device.id);
  for (const int node : device.numa_nodes) out.mutable_topology()->add_nodes()->set_id(node);
}

// As from the real kubelet, a device has the CDI devices of those before it too.
void to_proto(const PreparedClaim& claim, v1::DynamicResource& out) {
  out.set_claim_name(claim.name);
  out.set_claim_namespace(claim.name_space);
  std::map<std::string, std::vector<std::string>> cdi_devices;  // by driver
  for (const auto& device : claim.devices) {
    auto& to = *out.add_claim_resources();
    auto& named = cdi_devices[device.driver];
    named.insert(named.end(), device.cdi_devices.begin(), device.cdi_devices.end());
    for (const auto& name : named) to.add_cdi_devices()->set_name(name);
    to.set_driver_name(device.driver);
    to.set_pool_name(device.pool);
    to.set_device_name(device.device);
    if (device.share_id) to.set_share_id(*device.share_id);
  }
}

void to_proto(const ListedPod& pod, v1::PodResources& out) {
  out.set_namespace_(pod.name_space);
  out.set_name(pod.name);
  for (const auto& container : pod.containers) {
    auto& to = *out.add_containers();
    to.set_name(container.name);
    for (const auto& device : container.devices) to_proto(device, *to.add_devices());
    for (const auto& claim : container.claims) to_proto(claim, *to.add_dynamic_resources());
  }
}

class PodResourcesService final : public v1::PodResourcesLister::Service {
 public:
  explicit PodResourcesService(PodResourcesFunctions functions) : functions_(std::move(functions)) {}

  grpc::Status List(grpc::ServerContext*, const v1::ListPodResourcesRequest*,
                    v1::ListPodResourcesResponse* response) override {
    for (const auto& pod : functions_.pods()) to_proto(pod, *response->add_pod_resources());
    return grpc::Status::OK;
  }
  grpc::Status GetAllocatableResources(grpc::ServerContext*, const v1::AllocatableResourcesRequest*,
                                       v1::AllocatableResourcesResponse* response) override {
    for (const auto& device : functions_.allocatable()) to_proto(device, *response->add_devices());
    return grpc::Status::OK;
  }
  grpc::Status Get(grpc::ServerContext*, const v1::GetPodResourcesRequest* request,
                   v1::GetPodResourcesResponse* response) override {
    for (const auto& pod : functions_.pods()) {
      if (pod.name != request->pod_name() || pod.name_space != request->pod_namespace()) continue;
      to_proto(pod, *response->mutable_pod_resources());
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::UNKNOWN,
            "pod " + request->pod_name() + " in namespace " + request->pod_namespace() + " not found"};
  }

 private:
  PodResourcesFunctions functions_;
};

}  // namespace

std::shared_ptr<grpc::Service> make_registration_service(RegisterFunction function) {
  return std::make_shared<RegistrationService>(std::move(function));
}

std::shared_ptr<grpc::Service> make_pod_resources_service(PodResourcesFunctions functions) {
  return std::make_shared<PodResourcesService>(std::move(functions));
}

struct SocketServer::Impl {
  std::string path;
  FileDescriptor listener, stop;
  std::unique_ptr<grpc::Server> server;
  std::thread thread;

  bool stopped_within(std::chrono::milliseconds timeout) const {
    pollfd waits{stop.get(), POLLIN, 0};
    return ::poll(&waits, 1, static_cast<int>(timeout.count())) > 0;
  }

  void accept_connections(std::chrono::milliseconds listen_delay) {
    if (stopped_within(listen_delay) || !start_listening(listener, path)) return;
    for (;;) {
      pollfd waits[] = {{stop.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0 && errno != EINTR) return;
      if ((waits[0].revents & POLLIN) != 0) return;
      FileDescriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.is_open()) grpc::AddInsecureChannelFromFd(server.get(), socket.release());
    }
  }
};

SocketServer::SocketServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<SocketServer>> SocketServer::start_socket_server(
    const std::string& path, grpc::Service& service, std::chrono::milliseconds listen_delay) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->stop = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  grpc::ServerBuilder builder;
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  builder.RegisterService(&service);
  impl->server = builder.BuildAndStart();
  GPULET_TRY_ASSIGN(impl->listener, bind_unix_socket(path));
  // A delay of zero listens here, not on the thread, so that no client can see the time between.
  if (listen_delay.count() == 0) GPULET_TRY(start_listening(impl->listener, path));
  impl->thread = std::thread([raw = impl.get(), listen_delay] { raw->accept_connections(listen_delay); });
  return std::unique_ptr<SocketServer>(new SocketServer(std::move(impl)));
}

SocketServer::~SocketServer() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto rung = ::write(impl_->stop.get(), &one, sizeof one);
  impl_->thread.join();
  impl_->listener.reset();
  impl_->server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace gpulet::sim
