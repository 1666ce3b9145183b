// FNV-1a: a fast hash whose values are the same in every process and on every machine, for names and
// checksums of what gpulet writes itself. Not for untrusted keys. Source:
// http://www.isthe.com/chongo/tech/comp/fnv/
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpulet {

inline constexpr std::uint64_t kFnv1aBasis64 = 0xcbf29ce484222325u;
inline constexpr std::uint32_t kFnv1aBasis32 = 0x811c9dc5u;

// Continues from `basis`, so that a text can be hashed in parts.
constexpr std::uint64_t fnv1a_64(std::string_view text, std::uint64_t basis = kFnv1aBasis64) {
  for (const char c : text) basis = (basis ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return basis;
}
constexpr std::uint32_t fnv1a_32(std::string_view text, std::uint32_t basis = kFnv1aBasis32) {
  for (const char c : text) basis = (basis ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return basis;
}

// The lowest `digits` hexadecimal digits of `value`, lower case, with leading zeros.
inline std::string hex_text(std::uint64_t value, std::size_t digits = 16) {
  std::string text(digits, '0');
  for (auto at = text.rbegin(); at != text.rend(); ++at, value >>= 4) *at = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace gpulet
