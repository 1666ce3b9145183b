// A timer for a time of the wall clock, which somebody may set meanwhile.
#pragma once

#include <functional>

#include "base/loop.h"

namespace gpulet::agent {

// Runs `task` once `when` has come, or earlier where the clock was set: ask the clock again. May run at once.
Subscription run_at_wall_time(Loop& loop, WallTime when, std::function<void()> task);

}  // namespace gpulet::agent
