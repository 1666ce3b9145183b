// CUDA forward compatibility: an image can bring a newer libcuda (package cuda-compat) that runs on the
// host's older driver. The library's ELF note, or else the versions, decide whether it does; then its
// directory comes first in the container's ld.so.conf.d. Nothing of the image is loaded, mounted or executed:
// CVE-2024-0132 and CVE-2025-23359 were such mounts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hook/container.h"

namespace gpulet::hook {

// The ELF note that NVIDIA puts into a libcuda for forward compatibility. The image's file is untrusted:
// section headers and one note are read by offset within limits; the file is never mapped, loaded or read
// whole.
//
// Source: `readelf -p .note.cuda.fwd_compatibility` of cuda-compat-12-x and 13-x; its text is JSON:
//   {"Format": 1, "CUDA Version": "13.1", "Driver": [535, 550, …], "Device": […]}
struct CompatNote {
  std::string cuda_version;            // "13.1"; empty if absent
  std::vector<std::uint64_t> drivers;  // compatible branches of the host's driver; empty if absent
};

// Fills the whole span from `offset` of the file. Returns false if it cannot.
using ReadAt = std::function<bool(std::uint64_t offset, std::span<char> out)>;

// Returns nullopt for a library without the note: a driver's own libcuda. Errors: kInvalidArgument if it is
// not a 64-bit little-endian ELF file, or if its headers or the note are malformed.
Result<std::optional<CompatNote>> read_compat_note(const ReadAt& read_at);

Result<CompatNote> parse_compat_note(std::string_view json);

inline constexpr std::string_view kCompatDirectory = "/usr/local/cuda/compat";
// Sorts before all other files there. Constant, so that a restart reuses it.
inline constexpr std::string_view kCompatConfigFile = "/etc/ld.so.conf.d/00-compat-gpulet.conf";

struct HostVersions {
  std::string driver;  // "535.161.08"; empty if unknown
  std::string cuda;    // "12.2", the driver's CUDA version; empty if unknown
};

// Returns whether the image's library is newer than the host's driver and works with it. `library` is the
// compat library's driver version from its file name ("550.54.14"). Pure.
bool is_compat_usable(const std::optional<CompatNote>& note, std::string_view library,
                      const HostVersions& host);

// Writes kCompatConfigFile, or removes a stale one. `directory` holds the image's compat libraries. An image
// without a compat library, with several, or with a damaged one is left unchanged, without an error.
Status enable_cuda_compat(const Container& container, const HostVersions& host,
                          std::string_view directory = kCompatDirectory);

}  // namespace gpulet::hook
