// Which MPS control daemons a node needs, and what each is told: out of the resources that share by MPS.
// Pure. One GPU has one daemon; resources whose shares lie on the same GPUs (one rule's shares of several
// sizes) have it in common. Source: facts of k8s-device-plugin v0.20.0, cmd/mps-control-daemon/mps, and
// NVIDIA's MPS documentation.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::mps {

// Where a container finds what the host has below the MPS root.
inline constexpr std::string_view kContainerRoot = "/mps";

// A GPU, or a MIG device: what one set of shares is of.
struct SharedDevice {
  DeviceUuid uuid;
  unsigned gpu = 0;  // index of the GPU as the driver counts
  bool mig = false;
  Bytes memory;
  friend bool operator==(const SharedDevice&, const SharedDevice&) = default;
};

// Of each client on one device, unless its own environment says less.
struct MemoryLimit {
  unsigned device =
      0;  // as the daemon counts: among visible_devices, or as the driver does where that is empty
  std::uint64_t mebibytes = 0;
  friend bool operator==(const MemoryLimit&, const MemoryLimit&) = default;
};

struct DaemonSpec {
  std::string name;  // its folder below the MPS root: "nvidia.com/gpu"
  std::vector<ResourceName> resources;
  std::vector<SharedDevice> devices;  // by GPU
  // CUDA_VISIBLE_DEVICES: UUIDs in the order of `devices`. Empty, and not set, where it serves all GPUs of
  // the node and they are of one model: as NVIDIA's daemon, which sees them all. The server does not start
  // where it sees a GPU in MIG mode.
  std::vector<DeviceUuid> visible_devices;
  std::vector<MemoryLimit> memory_limits;  // by device; none for one whose memory is not known
  unsigned thread_percentage = 100;
  friend bool operator==(const DaemonSpec&, const DaemonSpec&) = default;
};

// By name. Limits: all memory and threads divided by the shares of a device, rounded down, as NVIDIA's; where
// shares differ, those of the largest, and each client's own in its environment. A MIG device has a daemon of
// its own, "<name>/<UUID>": a CUDA process uses no more than one.
std::vector<DaemonSpec> plan(const std::vector<partition::Resource>& resources,
                             const inventory::Snapshot& snapshot);

// The daemon that serves a device of `resource`; nullptr where none does.
const DaemonSpec* find(std::span<const DaemonSpec> specs, const ResourceName& resource,
                       const DeviceId& device);

// What a container that holds `held`, devices of this daemon, has in its environment: where the daemon is,
// and, for shares by rule, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT. Its
// devices are numbered as it sees them. Several shares of one GPU add up, though never above the daemon's own
// limits.
std::map<std::string, std::string> client_environment(const DaemonSpec& spec,
                                                      std::span<const partition::Device> held);

// Paths below an MPS root.
std::string pipe_directory(const std::string& root, const std::string& name);
std::string log_directory(const std::string& root, const std::string& name);
std::string started_file(const std::string& root, const std::string& name);
std::string ready_file(const std::string& root);
std::string shm_directory(const std::string& root);

}  // namespace gpulet::mps
