// Computes which MPS control daemons a node needs, and their limits, from the resources shared by
// MPS. Pure. A GPU has one daemon; resources with shares on the same GPUs (a rule's shares of
// several sizes) use one together. Source: k8s-device-plugin v0.20.0, cmd/mps-control-daemon/mps,
// and NVIDIA's MPS documentation.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
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

// Of a namespace of MPS protocol 3. They count for each client and GPU; the percentage in place of what the
// client's own environment says.
struct NamespaceLimits {
  unsigned threads = 100;       // percent of the SMs
  std::uint64_t mebibytes = 0;  // pinned memory of a process; 0: unknown, and not set
  friend bool operator==(const NamespaceLimits&, const NamespaceLimits&) = default;
};
// One share's.
struct ShareNamespace {
  std::string name;        // namespace_name()
  DeviceUuid device;       // of the GPU
  NamespaceLimits limits;  // while no Pod has others
  friend bool operator==(const ShareNamespace&, const ShareNamespace&) = default;
};

// A share's own SMs, in chunks whose size the architecture decides. All partitions of a GPU are equal, as
// large as possible. Source: NVIDIA, "Legacy MPS v2 Interface", static SM partitioning.
struct SmPartition {
  DeviceId share;
  DeviceUuid device;  // of the GPU
  // "GPU-5a1b…/Dw8PDw…", the value of CUDA_MPS_SM_PARTITION; empty in a plan, as the daemon chooses it.
  std::string id{};
  friend bool operator==(const SmPartition&, const SmPartition&) = default;
};

inline constexpr unsigned kProtocolWithNamespaces = 3;
// The one server of a daemon of protocol 3.
inline constexpr std::string_view kServerName = "gpulet";
// "5a1b6c0d2e3f4a5b_12" for the share "GPU-5a1b6c0d-2e3f-4a5b-…::12". Of [a-z0-9_], at most 64; unique among
// the shares of a node, and short, because the path of a socket has at most 107 characters. Source: NVIDIA,
// "MPS v3 Namespaces".
std::string namespace_name(const DeviceId& share);

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
  unsigned protocol = 2;
  // With protocol 3 only, in the order of the shares; the daemon has then neither visible_devices nor
  // memory_limits.
  std::vector<ShareNamespace> namespaces{};
  // With protocol 2 only, in the order of the shares: a client without one of them gets no context, and
  // `thread_percentage` does not count.
  std::vector<SmPartition> sm_partitions{};
  friend bool operator==(const DaemonSpec&, const DaemonSpec&) = default;
};

// Why the shares of partition rules have no namespaces of protocol 3, and so no Pod's nvidia.com/gpucores is
// held; one line, empty: they have. `program_problem`: why the control program has no protocol 3; empty: it
// has, or is not asked yet.
std::string why_no_namespaces(const inventory::Snapshot& snapshot, const config::Config& config,
                              const std::string& program_problem);

// The daemons, by name. Limits: memory and threads divided by the shares of a device, rounded down,
// as in NVIDIA's plugin. If shares differ in size, the daemon gets the limits of the largest, and
// each client its own in its environment. A MIG device has its own daemon, "<name>/<UUID>", because
// a CUDA process uses only one. `has_namespaces`: daemons whose shares are all of partition rules, on GPUs
// without MIG, use protocol 3. Shares of `sharing.mps` are those of NVIDIA's plugin and keep its protocol 2.
std::vector<DaemonSpec> plan_daemons(const std::vector<partition::Resource>& resources,
                                     const inventory::Snapshot& snapshot, bool has_namespaces = false);

// The daemon that serves a device of `resource`; nullptr if none does.
const DaemonSpec* find_daemon_spec(std::span<const DaemonSpec> specs, const ResourceName& resource,
                                   const DeviceId& device);

// The namespace of a container that holds several shares is that of the first, by their order.
struct HeldNamespace {
  std::string name;
  // The sum on the GPU of which it holds least, at most all of it: the driver gives it on every GPU.
  NamespaceLimits limits;
  unsigned shares = 0;  // on that GPU
};
// nullopt for a daemon of protocol 2, and if no id is one of its shares.
std::optional<HeldNamespace> find_namespace(const DaemonSpec& spec, std::span<const DeviceId> ids);

// Environment of a container that holds `held`, devices of this daemon: the pipe directory and, for
// shares by rule, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, with the
// device numbers that the container sees. Several shares of one GPU add up, but not above the
// daemon's own limits. With protocol 3 the pipe directory is the namespace's, which has the limits. With SM
// partitions it is CUDA_MPS_SM_PARTITION, of the first share.
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

// What such a container gets of the pipe directory: all of it with protocol 2, and its namespace's with 3.
std::string client_pipe_directory(const std::string& root, const DaemonSpec& spec,
                                  std::span<const partition::Device> held);

// Paths below an MPS root. A daemon of protocol 3 has another pipe directory than one of protocol 2, because
// Pods of that one have all of it mounted: its control sockets and every namespace.
std::string pipe_directory(const std::string& root, const std::string& name, unsigned protocol = 2);
// The longest path of a socket of a namespace, with the daemon's MPS root or the containers'; empty without
// namespaces. Source: unix(7), sun_path.
inline constexpr std::size_t kMaxSocketPath = 107;
std::string longest_socket_path(const std::string& root, const DaemonSpec& spec);
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
