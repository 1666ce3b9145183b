// Merges flags, environment, file and defaults, in NVIDIA's order of precedence, into one Config, and records
// the origin of each value. Pure: all inputs are values.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "config/schema.h"

namespace gpulet::config {

// flags.mpsRoot where rules share GPUs by MPS and nothing else sets it: the chart's `mps.root`.
inline constexpr const char* kDefaultMpsRoot = "/run/nvidia/mps";

struct Sources {
  // All values of each flag or alias on the command line, without dashes, in order. A boolean without a value
  // has "" or "true".
  std::map<std::string, std::vector<std::string>, std::less<>> flags;
  std::map<std::string, std::string, std::less<>> environment;
  std::string file_path;  // as the user wrote it; empty: no file
  std::string file_content;
  // Running under NVIDIA's program name: unknown keys, and whatever else its plugin tolerates, are warnings.
  bool drop_in = false;
  // Running as gpu-feature-discovery: GFD_… variables count, its flags choose the label outputs, and the
  // plugin's requirements do not apply.
  bool discovery = false;
  // Running as dcgm-exporter: only samples and serves metrics.
  bool exporter = false;
};

// A setting's effective value.
struct EffectiveValue {
  Value value;
  std::string origin;  // "flag --mig-strategy", "env MIG_STRATEGY", "file x.yaml:3:5", "default"
};

struct LoadedConfig {
  Config config;
  std::vector<std::optional<EffectiveValue>>
      values;  // parallel to settings(); nullopt: unset and without a default
  std::string resources_origin, sharing_origin, partition_origin;
  // The file's names, without the default at the end of config.gpu_resources.
  std::vector<ResourcePattern> given_gpu_resources;
  std::vector<std::string> warnings;  // one line each
};

// `errors` are in the order of the file, then environment and flags. `loaded` is valid only if there are
// none. At most 100 errors and 100 warnings.
struct CheckResult {
  LoadedConfig loaded;
  std::vector<Error> errors;
};
CheckResult check_config(const Sources& sources);

// Errors: kInvalidArgument with the first error of check_config() and the number of others.
Result<LoadedConfig> load(const Sources& sources);

// Sets file_path from --config-file or CONFIG_FILE and reads the file; leaves both empty if neither is set.
// Errors: read_file's, with "error opening config file"; kInvalidArgument if it is larger than
// yaml::kMaxTextBytes.
Status read_config_file(Sources& sources);

// This process's environment, for Sources.
std::map<std::string, std::string, std::less<>> process_environment();

// The effective configuration with the origin of each value, for `gpulet config print`: load_print.cpp.

// YAML in the `version: v1` form, each value followed by "# from <origin>". Loading it yields the same
// Config.
std::string print_yaml(const LoadedConfig& loaded);

// {"config": {the v1 form}, "origins": {"flags.migStrategy": "env MIG_STRATEGY", …}}, indented by two.
std::string print_json(const LoadedConfig& loaded);

}  // namespace gpulet::config
