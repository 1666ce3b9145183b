#include "sim/kubelet/plugin_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel_posix.h>

#include <algorithm>
#include <thread>

#include "base/unix_socket.h"
#include "proto/deviceplugin_v1beta1.grpc.pb.h"

namespace gpulet::sim {
namespace {

constexpr std::chrono::seconds kCallTimeout{10};
constexpr std::string_view kCodeNames[] = {
    "OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
    "ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable",
    "DataLoss", "Unauthenticated"};

tl::unexpected<Error> failed(const grpc::Status& status) {
  const auto number = static_cast<std::size_t>(status.error_code());
  const std::string_view name = number < std::size(kCodeNames) ? kCodeNames[number] : "Unknown";
  return fail(Code::kFailedPrecondition,
              "rpc error: code = " + std::string(name) + " desc = " + status.error_message());
}

void prepare(grpc::ClientContext& context) {
  context.set_authority("localhost");
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
}

PluginClient::List list_of(const v1beta1::ListAndWatchResponse& response) {
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
PluginClient::~PluginClient() { close(); }

Result<std::shared_ptr<PluginClient>> PluginClient::connect(const std::string& path) {
  GPULET_TRY_ASSIGN(FileDescriptor socket, connect_unix(path));
  auto impl = std::make_unique<Impl>();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  impl->channel = grpc::CreateCustomInsecureChannelFromFd("localhost", socket.release(), arguments);
  impl->stub = v1beta1::DevicePlugin::NewStub(impl->channel);
  return std::shared_ptr<PluginClient>(new PluginClient(std::move(impl)));
}

Result<PluginClient::Options> PluginClient::options() {
  grpc::ClientContext context;
  prepare(context);
  v1beta1::DevicePluginOptions response;
  const auto status = impl_->stub->GetDevicePluginOptions(&context, {}, &response);
  if (!status.ok()) return failed(status);
  return Options{response.pre_start_required(), response.get_preferred_allocation_available()};
}

Result<std::vector<std::string>> PluginClient::preferred(const std::vector<std::string>& available,
                                                         const std::vector<std::string>& required, std::size_t size) {
  grpc::ClientContext context;
  prepare(context);
  v1beta1::PreferredAllocationRequest request;
  auto& container = *request.add_container_requests();
  for (const auto& id : available) container.add_available_deviceids(id);
  for (const auto& id : required) container.add_must_include_deviceids(id);
  container.set_allocation_size(static_cast<std::int32_t>(size));
  v1beta1::PreferredAllocationResponse response;
  const auto status = impl_->stub->GetPreferredAllocation(&context, request, &response);
  if (!status.ok()) return failed(status);
  std::vector<std::string> ids;
  if (response.container_responses_size() > 0) {
    for (const auto& id : response.container_responses(0).deviceids()) ids.push_back(id);
  }
  return ids;
}

Result<std::string> PluginClient::allocate(const std::vector<std::string>& ids) {
  grpc::ClientContext context;
  prepare(context);
  v1beta1::AllocateRequest request;
  auto& container = *request.add_container_requests();
  for (const auto& id : ids) container.add_devices_ids(id);
  v1beta1::AllocateResponse response;
  const auto status = impl_->stub->Allocate(&context, request, &response);
  if (!status.ok()) return failed(status);
  if (response.container_responses_size() == 0) {
    return fail(Code::kFailedPrecondition, "no containers return in allocation response");
  }
  return response.container_responses(0).SerializeAsString();
}

void PluginClient::watch(std::function<void(List)> on_list, std::function<void()> on_end) {
  impl_->watch_context.set_authority("localhost");
  impl_->thread = std::thread([impl = impl_.get(), on_list = std::move(on_list), on_end = std::move(on_end)] {
    const auto reader = impl->stub->ListAndWatch(&impl->watch_context, {});
    v1beta1::ListAndWatchResponse response;
    while (reader->Read(&response)) on_list(list_of(response));
    [[maybe_unused]] const auto status = reader->Finish();
    on_end();
  });
}

void PluginClient::close() {
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

}  // namespace gpulet::sim
