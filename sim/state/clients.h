// Clients of the driver: processes with NVML initialised. Each holds the GPUs that it sees, so that a reset,
// a change of the MIG mode and an unload of the driver are refused meanwhile, as the kernel module refuses
// them.
//
// A client has an entry in Machine::clients and, for as long as it lives, a lock on one byte of the state
// file with the number of that entry. The kernel drops the lock when the process ends in any way, and it is
// visible across containers with their own process ids. An entry without a lock is free.
// Source: fcntl_locking(2), open file description locks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "sim/state/state.h"

namespace gpulet::sim {

inline constexpr std::uint64_t kAllGpus = ~std::uint64_t{0};

// The entry of this process. Its destruction ends the entry. A child of fork() keeps it, as it would keep the
// open device nodes.
class ClientEntry {
 public:
  // `gpus`: a bit for each GPU index that the process holds. Without a free entry the process is not counted.
  // Precondition: `machine` is the locked machine of `state`. Errors: those of errno_error;
  // kFailedPrecondition if all kMaxClients entries are in use.
  static Result<ClientEntry> add_client(const StateFile& state, Machine& machine, std::uint64_t gpus);

  // Of the open state file: holders_of() with it does not return this entry.
  int descriptor() const { return fd_.get(); }

 private:
  explicit ClientEntry(FileDescriptor fd) : fd_(std::move(fd)) {}
  FileDescriptor fd_;
};

// "1234 dcgm-exporter": the processes other than the owner of `descriptor` that hold GPU `gpu`, or any part
// of the driver without one: clients of the loaded driver, then processes with a load. The pid of a client is
// that of its own PID namespace. By entry; at most kMaxClients and kMaxProcesses of each GPU.
std::vector<std::string> holders_of(const Machine& machine, int descriptor, std::optional<std::uint32_t> gpu);

// kFailedPrecondition "in use by: 1234 dcgm-exporter, 77 trainer" if there is a holder. As holders_of().
Status check_unused(const Machine& machine, int descriptor, std::optional<std::uint32_t> gpu);
// The same for a process that is no client, or counts itself. Errors: those of errno_error too.
Status check_unused(const StateFile& state, const Machine& machine, std::optional<std::uint32_t> gpu);

}  // namespace gpulet::sim
