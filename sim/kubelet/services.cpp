#include "sim/kubelet/services.h"

#include <grpcpp/server_context.h>

#include "proto/deviceplugin_v1beta1.grpc.pb.h"
#include "proto/podresources_v1.grpc.pb.h"

namespace gpulet::sim {
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

// One ContainerDevices a device, each with its own topology, as the real one answers.
void render(const ListedDevice& device, v1::ContainerDevices& out) {
  out.set_resource_name(device.resource);
  out.add_device_ids(device.id);
  for (const int node : device.numa_nodes) out.mutable_topology()->add_nodes()->set_id(node);
}

void render(const ListedPod& pod, v1::PodResources& out) {
  out.set_namespace_(pod.name_space);
  out.set_name(pod.name);
  for (const auto& container : pod.containers) {
    auto& to = *out.add_containers();
    to.set_name(container.name);
    for (const auto& device : container.devices) render(device, *to.add_devices());
  }
}

class PodResourcesService final : public v1::PodResourcesLister::Service {
 public:
  explicit PodResourcesService(PodResourcesFunctions functions) : functions_(std::move(functions)) {}

  grpc::Status List(grpc::ServerContext*, const v1::ListPodResourcesRequest*,
                    v1::ListPodResourcesResponse* response) override {
    for (const auto& pod : functions_.pods()) render(pod, *response->add_pod_resources());
    return grpc::Status::OK;
  }
  grpc::Status GetAllocatableResources(grpc::ServerContext*, const v1::AllocatableResourcesRequest*,
                                       v1::AllocatableResourcesResponse* response) override {
    for (const auto& device : functions_.allocatable()) render(device, *response->add_devices());
    return grpc::Status::OK;
  }
  grpc::Status Get(grpc::ServerContext*, const v1::GetPodResourcesRequest* request,
                   v1::GetPodResourcesResponse* response) override {
    for (const auto& pod : functions_.pods()) {
      if (pod.name != request->pod_name() || pod.name_space != request->pod_namespace()) continue;
      render(pod, *response->mutable_pod_resources());
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

}  // namespace gpulet::sim
