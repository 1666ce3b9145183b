// Processes that use CUDA: clients of sim/cuda. Each has an entry, and for as long as it lives a lock on one
// byte of the state file with the number of that entry. Whoever next locks the machine finds the lock gone,
// and removes the process with its memory: as on hardware, nothing of a killed process stays.
//
// The lock is a record lock, because the kernel translates its owner into the PID namespace of whoever asks:
// the agent sees a container's process by its own pid. A record lock ends with any close of the file in the
// same table of descriptors; so a thread with a table of its own holds it.
// Source: fcntl_locking(2); close_range(2), CLOSE_RANGE_UNSHARE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace gpulet::sim {

struct Machine;
class StateFile;

inline constexpr std::size_t kMaxCudaClients = 256;
// Process::pid of a process that the PID namespace of whoever holds the machine's lock does not contain.
inline constexpr std::uint32_t kHiddenPid = 0xffffffff;

struct CudaClients {
  std::uint32_t count;                         // of entries in use
  std::uint8_t entries[kMaxCudaClients];       // 1: in use
  std::uint32_t generations[kMaxCudaClients];  // the driver's when the client initialised CUDA
};

// Makes this process a client until it ends. Returns 1 + its entry: Process::cuda_client. Starts a thread,
// which sleeps. Errors: those of errno_error; kFailedPrecondition if all entries are in use.
// Precondition: the machine is not locked by this thread.
Result<std::uint32_t> add_cuda_client(const StateFile& state);

// Removes the clients that have ended, and translates the pids of the others. Precondition: `machine` is the
// locked machine of the state file `path`. Blocks for a few file operations if there are clients.
void update_cuda_clients(Machine& machine, const std::string& path);

// Of a driver that is loaded again: its clients have nothing any more.
void remove_cuda_processes(Machine& machine);

}  // namespace gpulet::sim
