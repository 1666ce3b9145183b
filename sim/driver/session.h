// What one client process knows: whether it initialised NVML, against which driver generation, and where the
// machine is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/driver/abi.h"
#include "sim/state/state.h"

namespace gpulet::sim {

struct Session {
  std::mutex mutex;                        // of nvmlInit and nvmlShutdown; no other call takes it
  std::atomic<StateFile*> state{nullptr};  // the newest mapping
  // All of them. None is ever unmapped, as a call on another thread may still be inside, sleeping.
  std::vector<std::unique_ptr<StateFile>> mappings;
  std::atomic<std::uint32_t> users{0};       // nvmlInit minus nvmlShutdown
  std::atomic<std::uint32_t> generation{0};  // the driver's when it was initialised
  // GPUs, a bit each by index, that this process has no device node for: a container sees only its own.
  std::atomic<std::uint64_t> hidden{0};
  std::uint64_t device = 0;  // the mapped file's, to see that it was replaced
  std::uint64_t inode = 0;
};

// Lives until the process ends, whatever the order of static destructors.
Session& session();

inline bool is_hidden(std::uint32_t gpu) { return (session().hidden.load() >> gpu & 1) != 0; }
// The GPU that this process counts as its `n`th; gpu_count when it has no such.
std::uint32_t nth_visible(const Machine& machine, std::uint32_t n);

// Whether a call may go on: NVML_ERROR_UNINITIALIZED, NVML_ERROR_DRIVER_NOT_LOADED or NVML_SUCCESS.
nvmlReturn_t driver_ready(const Machine& machine);

// Sleeps while the driver hangs as a whole, then through its delay. Holds no lock meanwhile. Returns when the
// session's machine may be looked at, or NVML_ERROR_UNINITIALIZED when there is none.
nvmlReturn_t pass_driver_faults();

// For calls about no GPU: both of the above.
nvmlReturn_t enter_driver();

}  // namespace gpulet::sim
