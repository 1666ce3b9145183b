// Limits of GPU memory by cgroup, which the driver has from branch 615 on: which limit an allocation counts
// against, and what NVML reads back.
//
//   misc   The table is the driver's own. Only the nearest limited ancestor counts, a limit below the current
//          use is refused, memory from before the first limit is not counted, and an entry outlives its
//          cgroup: it applies to a later one of the same name.
//   dmem   The kernel's controller: all ancestors count, memory counts from the start, and the kernel removes
//          an entry with its cgroup.
//
// A cgroup is known by its path below the mount point of its file system, and on a real cgroup v2 also by its
// inode, which is the same in all mount and cgroup namespaces. Any other directory stands for a cgroup too.
// Source: open-gpu-kernel-modules 615.71.09 (memacct; read, not run); nvml.h 13.5,
// nvmlDeviceSetMemoryLimits_v1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::sim {

struct Machine;

inline constexpr std::size_t kMaxMemoryLimits = 256;  // of all GPUs
inline constexpr std::size_t kMaxMemoryCharges = 512;
inline constexpr std::size_t kMaxCgroupName = 512;
inline constexpr std::uint64_t kUnlimitedMemory = ~std::uint64_t{0};  // NVML_DEVICE_MEMORY_LIMIT_MAX

// The driver's registry key RmMemacctMode, in the order of the machine file's names. kAuto: misc, which most
// distributions' kernels have.
enum class MemoryBackend : std::uint8_t { kAuto, kOff, kMisc, kDmem };

struct MemoryLimit {
  char cgroup[kMaxCgroupName];  // empty: slot unused
  std::uint64_t inode;          // 0: not on a real cgroup v2
  std::uint64_t soft;           // bytes
  std::uint64_t hard;
  std::uint32_t gpu;  // index
  std::uint32_t padding;
};

// What a process has allocated and the driver has charged to a cgroup.
struct MemoryCharge {
  char cgroup[kMaxCgroupName];
  std::uint64_t bytes;
  std::uint32_t gpu;          // index
  std::uint32_t pid;          // 0: slot unused
  std::uint32_t cuda_client;  // as Process::cuda_client
  std::uint32_t padding;
};

struct MemoryAccounting {
  MemoryBackend mode;
  std::uint8_t padding[7];
  std::uint64_t misreported_hard;  // what NVML reads back as each hard limit when not 0
  MemoryLimit limits[kMaxMemoryLimits];
  MemoryCharge charges[kMaxMemoryCharges];
};

struct Cgroup {
  std::string name;  // "/kubepods.slice/…"
  std::uint64_t inode = 0;
};
struct CgroupPath {
  std::vector<Cgroup> chain;  // the cgroup, then its ancestors; empty: of no cgroup
  bool exists = false;
  bool is_version_1 = false;
};
// The cgroup of a directory: "/sys/fs/cgroup/kubepods.slice/…". Blocks for a few file operations.
CgroupPath look_up_cgroup(const std::string& directory);
// The cgroup v2 of a process ("self" or a pid), as this process sees it. Blocks likewise.
CgroupPath look_up_cgroup_of_process(const std::string& pid);

// Never kAuto. kOff before branch 615.
MemoryBackend memory_backend(const Machine& machine);

enum class LimitOutcome { kOk, kNotSupported, kNotFound, kInvalidArgument, kTableFull };
struct MemoryLimitReading {
  std::uint64_t soft = 0, hard = kUnlimitedMemory, used = 0;  // bytes
};
// Sets both limits; soft 0 with kUnlimitedMemory removes them: kNotFound on misc if there are none.
// kInvalidArgument if soft exceeds hard, or a limit the GPU's memory, or on misc the current use the hard
// one.
LimitOutcome set_memory_limit(Machine& machine, std::uint32_t gpu, const Cgroup& cgroup, std::uint64_t soft,
                              std::uint64_t hard);
// On misc a cgroup without an entry is kNotFound, and kNotSupported as long as the GPU has no entry at all.
LimitOutcome read_memory_limit(const Machine& machine, std::uint32_t gpu, const Cgroup& cgroup,
                               MemoryLimitReading& reading);
// The limit of exactly this cgroup, which is what its processes see as the GPU's memory.
std::optional<MemoryLimitReading> find_memory_limit(const Machine& machine, std::uint32_t gpu,
                                                    const Cgroup& cgroup);
bool has_memory_limits(const Machine& machine);
// The kernel has removed this cgroup: of dmem, its limits end.
void remove_cgroup_limits(Machine& machine, const std::string& name);

// Charges an allocation of a process in chain's first cgroup. kInvalidArgument with the room that is left if
// it exceeds a limit; kFailedPrecondition if the table is full.
Status charge_memory(Machine& machine, std::uint32_t gpu, std::uint32_t pid, const std::vector<Cgroup>& chain,
                     std::uint64_t bytes);
void release_memory(Machine& machine, std::uint32_t gpu, std::uint32_t pid);

// The same for CUDA clients, whose allocations come and go: one charge for each client, GPU and cgroup.
struct ClientOfGpu {
  std::uint32_t gpu = 0;  // index
  std::uint32_t cuda_client = 0;
};
// Returns the charged cgroup; empty: none. Errors: as charge_memory.
Result<std::string> charge_client(Machine& machine, ClientOfGpu client, const std::vector<Cgroup>& chain,
                                  std::uint64_t bytes);
void release_client(Machine& machine, ClientOfGpu client, const std::string& cgroup, std::uint64_t bytes);
void release_all_of_client(Machine& machine, std::uint32_t cuda_client);
// Of a driver that is loaded again, or a GPU that is replaced: its limits and charges.
void clear_memory_limits(Machine& machine, std::optional<std::uint32_t> gpu = std::nullopt);

}  // namespace gpulet::sim
