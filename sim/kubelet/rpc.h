// The gRPC side of the simulated kubelet: a client of device plugins with the kubelet's own time limits, the
// services that it serves, and a server on a Unix socket.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/kubelet/kubelet.h"

namespace gpulet::sim {

class PluginClient {
 public:
  struct Options {
    bool pre_start_required = false;
    bool preferred_allocation_available = false;
  };
  using List = std::map<std::string, KubeletDevice>;

  // Connects to the plugin's socket. Errors: as connect_unix_socket.
  static Result<std::shared_ptr<PluginClient>> connect_plugin(const std::string& path);
  ~PluginClient();
  PluginClient(const PluginClient&) = delete;

  // Errors of the calls: the plugin's, worded as Go's gRPC does ("rpc error: code = InvalidArgument desc =
  // …").
  Result<Options> get_plugin_options();
  Result<std::vector<std::string>> get_preferred_allocation(const std::vector<std::string>& available,
                                                            const std::vector<std::string>& required,
                                                            std::size_t size);
  // The serialized response of the single container.
  Result<std::string> call_allocate(const std::vector<std::string>& ids);

  // Starts ListAndWatch. Calls `on_list` for each list and `on_end` once, both on a thread of this client.
  void start_list_and_watch(std::function<void(List)> on_list, std::function<void()> on_end);
  // Ends all calls; no callback runs afterwards. Not to be called from a callback.
  void close_client();

 private:
  struct Impl;
  explicit PluginClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Adds a plugin's response to a container. Existing values are kept, as in the kubelet.
void add_response(const std::string& serialized, ContainerGrant& grant);

}  // namespace gpulet::sim

namespace grpc {

// The kubelet's gRPC services over plain functions, which run on gRPC's threads.

class Service;
}  // namespace grpc

namespace gpulet::sim {

struct RegisterArguments {
  std::string version, endpoint, resource;
};
// `cancelled` returns whether the caller has given up. An error becomes status Unknown with its message, as a
// Go server's plain error does.
using RegisterFunction =
    std::function<Status(const RegisterArguments&, const std::function<bool()>& cancelled)>;
std::shared_ptr<grpc::Service> make_registration_service(RegisterFunction function);

struct ListedDevice {
  std::string resource, id;
  std::set<int> numa_nodes;
};
struct ListedContainer {
  std::string name;
  std::vector<ListedDevice> devices;
  std::vector<PreparedClaim> claims{};
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

namespace grpc {

// A gRPC server on a Unix socket whose bind, listen and end the caller controls, to simulate the moment
// between bind and listen and what a killed process leaves.

class Service;
}  // namespace grpc

namespace gpulet::sim {

class SocketServer {
 public:
  // Binds at once and listens `listen_delay` later. `service` outlives the server.
  static Result<std::unique_ptr<SocketServer>> start_socket_server(const std::string& path,
                                                                   grpc::Service& service,
                                                                   std::chrono::milliseconds listen_delay);
  // Breaks every connection and leaves the socket file.
  ~SocketServer();
  SocketServer(const SocketServer&) = delete;

 private:
  struct Impl;
  explicit SocketServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpulet::sim
