// `gpulet config`: what is wrong with a configuration file, and what is in force with where it came from.
#pragma once

#include <string>

#include "config/load.h"

namespace gpulet::cli {

struct ConfigCheckOptions {
  std::string file;
  bool drop_in = false;  // as leniently as NVIDIA's plugin reads it
};
// Prints every error on a line of standard error, "file:line:column: field: what"; else "FILE: ok" on
// standard output. Warnings go to standard error either way. Returns 0 for a file that can be used, else 1.
int config_check(const ConfigCheckOptions& options);

struct ConfigPrintOptions {
  config::Sources sources;      // flags and environment; the file that they name is read here
  std::string output = "yaml";  // or "json"
};
// Prints the effective configuration. Returns 0, 1 when it is not valid (said as config_check says it), 2 for
// an output that there is not.
int config_print(const ConfigPrintOptions& options);

}  // namespace gpulet::cli
