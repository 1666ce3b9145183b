// A Unix socket at a fixed path whose connections the gRPC server serves. A socket that somebody removes or
// replaces is made again, which the kubelet takes for a new registration.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "device_plugin/pod_resources.h"

namespace gpulet::dra {

// Loop's thread only.
class ServedSocket {
 public:
  // Listens at once; creates the directory (0755) if it is missing. Errors: those of bind_unix_socket,
  // make_directories and watching the directory.
  static Result<std::unique_ptr<ServedSocket>> open_socket(Loop& loop,
                                                           std::shared_ptr<device_plugin::GrpcThread> rpc,
                                                           std::string path);
  // Removes the socket, unless it is another's by now. Connections stay open until the peer closes them or
  // the gRPC thread ends.
  virtual ~ServedSocket() = default;
};

// "<plugins>/gpu.nvidia.com/dra.sock" and "<registry>/gpu.nvidia.com-reg.sock": the paths of NVIDIA's driver.
// Two agents of a node need paths of their own: with the UID of a Pod as `instance`, its first group is part
// of the name, "dra-1a2b3c4d.sock". The whole UID would not fit everywhere: a path has 107 bytes.
std::string service_socket_path(const std::string& plugins_directory, const std::string& driver,
                                std::string_view instance = {});
std::string registration_socket_path(const std::string& registry_directory, const std::string& driver,
                                     std::string_view instance = {});

// Removes sockets of the driver that nobody listens at: those of killed instances. Returns their paths.
std::vector<std::string> remove_dead_sockets(const std::string& plugins_directory,
                                             const std::string& registry_directory,
                                             const std::string& driver);

}  // namespace gpulet::dra
