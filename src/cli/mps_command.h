// `mps-control-daemon`: the MPS control daemons of a node and nothing else, as NVIDIA's program of that name.
#pragma once

#include <string>

#include "config/load.h"

namespace gpulet::cli {

struct MpsOptions {
  // Flags (--config-file, --mig-strategy…), environment and mode; the config file is found and read from
  // them.
  config::Sources sources;
  // Where the MPS root is seen from here: NVIDIA's chart mounts it there, whatever it is on the host.
  std::string root = "/mps";
};

// Runs until SIGTERM, SIGINT or SIGQUIT, then stops the daemons; a second signal does not wait for them, and
// leaves them running. SIGHUP and a changed config file load the settings anew: daemons that are the same
// stay. Without a driver it goes on trying. Leaves by _exit, as a thread may still sit in a driver call.
// Exit code: 0; 1 with one line on standard error for settings that are wrong at the start.
int mps_control_daemon(const MpsOptions& options);

// `mps-control-daemon mount-shm`: the tmpfs for the clients' /dev/shm. Exit code: 0; 1 with one line on
// standard error.
int mps_mount_shm(const std::string& root);

}  // namespace gpulet::cli
