// Texts of a GpuNode within their limits.
#pragma once

#include <string>

namespace gpulet::scheduler {

// At most `limit` bytes, not cut inside a UTF-8 character: half of one would grow when it is replaced.
inline std::string truncated_text(std::string text, std::size_t limit) {
  if (text.size() <= limit) return text;
  std::size_t end = limit;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace gpulet::scheduler
