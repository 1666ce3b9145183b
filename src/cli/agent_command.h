// `gpulet agent`, and `nvidia-device-plugin`: loads the settings, then runs the node until it is told to end.
#pragma once

#include "config/load.h"

namespace gpulet::cli {

// `sources` has flags, environment and mode; the config file is found and read from them, and read again on
// each reload. Returns the exit code: 0 after SIGTERM, SIGINT or SIGQUIT; 1 with one line on standard error
// when the settings are wrong or the driver is not there and failOnInitError says to end.
int run_agent(config::Sources sources);

}  // namespace gpulet::cli
