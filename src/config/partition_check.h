// Checks the rules of `gpulet.partition` against each other and against `sharing`.
#pragma once

#include <string>

#include "config/config.h"
#include "config/field_reader.h"

namespace gpulet::config {

// Adds to `problems`: a GPU in two lists, a resource that is shared in two ways. An error stands at the later
// rule's place and names the earlier one's. Warns of rules that can never select a GPU. `sharing_origin`:
// LoadedConfig::sharing_origin. Precondition: config.gpu_resources ends with its default.
void check_partition(const Config& config, const std::string& sharing_origin, Problems& problems);

}  // namespace gpulet::config
