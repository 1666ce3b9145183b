// Engines whose settings are files read one after the other, where a later one wins: CRI-O and Podman. CDI
// has no switch there; only the folders of specs are a setting, and our drop-in sets that and nothing else.
#pragma once

#include <vector>

#include "runtimes/engine.h"
#include "runtimes/toml.h"

namespace gpulet::runtimes {

struct LayeredSetting {
  Engine engine;
  toml::Path table;                       // where cdi_spec_dirs is: {"crio", "runtime"}
  std::vector<std::string> first;         // files read before the folder of drop-ins, those that exist
  std::string pattern;                    // the drop-ins
  bool heeded = true;                     // whether this version reads the setting at all
  std::vector<std::string> default_dirs;  // where it looks when nothing is said
};

// Errors: kUnsupported for a version without CDI; kInvalidArgument about FILE:LINE for a file that the engine
// would refuse; kFailedPrecondition when our place holds another's file or a later file leaves a folder out.
Result<Plan> configure_layered(const LayeredSetting& setting, const Target& target, const Reader& reader);
Result<Plan> remove_layered(const Target& target, const Reader& reader);
Result<std::vector<Finding>> judge_layered(const LayeredSetting& setting, const Target& target,
                                           const Reader& reader);

}  // namespace gpulet::runtimes
