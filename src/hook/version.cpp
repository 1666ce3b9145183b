#include "hook/version.h"

#include "base/text.h"

namespace gpulet::hook {

std::optional<Version> parse_version(std::string_view text) {
  constexpr std::size_t kMaxParts = 8;
  Version version;
  while (version.parts.size() < kMaxParts) {
    const auto dot = text.find('.');
    const auto part = text::parse_unsigned(text.substr(0, dot));
    if (!part) return std::nullopt;
    version.parts.push_back(*part);
    if (dot == std::string_view::npos) {
      while (version.parts.size() > 1 && version.parts.back() == 0) version.parts.pop_back();
      return version;
    }
    text.remove_prefix(dot + 1);
  }
  return std::nullopt;
}

}  // namespace gpulet::hook
