// Runs the checks on one GPU by the CUDA driver API: for a process of its own, because the driver may crash,
// hang, and keeps a context on the GPU until the process ends. Blocks.
//
//   memory     cuMemsetD32 with two patterns, each read back and compared
//   compute    the kernel of kernel.h, against the host's results
//   host-copy  copies of 64 MiB from and to pinned memory of the host
//   peer-copy  the same between the GPU and each peer that it can access directly
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "preflight/preflight_report.h"

namespace gpulet::preflight {

struct CheckOptions {
  std::string library;               // path of libcuda.so.1
  std::string gpu;                   // UUID
  std::vector<std::string> peers{};  // UUIDs, for kPeerCopy
  std::vector<Check> checks{};
  std::uint64_t memory_mib = 4096;  // to check, as far as it is free
  std::chrono::milliseconds limit =
      std::chrono::seconds(30);  // checks that have not begun by then do not run
};

// The GPU's UUID, then those of the peers, for CUDA_VISIBLE_DEVICES: must be in the environment before
// run_checks().
std::string visible_devices(const CheckOptions& options);

// A result for each check, and for each peer of kPeerCopy.
Report run_checks(const CheckOptions& options);

}  // namespace gpulet::preflight
