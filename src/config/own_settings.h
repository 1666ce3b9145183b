// Rows of the table of settings (config/schema.h) that NVIDIA's plugin has no setting for.
#pragma once

#include <vector>

#include "config/schema.h"

namespace gpulet::config {

std::vector<Setting> own_settings();
// `gpulet.mig` and `gpulet.mps`; `gpulet.partition` is a list of rules: config/partition_section.h.
std::vector<Setting> partition_settings();
// What chooses the file, and so has no place in it.
std::vector<Setting> node_config_settings();

}  // namespace gpulet::config
