// What a layout's name stands for on the GPUs of a node, for the agent and for people alike: mig-parted's
// file where there is one (layout_file.h), else what the hardware offers (derive.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "mig/layout_file.h"
#include "mig/state.h"

namespace gpulet::mig {

// Of each GPU, in the order of `gpus`; nullopt for one that stays as it is, as the name says nothing of it.
// `file` null: by the hardware. Errors: kNotFound, no such name, with the nearest.
Result<std::vector<std::optional<LayoutAt>>> named_layouts(const LayoutFile* file, std::string_view name,
                                                           std::span<const State> gpus);

// By the file at `path`, read anew; empty: by the hardware. Errors: those of the file too.
Result<std::vector<std::optional<LayoutAt>>> named_layouts(const std::string& path, std::string_view name,
                                                           std::span<const State> gpus);

}  // namespace gpulet::mig
