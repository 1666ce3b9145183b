// Caches of the loader for tests.
#pragma once

#include <cstdint>
#include <string>

#include "base/driver_root.h"

namespace gpulet::test {

inline void append_word(std::string& bytes, std::uint32_t value) {
  bytes.append(reinterpret_cast<const char*>(&value), 4);
}

// A cache of format 1.1 with one name and one path, for this architecture.
inline std::string cache_of(const std::string& name, const std::string& path) {
  constexpr std::uint32_t kFlags = kTriplet == "aarch64-linux-gnu" ? 0x0A03 : 0x0303;
  std::string bytes = "glibc-ld.so.cache1.1";
  append_word(bytes, 1);
  bytes.resize(48);
  const std::uint32_t texts = 48 + 24;
  append_word(bytes, kFlags);
  append_word(bytes, texts);
  append_word(bytes, texts + static_cast<std::uint32_t>(name.size()) + 1);
  bytes.resize(texts);
  return bytes + name + '\0' + path + '\0';
}

}  // namespace gpulet::test
