// Versions as drivers and CUDA have them ("535.161.08", "12.4"): numbers between dots.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace gpulet::hook {

struct Version {
  std::vector<std::uint64_t> parts;  // at least one, without zeros at the end: "12.0" is "12"

  std::uint64_t major_part() const { return parts.empty() ? 0 : parts.front(); }
  friend auto operator<=>(const Version&, const Version&) = default;
};

// nullopt for an empty text, an empty part, more than 8 parts, or anything but digits and dots.
std::optional<Version> parse_version(std::string_view text);

}  // namespace gpulet::hook
