// The panel beside the tables of `gpulet top`: one GPU in detail. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "cli/top/view.h"

namespace gpulet::cli {

// Width of the panel in a view that shows one, without the line that separates it.
std::size_t panel_width(const TopView& view);

// Utilisation and memory of a GPU over time, its rates and errors, and its processes with their Pods. The GPU
// is that of the selected row, of a Pod the first one, else that of the first row. At most `rows` lines, none
// wider than `width` (from 60 columns on).
std::vector<TopLine> panel_lines(const TopModel& model, const TopView& view, std::size_t width,
                                 std::size_t rows);

}  // namespace gpulet::cli
