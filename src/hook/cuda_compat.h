// CUDA forward compatibility: an image may bring a newer libcuda (package cuda-compat) that runs on the
// host's older driver. Whether it does is read from the library's note, or from the versions; if so its
// folder comes first in the container's ld.so.conf.d. Nothing of the image is loaded, mounted or executed:
// CVE-2024-0132 and CVE-2025-23359 were mounts of it.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "hook/container.h"
#include "hook/elf_note.h"

namespace gpulet::hook {

inline constexpr std::string_view kCompatFolder = "/usr/local/cuda/compat";
// Sorted before everything else there, and the same at each start.
inline constexpr std::string_view kCompatConfigFile = "/etc/ld.so.conf.d/00-compat-gpulet.conf";

struct HostVersions {
  std::string driver;  // "535.161.08"; empty when not told
  std::string cuda;    // "12.2", what the driver does; empty when not told
};

// Pure. `library` is the compat library's driver version, from its name ("550.54.14"). True when the image's
// library is newer than the host's driver and works with it.
bool compat_wanted(const std::optional<CompatNote>& note, std::string_view library, const HostVersions& host);

// Writes kCompatConfigFile, or removes one of an earlier start. `folder` is where the image has its compat
// libraries. An image without them, with several, or with a damaged one is left as it is: no error.
Status enable_cuda_compat(const Container& container, const HostVersions& host,
                          std::string_view folder = kCompatFolder);

}  // namespace gpulet::hook
