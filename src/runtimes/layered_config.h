// Engines that read settings files in order, the last one wins: CRI-O and Podman. CDI is always on there;
// gpulet's drop-in sets only the spec directories.
#pragma once

#include <vector>

#include "runtimes/engine.h"
#include "runtimes/toml.h"

namespace gpulet::runtimes {

struct LayeredConfig {
  Engine engine;
  toml::Path table;                       // the table of cdi_spec_dirs: {"crio", "runtime"}
  std::vector<std::string> base_files;    // existing files read before the drop-ins
  std::string pattern;                    // of the drop-ins
  bool is_setting_read = true;            // whether this version reads the setting
  std::vector<std::string> default_dirs;  // the built-in default
};

// Errors: kUnsupported for a version without CDI; kInvalidArgument about FILE:LINE for a file that the engine
// would reject; kFailedPrecondition if a foreign file is at the drop-in's path or a later file omits a
// directory.
Result<Plan> plan_layered_setup(const LayeredConfig& setting, const Target& target, const Reader& reader);
Result<Plan> plan_layered_removal(const Target& target, const Reader& reader);
Result<std::vector<Finding>> layered_findings(const LayeredConfig& setting, const Target& target,
                                              const Reader& reader);

}  // namespace gpulet::runtimes

namespace gpulet::runtimes::crio {

// CRI-O reads /etc/crio/crio.conf, then every file of /etc/crio/crio.conf.d by name (crio.conf.d(5)).
LayeredConfig crio_config(const Target& target);

}  // namespace gpulet::runtimes::crio

namespace gpulet::runtimes::podman {

// Podman reads /usr/share/containers/containers.conf, /etc/containers/containers.conf, then
// /etc/containers/containers.conf.d/*.conf by name (containers.conf(5)).
//
// Before 5.5 the spec directories are built in. 5.5 reads the setting and defaults to /etc/cdi, so it misses
// generated specs (podman #26569). 5.6 defaults to both.
LayeredConfig podman_config(const Target& target);

}  // namespace gpulet::runtimes::podman
