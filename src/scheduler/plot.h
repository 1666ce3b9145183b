// Allocation against demand as a picture: SVG, which every browser shows and no library is needed for.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scheduler/simulate.h"

namespace gpulet::scheduler {

// Two panels: the whole run, and its end, where policies differ, enlarged. A line for each policy's mean, a
// band from the least to the greatest of its seeds, and a legend with the final figures, the best first.
// `title` is any text. Cost: a few KiB a policy. Precondition: at least one summary.
std::string allocation_plot(std::string_view title, const std::vector<Summary>& summaries);

}  // namespace gpulet::scheduler
