// Computes which MPS control daemons a node needs, and their limits, from the resources shared by
// MPS. Pure. A GPU has one daemon; resources with shares on the same GPUs (a rule's shares of
// several sizes) use one together. Source: k8s-device-plugin v0.20.0, cmd/mps-control-daemon/mps,
// and NVIDIA's MPS documentation.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::mps {

// Where containers mount the host's MPS root.
inline constexpr std::string_view kContainerRoot = "/mps";

// The GPU or MIG device that a set of shares belongs to.
struct SharedDevice {
  DeviceUuid uuid;
  unsigned gpu = 0;  // NVML index of the GPU
  bool mig = false;
  Bytes memory;
  friend bool operator==(const SharedDevice&, const SharedDevice&) = default;
};

// Memory limit of each client on one device, unless its own environment sets a lower one.
struct MemoryLimit {
  unsigned device =
      0;  // the daemon's device number: index into visible_devices, or the driver's index if that is empty
  std::uint64_t mebibytes = 0;
  friend bool operator==(const MemoryLimit&, const MemoryLimit&) = default;
};

struct DaemonSpec {
  std::string name;  // its directory below the MPS root: "nvidia.com/gpu", or claim_daemon_name()
  std::vector<ResourceName> resources;
  std::vector<SharedDevice> devices;  // by GPU
  // CUDA_VISIBLE_DEVICES: UUIDs in the order of `devices`. Empty, and not set, if the daemon serves
  // all GPUs of the node and they are of one model, like NVIDIA's daemon, which sees them all. A
  // server does not start if it sees a GPU in MIG mode.
  std::vector<DeviceUuid> visible_devices;
  std::vector<MemoryLimit>
      memory_limits;  // by device; none for one of unknown memory, or without a limit by its rule
  unsigned thread_percentage = 100;
  friend bool operator==(const DaemonSpec&, const DaemonSpec&) = default;
};

// The daemons, by name. Limits: memory and threads divided by the shares of a device, rounded down,
// as in NVIDIA's plugin. If shares differ in size, the daemon gets the limits of the largest, and
// each client its own in its environment. A MIG device has its own daemon, "<name>/<UUID>", because
// a CUDA process uses only one.
std::vector<DaemonSpec> plan_daemons(const std::vector<partition::Resource>& resources,
                                     const inventory::Snapshot& snapshot);

// The daemon that serves a device of `resource`; nullptr if none does.
const DaemonSpec* find_daemon_spec(std::span<const DaemonSpec> specs, const ResourceName& resource,
                                   const DeviceId& device);

// Environment of a container that holds `held`, devices of this daemon: the pipe directory and, for
// shares by rule, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, with the
// device numbers that the container sees. Several shares of one GPU add up, but not above the
// daemon's own limits.
std::map<std::string, std::string> client_environment(const DaemonSpec& spec,
                                                      std::span<const partition::Device> held);

// The daemon `number` of a claim: "claims/<uid>", "claims/<uid>-1". Its directory goes with it: no other
// claim has the name.
std::string claim_daemon_name(const std::string& uid, std::size_t number);
bool is_claim_daemon(std::string_view name);

// Those of `specs` that have no device of one in `held`.
std::vector<DaemonSpec> without_held_devices(std::vector<DaemonSpec> specs, std::span<const DaemonSpec> held);
// The first of `specs` that serves the device; nullptr if none does.
const DaemonSpec* find_daemon_of(std::span<const DaemonSpec> specs, const DeviceUuid& device);

// Paths below an MPS root.
std::string pipe_directory(const std::string& root, const std::string& name);
std::string log_directory(const std::string& root, const std::string& name);
std::string started_file(const std::string& root, const std::string& name);
std::string ready_file(const std::string& root);
// Where a tmpfs is for the /dev/shm of the clients: of resources', and of claims', in which each daemon has a
// directory.
std::string shm_directory(const std::string& root);
std::string claim_shm_directory(const std::string& root);
// The /dev/shm of a daemon's clients: claims share none.
std::string client_shm_directory(const std::string& root, const std::string& name);

}  // namespace gpulet::mps
