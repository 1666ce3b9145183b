// One node's agent, assembled: the loop, the driver, the kubelet's sockets, the listener child, the config
// file's watch and the signals, with the Agent between them.
#pragma once

#include <string>

#include "base/result.h"
#include "config/load.h"

namespace gpulet::agent {

void configure_log(const config::Own& settings);

// Runs until SIGTERM, SIGINT or SIGQUIT, and returns within 50 ms of it. SIGHUP, and a change of the config
// file, load `sources` anew. The caller must leave by _exit: a thread may still sit in a driver call that
// never returns. Errors: why the agent cannot go on: kUnavailable or kUnsupported where there is no driver
// and failOnInitError is true.
Status run_node(config::Sources sources, config::Loaded loaded, const std::string& version);

}  // namespace gpulet::agent
