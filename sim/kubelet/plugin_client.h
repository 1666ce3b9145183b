// The kubelet's end of one device plugin: the calls that it makes, each with the kubelet's own limits.
#pragma once

#include <functional>
#include <map>
#include <memory>
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

  // Connects to the plugin's socket. Errors: as connect_unix.
  static Result<std::shared_ptr<PluginClient>> connect(const std::string& path);
  ~PluginClient();
  PluginClient(const PluginClient&) = delete;

  // Errors of the calls: the plugin's, worded as Go's gRPC does ("rpc error: code = InvalidArgument desc = …").
  Result<Options> options();
  Result<std::vector<std::string>> preferred(const std::vector<std::string>& available,
                                             const std::vector<std::string>& required, std::size_t size);
  // The one container's response, serialized.
  Result<std::string> allocate(const std::vector<std::string>& ids);

  // Opens ListAndWatch: `on_list` for each list, `on_end` once, both on a thread of this client.
  void watch(std::function<void(List)> on_list, std::function<void()> on_end);
  // Ends what is open; no callback comes after it. Not from a callback.
  void close();

 private:
  struct Impl;
  explicit PluginClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Adds what a plugin's answer gives to a container; what is there already stays, as in the kubelet.
void add_response(const std::string& serialized, ContainerGrant& grant);

}  // namespace gpulet::sim
