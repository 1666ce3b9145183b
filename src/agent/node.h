// One node's agent, assembled: the loop, the driver, the kubelet's sockets, the listener child, the config file's
// watch and the signals, with the Agent between them.
#pragma once

#include <string>

#include "config/load.h"

namespace gpulet::agent {

void configure_log(const config::Own& settings);

// Runs until SIGTERM, SIGINT or SIGQUIT (exit code 0, within 50 ms), or until the Agent says that it must end (1).
// SIGHUP, and a change of the config file, load `sources` anew.
int run_node(config::Sources sources, config::Loaded loaded, const std::string& version);

}  // namespace gpulet::agent
