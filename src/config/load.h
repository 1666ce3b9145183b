// From flags, environment, file and defaults to one Config: precedence in that order, as NVIDIA's plugin has
// it, with a record of where each value came from. Pure: what is given comes in as values.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "config/schema.h"

namespace gpulet::config {

struct Sources {
  // As given on the command line, by flag or alias without dashes: every value in its order. A boolean given
  // without a value has "" or "true".
  std::map<std::string, std::vector<std::string>, std::less<>> flags;
  std::map<std::string, std::string, std::less<>> environment;
  std::string file_path;  // as the user wrote it; empty for no file
  std::string file_content;
  // Called by NVIDIA's name: unknown keys are warnings, as are the other things that its plugin does not
  // mind.
  bool drop_in = false;
  // Called as gpu-feature-discovery: its variables GFD_… count, labels go where its flags say, and what only
  // the plugin needs is not asked for.
  bool discovery = false;
};

// A setting's effective value.
struct Given {
  Value value;
  std::string origin;  // "flag --mig-strategy", "env MIG_STRATEGY", "file x.yaml:3:5", "default"
};

struct Loaded {
  Config config;
  std::vector<std::optional<Given>> values;  // parallel to settings(); nullopt: unset, and without a default
  std::string resources_origin, sharing_origin, partition_origin;
  // Names that the file gives, without the default that config.gpu_resources ends with.
  std::vector<ResourcePattern> given_gpu_resources;
  std::vector<std::string> warnings;  // one line each
};

// All that is wrong, in the order of the file, then environment and flags; `loaded` is to be used only when
// that is nothing. At most 100 errors and 100 warnings.
struct Checked {
  Loaded loaded;
  std::vector<Error> errors;
};
Checked check(const Sources& sources);

// Errors: kInvalidArgument, the first of what check() finds, with how many more there are.
Result<Loaded> load(const Sources& sources);

// Sets file_path from --config-file or CONFIG_FILE and reads the file; leaves both empty where neither is
// given. Errors: as read_file, "error opening config file"; kInvalidArgument for one larger than
// yaml::kMaxTextBytes.
Status read_config_file(Sources& sources);

// This process's environment, for Sources.
std::map<std::string, std::string, std::less<>> process_environment();

}  // namespace gpulet::config
