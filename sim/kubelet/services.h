// What the embedded kubelet serves, as gRPC services over plain functions. The functions are called on gRPC's threads.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"

namespace grpc {
class Service;
}

namespace gpulet::sim {

struct RegisterArguments {
  std::string version, endpoint, resource;
};
// `cancelled` tells whether the caller has given up. An error becomes status Unknown with its message, as a Go
// server's plain error does.
using RegisterFunction = std::function<Status(const RegisterArguments&, const std::function<bool()>& cancelled)>;
std::shared_ptr<grpc::Service> make_registration_service(RegisterFunction function);

struct ListedDevice {
  std::string resource, id;
  std::set<int> numa_nodes;
};
struct ListedContainer {
  std::string name;
  std::vector<ListedDevice> devices;
};
struct ListedPod {
  std::string name_space, name;
  std::vector<ListedContainer> containers;
};
struct PodResourcesFunctions {
  std::function<std::vector<ListedPod>()> pods;
  std::function<std::vector<ListedDevice>()> allocatable;
};
std::shared_ptr<grpc::Service> make_pod_resources_service(PodResourcesFunctions functions);

}  // namespace gpulet::sim
