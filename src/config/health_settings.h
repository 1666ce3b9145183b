// `gpulet.health`: rows of the table of settings (config/schema.h) made of health::settings(), of which each
// is `gpulet.health.pollInterval` in the file, --health-poll-interval and GPULET_HEALTH_POLL_INTERVAL; and,
// in the file alone, `classes.CLASS.effect` and `classes.CLASS.hold` of every class of fault.
#pragma once

#include <vector>

#include "config/schema.h"

namespace gpulet::config {

std::vector<Setting> health_settings();

}  // namespace gpulet::config
