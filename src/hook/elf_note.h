// The note that NVIDIA puts into a libcuda for forward compatibility, read from an image's file: every byte
// of it is hostile. Section headers and one note are read by offset, each within a limit; the file is never
// mapped, loaded or read whole.
//
// Source: `readelf -p .note.cuda.fwd_compatibility` of cuda-compat-12-x and 13-x; its text is JSON:
//   {"Format": 1, "CUDA Version": "13.1", "Driver": [535, 550, …], "Device": […]}
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

namespace gpulet::hook {

struct CompatNote {
  std::string cuda_version;  // "13.1"; empty when it says none
  std::vector<std::uint64_t>
      drivers;  // branches of the host's driver that it works with; empty when it says none
};

// Fills the whole span from `offset` of the file, or says false.
using ReadAt = std::function<bool(std::uint64_t offset, std::span<char> out)>;

// nullopt when the library has no such note: a driver's own libcuda. kInvalidArgument when it is no 64-bit
// little-endian ELF file, or its headers, the note or the note's text cannot be.
Result<std::optional<CompatNote>> read_compat_note(const ReadAt& read_at);

Result<CompatNote> parse_compat_text(std::string_view json);

}  // namespace gpulet::hook
