// Who may call the driver and wait for it: any thread but a loop's.
#pragma once

#include "base/thread.h"

namespace gpulet::nvml {

inline constexpr std::string_view kForTheDriver = "the driver";

// The calling thread is a loop's: what would call the driver when it is destroyed there goes on a thread of
// its own. Worker says so of the thread that it is made on.
void never_block_here();
bool may_block_here();

// The deleter of whatever calls the driver when it goes. Where no thread can be had for it, it is left as it
// is.
template <class T>
void dispose(const T* held) {
  if (may_block_here()) {
    delete held;
    return;
  }
  [[maybe_unused]] const auto started = start_detached(kForTheDriver, [held] { delete held; });
}

}  // namespace gpulet::nvml
