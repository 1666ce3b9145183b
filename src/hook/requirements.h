// Checks an image's requirements on the node before its first process runs: NVIDIA_REQUIRE_CUDA and similar
// variables of CUDA images. A container that would fail with "CUDA driver version is insufficient" is refused
// at its start with one line that the Pod's event shows.
//
// An expression is a list of alternatives separated by spaces (one must hold), each a list of conditions
// separated by commas (all must hold): "cuda>=12.4 brand=tesla,driver>=535,driver<536". Properties: cuda,
// driver and arch (versions), brand (a string). Operators: = != < <= > >=. All NVIDIA_REQUIRE_* must hold
// except NVIDIA_REQUIRE_JETPACK*; NVIDIA_DISABLE_REQUIRE turns the check off. An image with CUDA_VERSION and
// without NVIDIA_REQUIRE_CUDA requires "cuda>=" its major and minor number.
//
// Source: libnvidia-container's requirement language and nvidia-container-toolkit's internal/requirements.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::hook {

// Versions of drivers and CUDA ("535.161.08", "12.4"): numbers separated by dots.
struct Version {
  std::vector<std::uint64_t> parts;  // at least one, without zeros at the end: "12.0" is "12"

  std::uint64_t major_part() const { return parts.empty() ? 0 : parts.front(); }
  friend auto operator<=>(const Version&, const Version&) = default;
};

// Returns nullopt for an empty text, an empty part, more than 8 parts, or other characters than digits and
// dots.
std::optional<Version> parse_version(std::string_view text);

// Properties of the node. An empty property is unknown; no condition on it refuses a container.
struct HostProperties {
  std::string driver;  // "535.161.08"
  std::string cuda;    // "12.2", the newest that the driver supports
  std::string arch;    // compute capability, "9.0"
  std::string brand;   // "tesla", "geforce", …
};

// Errors: kFailedPrecondition if the node does not meet the requirements, with advice; kInvalidArgument for a
// malformed expression. Either is one line of printable text, whatever the image contains. Pure.
Status check_requirements(const std::vector<std::string>& environment, const HostProperties& host);

// Returns the first branch of the Linux driver that supports this version of CUDA ("12.4" → "550"), or "" if
// unknown. Source: CUDA Toolkit release notes, table "CUDA Toolkit and Corresponding Driver Versions".
std::string_view driver_branch_for(std::string_view cuda);

// Returns untrusted text as printable ASCII, at most `max` characters.
std::string printable_text(std::string_view hostile, std::size_t max = 200);

}  // namespace gpulet::hook
