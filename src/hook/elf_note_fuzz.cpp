// Fuzzes the ELF note reader with arbitrary libraries of an image.
#include <cstdlib>
#include <cstring>

#include "hook/cuda_compat.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::hook;
  const auto note = read_compat_note([&](std::uint64_t offset, std::span<char> out) {
    if (offset > size || out.size() > size - offset) return false;
    std::memcpy(out.data(), data + offset, out.size());
    return true;
  });
  if (!note) return 0;
  // A library that is not newer than the host's driver is never used, whatever its note contains.
  const bool older = is_compat_usable(*note, "470.1", {"9999999.1", "9999999999999.0"});
  if (older && (!*note || (*note)->cuda_version.empty())) std::abort();
  return 0;
}
