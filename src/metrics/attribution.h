// Who uses a GPU or MIG device: the Pods that hold it by the kubelet's word, and how much of its memory and
// time each of them has, by its processes. Pure.
//
// One Pod on a device: all that the device does is its, but for what another Pod is known to do there.
// Several: each has what its own processes have, an idle one zero, and the rest is nobody's (the driver's own
// memory, processes of no Pod that holds the device, or of none that is known). What the Pods and the rest
// have is always what the device has.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/strong.h"
#include "inventory/snapshot.h"
#include "metrics/cgroups.h"
#include "metrics/sample.h"

namespace gpulet::metrics {

// What one container holds, as the kubelet's PodResources tell.
struct ContainerDevices {
  PodName pod;
  std::string container;
  std::map<ResourceName, std::vector<DeviceId>> devices;
};

// What a device id names: the device, and which share of it ("" for all of it).
struct DevicePlace {
  DeviceUuid device;
  std::string share;
  friend bool operator==(const DevicePlace&, const DevicePlace&) = default;
};
// nullopt when it names none of this node's devices. Forms: "GPU-UUID", "MIG-UUID", the old
// "MIG-GPU-UUID/GI/CI", each with "::N" for a share of it; GKE's "nvidiaM", "nvidiaM/giG", each with "/vgpuN"
// (M is the device's minor number). Source: NVIDIA's device plugin, GKE's device plugin, dcgm-exporter's
// transformation.
std::optional<DevicePlace> place_of(const DeviceId& id, const inventory::Snapshot& snapshot);

// What a container holds of a device.
struct Held {
  ResourceName resource;
  std::string container;
  std::string share;  // "" for all of it
  friend auto operator<=>(const Held&, const Held&) = default;
};
// A Pod on a device.
struct Holder {
  PodName pod;
  std::vector<std::string> containers;  // that hold it, sorted
  std::vector<std::string> shares;      // of a shared device, sorted as numbers
  std::vector<Held> held{};             // sorted; of a MIG device that it holds with its GPU none
  friend bool operator==(const Holder&, const Holder&) = default;
};
// By device, each list by Pod. Whoever holds a GPU in MIG mode as a whole holds its MIG devices.
using Holders = std::map<DeviceUuid, std::vector<Holder>>;
Holders holders_of(std::span<const ContainerDevices> containers, const inventory::Snapshot& snapshot);

// The Pods of this node by UID.
using PodUids = std::map<std::string, PodName>;
// The Pod of each process, by pid: of the UIDs that its cgroups name, the first that is known.
using PodOfProcess = std::map<unsigned, PodName>;
std::optional<PodName> pod_of(std::span<const std::string> uids, const PodUids& known);

struct DeviceUse {
  Bytes memory;       // in use on the device
  double busy = 0;    // percent of its time
  bool times = true;  // whether the driver tells how busy each process is: not in MIG mode
  std::vector<ProcessSample> processes;
};
struct PodUse {
  Holder holder;
  Bytes memory;
  double busy = 0;
};
struct Shares {
  std::vector<PodUse> pods;  // as the holders
  Bytes rest_memory;
  double rest_busy = 0;
  // false: several Pods and not one process of which it is known whose it is, though there are some: what
  // each Pod has is not known, and all is in the rest.
  bool known = true;
  bool busy_known = true;  // the same of their time alone
};
// Memory adds up to the byte; time to a rounding error. More memory or time of processes than the device has
// (they were not asked in one instant) is scaled down to it, in proportion. The order of nothing matters but
// of `holders`.
Shares attribute(const DeviceUse& device, std::span<const Holder> holders, const PodOfProcess& pods);

}  // namespace gpulet::metrics
