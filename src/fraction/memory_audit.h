// Compares the memory that containers use on a GPU with the limits that their Pods request: what holds a
// limit where the driver has none. Pure.
//
// The driver lists each process with its memory: contexts, cuMemAlloc, pools and virtual memory. Managed
// memory, and memory that a file descriptor keeps after its process, count for the GPU alone: they are
// charged to a container only if no other one holds the GPU, and no other process is on it. Source: measured
// with driver 580 on H100 and H200 (docs/real-hardware.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace gpulet::fraction {

// Memory of the driver itself that it lists with no process: of the GPU, and of each process. Measured: 9 MiB
// for each CUDA context.
inline constexpr Bytes kDriverMemory = mebibytes(64);
inline constexpr Bytes kDriverMemoryOfProcess = mebibytes(16);

// A container of one run of a Pod.
struct ContainerKey {
  std::string pod_uid, container;
  friend auto operator<=>(const ContainerKey&, const ContainerKey&) = default;
};

struct AuditedProcess {
  unsigned pid = 0;                       // the host's
  std::optional<Bytes> memory;            // nullopt: not reported
  std::optional<ContainerKey> container;  // nullopt: of none, or unknown
};
// One reading of a GPU.
struct GpuMemoryUse {
  std::optional<Bytes> used;  // of the whole GPU, without what the driver reserves; nullopt: unknown
  std::vector<AuditedProcess> processes;
};

// A container that holds the GPU or shares of it.
struct MemoryHolder {
  ContainerKey container;
  Bytes limit;  // on this GPU, of all its shares; 0: none
};

struct MemoryUse {
  ContainerKey container;
  Bytes limit, used;
  std::vector<unsigned> pids;  // of its processes on the GPU
  bool is_exceeded() const { return used > limit; }
  friend bool operator==(const MemoryUse&, const MemoryUse&) = default;
};

// The memory of a GPU that belongs to no listed process, without what the driver itself needs; 0 where the
// memory of the GPU or of a process is unknown.
Bytes unlisted_memory(const GpuMemoryUse& gpu);

// The use of each holder with a limit, in the order of `holders`: of its listed processes, and if nobody else
// holds or uses the GPU also unlisted_memory(). A process of unknown memory counts as nothing.
// Cost: O(processes + holders · log holders).
std::vector<MemoryUse> audit_gpu_memory(const GpuMemoryUse& gpu, std::span<const MemoryHolder> holders);

// How often in a row a container was above its limit on a GPU.
enum class Excess {
  kNone,
  kNew,        // this time, but not the last time: tell
  kConfirmed,  // for the second time: act. A process that ends is listed for a moment beside its successor
  kOngoing,    // longer
};
class ExcessTracker {
 public:
  Excess observe(const ContainerKey& container, const DeviceUuid& gpu, bool is_exceeded);
  // Forgets those that hold no GPU any more.
  void retain_containers(const std::set<ContainerKey>& held);

 private:
  std::map<std::pair<ContainerKey, DeviceUuid>, unsigned> exceeded_;  // readings in a row
};

}  // namespace gpulet::fraction
