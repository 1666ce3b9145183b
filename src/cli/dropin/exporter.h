// `dcgm-exporter`: samples the GPUs and serves /metrics and /health, with the flags and variables of NVIDIA's
// program of that name. It offers nothing to the kubelet, writes nothing to the cluster or the host, needs no
// token, and waits for the driver.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/load.h"

namespace gpulet::cli {

using Environment = std::map<std::string, std::string, std::less<>>;

struct ExporterSettings {
  config::Sources sources;         // for run_agent()
  std::vector<std::string> notes;  // options that are given and have no effect, one line each
};

// `flags`: dcgm-exporter's, by their long names; a flag overrides its variable (config/exporter_options.h).
// Flags of gpulet do not exist here; its GPULET_ variables apply, except those of what the exporter does not
// do: state, socket, kernel log. Errors: kInvalidArgument about a flag or variable with the expected value.
Result<ExporterSettings> exporter_settings(const std::map<std::string, std::string>& flags,
                                           Environment environment);

// Parses the command line and runs until a signal ends it. Returns the exit code: 0; 1 after one line on
// standard error for invalid settings; 2 for an unknown flag.
int dcgm_exporter_main(int argc, char** argv);

// Whether a container of the operator's image that is started without a program's name is the exporter's: the
// GPU operator sets no command there, but dcgm-exporter's variables, and mounts no directory of device
// plugins at `device_plugins`. The image has no such directory.
bool is_exporter_container(const Environment& environment,
                           const std::string& device_plugins = "/var/lib/kubelet/device-plugins");

}  // namespace gpulet::cli
