// `gpulet agent`, `nvidia-device-plugin` and `gpu-feature-discovery`: loads the settings, then runs the node
// until it is told to end.
#pragma once

#include "agent/feature_discovery.h"
#include "config/load.h"

namespace gpulet::cli {

// `sources` has flags, environment and mode; the config file is found and read from them, and read again on
// each reload. Returns the exit code: 0 after SIGTERM, SIGINT or SIGQUIT; 1 with one line on standard error
// when the settings are wrong or the driver is not there and failOnInitError says to end.
int run_agent(config::Sources sources);

// `gpu-feature-discovery`: labels the node. Does not return: ends with 0 or 1 as run_agent() returns.
int run_discovery(agent::FeatureDiscoveryOptions options);

}  // namespace gpulet::cli
