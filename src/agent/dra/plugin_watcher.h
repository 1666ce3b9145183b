// Reads what the device plugin's side still has of GPUs that go to claims (partition/offer_switch.h): the
// Pods that hold them and the devices that the kubelet counts, from PodResources, and what the Node shows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/dra/offer_readings.h"
#include "base/loop.h"
#include "base/result.h"
#include "device_plugin/pod_resources.h"
#include "inventory/snapshot.h"
#include "partition/offer_switch.h"

namespace gpulet::agent {

// How often it is read, and how long one round may take: a client that is replaced loses its answer.
inline constexpr BackoffLimits kPluginPoll{std::chrono::milliseconds(100), std::chrono::seconds(5)};
inline constexpr Duration kPluginReadLimit = std::chrono::seconds(30);

struct PluginWatcherPorts {
  Loop& loop;
  // As PodResources.
  std::function<void(std::function<void(Result<std::vector<ContainerDevices>>)>)> list_containers;
  std::function<void(std::function<void(Result<device_plugin::DevicesByResource>)>)> list_allocatable;
  // The Node's JSON; nullopt where there is none.
  std::function<void(std::function<void(Result<std::optional<std::string>>)>)> read_node;
  std::function<inventory::SnapshotPtr()> snapshot;  // never null while it is active
  std::function<ExpectedAllocatable()> expected;     // what the device plugin offers now
  std::function<void(const partition::PluginReading&)> on_reading;
};

// Loop's thread only. A failed round is logged once, and tried again.
class PluginWatcher {
 public:
  explicit PluginWatcher(PluginWatcherPorts ports) : ports_(std::move(ports)) {}

  // Reads at once when it becomes active, and again until it is not.
  void set_active(bool active);

 private:
  void begin_round();
  void list_allocatable(partition::PluginReading reading);
  void read_node(partition::PluginReading reading);
  void end_round(const Result<partition::PluginReading>& reading);

  PluginWatcherPorts ports_;
  bool is_active_ = false;
  Backoff backoff_{kPluginPoll, 0};
  std::uint64_t round_ = 0;  // answers of earlier rounds are ignored
  std::string error_;
  Subscription timer_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
