// The driver's user-space files in a root: libraries with their SONAMEs and links, firmware, nvidia-smi,
// nvidia-cuda-mps-control.
#pragma once

#include <string>

#include "sim/root/tree.h"

namespace gpulet::sim {

// Below the root, as Debian lays it out.
#if defined(__aarch64__)
inline constexpr std::string_view kLibraryFolder = "usr/lib/aarch64-linux-gnu";
#else
inline constexpr std::string_view kLibraryFolder = "usr/lib/x86_64-linux-gnu";
#endif

struct DriverFiles {
  std::string version;     // "570.124.06"
  std::string nvml;        // path of the simulated libnvidia-ml.so.1, copied in
  std::string nvidia_smi;  // path of the stand-in; empty: none
  std::string mps_control{};  // of nvidia-cuda-mps-control's
};

Status add_driver_files(Tree& tree, const DriverFiles& files);

// Puts those of another version in place of `old_version`'s. Who has the old ones mapped keeps them.
Status change_driver_version(Tree& tree, const std::string& old_version, const std::string& new_version);

}  // namespace gpulet::sim
