// `gpulet config`: checks a config file, and prints the effective settings with their sources.
#pragma once

#include <string>

#include "config/load.h"

namespace gpulet::cli {

struct ConfigCheckOptions {
  std::string file;
  bool drop_in = false;  // read it as NVIDIA's plugin does
};
// Prints each error as a line of standard error, "file:line:column: key: what is wrong", or "FILE: ok" on
// standard output. Warnings go to standard error. Exit code: 0 if the file can be used, else 1.
int run_config_check(const ConfigCheckOptions& options);

struct ConfigPrintOptions {
  config::Sources sources;      // flags and environment, which name the file
  std::string output = "yaml";  // or "json"
};
// Exit code: 0; 1 after the errors if the config is invalid; 2 for an unknown output.
int run_config_print(const ConfigPrintOptions& options);

}  // namespace gpulet::cli
