#include "cli/version_command.h"

#include <iostream>
#include <nlohmann/json.hpp>

namespace gpulet::cli {

std::string version() { return GPULET_VERSION; }

int print_version(const VersionOptions& options) {
  if (options.json) {
    std::cout << nlohmann::ordered_json{{"version", version()},
                                        {"compiler", __VERSION__},
                                        {"devicePlugin", "v1beta1"},
                                        {"podResources", "v1"},
                                        {"config", "v1"}}
                     .dump(2)
              << '\n';
    return 0;
  }
  std::cout << "gpulet " << version() << " (device plugin v1beta1, PodResources v1, config v1; compiler "
            << __VERSION__ << ")\n";
  return 0;
}

}  // namespace gpulet::cli
