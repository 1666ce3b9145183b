// The loader's cache of a driver root, which a driver container may have written.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/ld_cache.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto entries = gpulet::parse_ld_cache(bytes);
  if (!entries) return 0;
  for (const auto& entry : *entries) {
    if (entry.path.data() < bytes.data() ||
        entry.path.data() + entry.path.size() >= bytes.data() + bytes.size())
      std::abort();
  }
  return 0;
}
