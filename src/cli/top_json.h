// What `gpulet top` shows, for programs. Pure.
#pragma once

#include <string>

#include "cli/top_view.h"

namespace gpulet::cli {

// One line of JSON, rows by the view's queries; numbers in bytes, percent, °C, W, MHz, what is not known is
// left out:
//   at (milliseconds since 1970; left out before the first sample), node, driver, cuda, problems [text]
//   gpus [{gpu, uuid, name, state, reason, memory_total, util, sm, memory_util, memory, temperature, power,
//          power_limit, sm_clock, memory_clock, pods [text], slices [the same of each MIG device]}]
//   pods [{pod, containers, gpus, shares, busy, memory}]
//   processes [{pid, name, gpu, busy, memory, pod}]
std::string top_json(const TopModel& model, const TopView& view);

}  // namespace gpulet::cli
