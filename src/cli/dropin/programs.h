// The programs of NVIDIA's that gpulet replaces under their own names, flags and environment, and the agent
// that nvidia-device-plugin shares with `gpulet agent`. config-manager itself is config_manager.h.
#pragma once

#include <string>
#include <vector>

#include "base/loop.h"
#include "config/load.h"

namespace gpulet::cli {

// Of the driver, by a program that waits for it.
inline constexpr BackoffLimits kDriverRetry{std::chrono::milliseconds(500), std::chrono::seconds(30)};

// Each parses its command line and runs until a signal ends it. Return: the exit code.
int device_plugin_main(int argc, char** argv);
int feature_discovery_main(int argc, char** argv);
int mps_control_main(int argc, char** argv);
int config_manager_main(int argc, char** argv);

// Runs the agent. `sources` has flags, environment and mode; the config file is found and read from them,
// again on each reload. `notes` are logged at the start, a line each. Exit code: 0 after SIGTERM, SIGINT or
// SIGQUIT; 1 after one line on standard error if the settings are invalid, or if there is no driver and
// failOnInitError is true.
int run_agent(config::Sources sources, const std::vector<std::string>& notes = {});

struct MpsOptions {
  // Flags (--config-file, --mig-strategy…), environment and mode; the config file is found and read from
  // them.
  config::Sources sources;
  // How long daemons may be wanted without one that serves.
  Duration serve_limit = std::chrono::seconds(60);
  // Where this process sees the MPS root. NVIDIA's chart mounts it at /mps, wherever it is on the host.
  std::string root = "/mps";
};

// mps-control-daemon: runs the MPS control daemons of the node until SIGTERM, SIGINT or SIGQUIT, then stops
// them; a second signal leaves them running and exits at once. SIGHUP and a changed config file reload the
// settings; daemons with unchanged settings keep running. Without a driver it retries. Exit code: 0 after a
// signal; 1 after one line on standard error if the settings are invalid at the start, or if none of the
// daemons that the settings want serves for serve_limit: NVIDIA's chart has no probe for this Pod, so only an
// exit shows the kubelet that it does not work. Returns only at invalid settings.
int run_mps_control_daemon(const MpsOptions& options);

// mps-control-daemon mount-shm: mounts the tmpfs for the clients' /dev/shm. Exit code: 0; 1 after one line on
// standard error.
int mount_mps_shm(const std::string& root);

}  // namespace gpulet::cli
