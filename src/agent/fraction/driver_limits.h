// The memory limits that the driver holds, as a part of the node's agent: the service that gpulet-hook asks
// (limit_service.h), its socket, and the driver's calls, as the setting gpulet.fraction.driverLimits says.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/fraction/limit_service.h"
#include "agent/fraction/limit_socket.h"
#include "agent/fraction/memory_ledger.h"
#include "agent/node/node.h"

namespace gpulet::agent {

struct DriverLimitPorts {
  // Null while there is none: then the Pods' requests are not known.
  std::function<MemoryLedger*()> ledger;
  std::function<void(const EvictionEvent&)> notify;
  decltype(LimitPorts::hold_compute) hold_compute = {};
};

// Loop's thread only.
class DriverLimits {
 public:
  DriverLimits(Node& node, DriverLimitPorts ports) : node_(node), ports_(std::move(ports)) {}

  // Follows the config of an attached node. Limits that are in force stay, and are cleared with their
  // containers, when the setting is taken back.
  void follow_config();
  // Containers that wait for a limit are refused; the records stay.
  void detach();
  // Whether the driver answers. When it is there, for the first time or again, all limits are set again.
  void follow_driver(bool is_there);
  // A driver that was loaded again has lost its limits.
  void on_driver_loaded();
  void on_pods_read(const Status& result);

  // Whether the limit of a container (the engine's id) on a GPU was set and read back.
  bool is_in_force(const std::string& container_id, const DeviceUuid& gpu) const;
  // Why no container gets limits; empty: they do, or none asks.
  const std::string& problem() const { return problem_; }

 private:
  LimitPorts service_ports();
  ContainerLimits find_limits(const std::string& pod_uid, const std::string& container) const;
  void set_limit(const DeviceUuid& gpu, const std::string& cgroup, Bytes limit, LimitPorts::Done done);
  void set_pod_limit(const DeviceUuid& gpu, const std::string& cgroup, Bytes limit, LimitPorts::Done done);
  void clear_limit(const DeviceUuid& gpu, const std::string& cgroup, LimitPorts::Done done);
  // Of cgroup v2, where the kernel counts the GPU's memory; empty: the driver does.
  std::string dmem_mount_of(const DeviceUuid& gpu) const;

  Node& node_;
  DriverLimitPorts ports_;
  bool is_driver_there_ = false;
  std::string directory_;  // of service_
  std::optional<LimitService> service_;
  std::unique_ptr<LimitSocket> socket_;  // null where no container asks; goes before service_
  std::string problem_;
};

}  // namespace gpulet::agent
