// `gpulet.metrics`: rows of the table of settings (config/schema.h). Where dcgm-exporter has the same
// setting, its variable is taken too. Source: dcgm-exporter, pkg/cmd/app.go.
#pragma once

#include <vector>

#include "config/schema.h"

namespace gpulet::config {

std::vector<Setting> metrics_settings();

}  // namespace gpulet::config
