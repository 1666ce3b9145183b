// What an image needs of the node, checked before its first process runs: NVIDIA_REQUIRE_CUDA and its like,
// as the CUDA images set them. A container that would fail with "CUDA driver version is insufficient" is
// refused at its start, with a line that the Pod's event shows.
//
// An expression is alternatives with blanks between (one of them must hold), each of conditions with commas
// between (all of them): "cuda>=12.4 brand=tesla,driver>=535,driver<536". Properties: cuda, driver and arch
// (versions), brand (a word). Operators: = != < <= > >=. All of NVIDIA_REQUIRE_* must hold, but
// NVIDIA_REQUIRE_JETPACK*; NVIDIA_DISABLE_REQUIRE turns the check off. An image that has CUDA_VERSION and no
// NVIDIA_REQUIRE_CUDA needs "cuda>=" its major and minor number.
//
// Source: libnvidia-container's requirement language and nvidia-container-toolkit's internal/requirements.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::hook {

// The node. What is empty is not known, and no condition on it refuses a container.
struct HostProperties {
  std::string driver;  // "535.161.08"
  std::string cuda;    // "12.2", the newest that the driver does
  std::string arch;    // compute capability, "9.0"
  std::string brand;   // "tesla", "geforce", …
};

// Pure. Errors: kFailedPrecondition when the node does not do, with what would; kInvalidArgument for an
// expression that cannot be read. Either is one line of printable text, whatever the image said.
Status check_requirements(const std::vector<std::string>& environment, const HostProperties& host);

// The first branch of the Linux driver that does this version of CUDA ("12.4" → "550"), empty when not known.
// Source: CUDA Toolkit release notes, table "CUDA Toolkit and Corresponding Driver Versions".
std::string_view driver_branch_for(std::string_view cuda);

// Text of the image's as it may be shown: printable ASCII, at most `max` characters.
std::string shown(std::string_view hostile, std::size_t max = 200);

}  // namespace gpulet::hook
