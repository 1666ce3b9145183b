// Faults of an agent's system calls, in memory that the storm shares with the library that it preloads into
// the agent (fake/faulty_calls.cpp). A program that is restarted finds the faults that are in force.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpulet::storm {

struct FaultBlock {
  // errno of calls that use a file below the volume; 0: none. With EROFS only of those that change one.
  std::atomic<std::int32_t> error{0};
  std::atomic<std::int64_t> clock_shift_s{0};  // of CLOCK_REALTIME
  // Changes of files below the volume that succeed until the process ends by SIGKILL before the next one;
  // negative: it does not.
  std::atomic<std::int64_t> changes_left{-1};
};
static_assert(std::atomic<std::int32_t>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);

// Environment variables of the library: the file with the FaultBlock, and the volume's absolute path.
inline constexpr const char* kFaultFileVariable = "GPULET_STORM_FAULTS";
inline constexpr const char* kVolumeVariable = "GPULET_STORM_VOLUME";

}  // namespace gpulet::storm
