// How busy each process kept a GPU between two samples, from what the driver keeps of its own, shorter
// periods. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "nvml/usage.h"

namespace gpulet::metrics {

// Percent of the time since `since_us` on the driver's clock, by pid; 0: now. `samples`: those after it, by
// pid and time, as Usage::process_utilization gives them. The driver has a sample of a process for each of
// its periods in which the process did anything: those without one are seen by the length of a period, as far
// as it can be seen.
std::map<unsigned, double> mean_times(std::span<const nvml::ProcessUtilization> samples,
                                      std::uint64_t since_us);

}  // namespace gpulet::metrics
