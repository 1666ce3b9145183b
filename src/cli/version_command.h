// `gpulet version`: what this build is.
#pragma once

#include <string>

namespace gpulet::cli {

// "0.1.0": the project's version, as CMake knows it.
std::string version();

struct VersionOptions {
  bool json = false;
};
// Prints version, compiler and the protocols spoken. Returns 0.
int print_version(const VersionOptions& options);

}  // namespace gpulet::cli
