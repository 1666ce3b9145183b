// `gpulet.faults`: rows of the table of settings (config/schema.h). What has one value has a flag and a
// variable too; `moving.graces.CLASS`, one for each class of fault, is in the file alone.
#pragma once

#include <vector>

#include "config/schema.h"

namespace gpulet::config {

std::vector<Setting> faults_settings();

}  // namespace gpulet::config
