// Attributes the use of a GPU or MIG device to Pods: which Pods hold it (PodResources), and how much of its
// memory and time each has (its processes). Pure but for the readers of /proc and the Pod log directories at
// the end.
//
// One Pod on a device: all activity is its own, except what processes of another known Pod do. Several Pods:
// each has the activity of its own processes, an idle one zero; the rest is unattributed (the driver's own
// memory, processes of no known Pod or of one that does not hold the device). The Pods and the rest always
// add up to the device.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "inventory/snapshot.h"
#include "metrics/fields.h"
#include "metrics/pods.h"

namespace gpulet::metrics {

// A device, and a share of it ("": the whole device).
struct DeviceShare {
  DeviceUuid device;
  std::string share;
  friend bool operator==(const DeviceShare&, const DeviceShare&) = default;
};
// Resolves a device id; nullopt if this node has no such device. Forms: "GPU-UUID", "MIG-UUID", the old
// "MIG-GPU-UUID/GI/CI", each with "::N" for a share of it; GKE's "nvidiaM", "nvidiaM/giG", each with "/vgpuN"
// (M is the device's minor number). Source: NVIDIA's device plugin, GKE's device plugin, dcgm-exporter's
// transformation.
std::optional<DeviceShare> resolve_device_id(const DeviceId& id, const inventory::Snapshot& snapshot);

// A container's share of a device.
struct HeldShare {
  ResourceName resource;
  std::string container;
  std::string share;  // "": the whole device
  friend auto operator<=>(const HeldShare&, const HeldShare&) = default;
};
// A Pod on a device.
struct Holder {
  PodName pod;
  std::vector<std::string> containers;   // holders of the device, sorted
  std::vector<std::string> shares;       // of a shared device, sorted as numbers
  std::vector<HeldShare> held_shares{};  // sorted; empty for a MIG device that it holds through its GPU
  friend bool operator==(const Holder&, const Holder&) = default;
};
// By device, each list sorted by Pod. A holder of a whole GPU in MIG mode holds its MIG devices.
using Holders = std::map<DeviceUuid, std::vector<Holder>>;
Holders find_holders(std::span<const ContainerDevices> containers, const inventory::Snapshot& snapshot);

// The Pods of this node by UID.
using PodByUid = std::map<std::string, PodName>;
// The Pod of each process: the first known UID of its cgroups.
using PodByPid = std::map<unsigned, PodName>;
std::optional<PodName> find_pod(std::span<const std::string> uids, const PodByUid& known);

struct DeviceActivity {
  Bytes memory;                   // in use on the device
  double busy = 0;                // percent of its time
  bool has_process_times = true;  // whether the driver reports the busy time of processes; not in MIG mode
  std::vector<ProcessSample> processes;
};
struct PodShare {
  Holder holder;
  Bytes memory;
  double busy = 0;
};
struct PodShares {
  std::vector<PodShare> pods;  // as the holders
  Bytes unattributed_memory;
  double unattributed_busy = 0;
  // false: several Pods, and no process can be attributed; everything is in the rest.
  bool is_known = true;
  bool is_busy_known = true;  // the same for busy time alone
};
// Memory adds up to the byte, time up to a rounding error. If the processes have more memory or time than the
// device (the calls are not simultaneous), it is scaled down in proportion. Only the order of `holders`
// matters.
PodShares attribute(const DeviceActivity& device, std::span<const Holder> holders, const PodByPid& pods);
// The Pod of a process of a device that `shares` are of. One of an unknown Pod is the only holder's, as its
// use is by attribute(), unless it is known to be of no Pod. nullopt: unknown, or none.
std::optional<PodName> pod_of_process(const ProcessSample& process, std::span<const PodShare> shares,
                                      const PodByPid& pods);

// Processes and their Pods. The driver reports host pids: without hostPID no process is found.

// Reads the Pods of this node from the kubelet's log directories (usually /var/log/pods). Errors: those of
// opening the directory.
Result<PodByUid> read_pod_uids(const std::string& directory);

// The Pod UIDs in the cgroups of each process, by pid; none for a process of no Pod.
using CgroupsByPid = std::map<unsigned, std::vector<std::string>>;
// Reads `proc`/PID/cgroup of each process of a GPU and its MIG devices. Absent are processes that have ended,
// and those of no Pod in the caller's own cgroups: its children, and where it does not see the host's pids
// any process of its container may have the number.
CgroupsByPid read_cgroups(const GpuSample& gpu, const std::string& proc = "/proc");

// Fills in process names from `proc`/PID/comm; never reads arguments or environment.
void read_process_names(GpuSample& gpu, const std::string& proc = "/proc");

// Adds the known Pod of each process to `pods`.
void match_processes_to_pods(const CgroupsByPid& cgroups, const PodByUid& known, PodByPid& pods);

// Sets ProcessSample::is_outside_pods of the GPU's processes.
void mark_processes_outside_pods(const CgroupsByPid& cgroups, GpuSample& gpu);
// The marked processes that hold at least kWorkMemory of the GPU: less is a display server's frame buffer or
// a monitoring program, as a CUDA context alone takes several hundred MiB.
inline constexpr Bytes kWorkMemory{std::uint64_t{100} << 20};
std::vector<ProcessSample> processes_outside_pods(const GpuSample& gpu);

}  // namespace gpulet::metrics
