// Streams and events: handles only, because all work is done when its call returns.
#pragma once

#include "sim/cuda/client.h"

namespace gpulet::sim::cuda {

struct Stream {
  CUcontext context = nullptr;
  unsigned int flags = 0;
  int priority = 0;
};
struct Event {
  CUcontext context = nullptr;
  unsigned int flags = 0;
  std::uint64_t recorded_ns = 0;   // CLOCK_MONOTONIC; 0: never
  std::uint64_t copy_time_ns = 0;  // ClientProcess::copy_time_ns when it was recorded
};

HandleTable<CUstream, Stream>& streams();
// One of this process, or a default stream: null, 1 and 2.
bool is_stream(CUstream stream);

}  // namespace gpulet::sim::cuda
