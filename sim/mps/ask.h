// What others say to a simulated MPS control daemon: the control program's lines, a CUDA process that begins,
// and the faults that gpulet-sim puts it into. The daemon is found by its pipe directory.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/file.h"
#include "base/result.h"

namespace gpulet::sim::mps {

inline constexpr std::string_view kClientHello = "CLIENT ";

// Sends one command and returns the answer. Waits for as long as it takes: so does the real one.
// Errors: kUnavailable, "Cannot find MPS control daemon process".
Result<std::string> ask(const std::string& pipe_directory, const std::string& command);

// A CUDA process: the daemon's client for as long as `connection` is open.
struct Attached {
  FileDescriptor connection;
  std::string allowed;  // "threads 25.0 memory 0=4096M"
};
// `threads` and `memory` as CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT have them;
// empty for none. Errors: as ask; kFailedPrecondition when it is refused.
Result<Attached> attach(const std::string& pipe_directory, const std::string& threads,
                        const std::string& memory);

// The daemon's process, as this process's PID namespace numbers it. Errors: kUnavailable.
Result<pid_t> daemon_pid(const std::string& pipe_directory);

// It ends at once, as by a crash.
Status die(const std::string& pipe_directory);
// It takes connections and answers none, until heal.
Status hang(const std::string& pipe_directory);
// Each answer comes that much later; 0 ends it.
Status slow(const std::string& pipe_directory, unsigned milliseconds);
// Ends hang and slow.
Status heal(const std::string& pipe_directory);

}  // namespace gpulet::sim::mps
