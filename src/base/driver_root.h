// Where the files of an NVIDIA driver lie below a driver root: the directory that holds a driver installation
// (the host's root, a driver container's root), as this process sees it. The one list for every library that
// searches there.
#pragma once

#include <span>
#include <string_view>

namespace gpulet {

// The multiarch triplet of this build.
#if defined(__aarch64__)
#define GPULET_TRIPLET "aarch64-linux-gnu"
#else
#define GPULET_TRIPLET "x86_64-linux-gnu"
#endif
inline constexpr std::string_view kTriplet = GPULET_TRIPLET;

// Library directories in search order, relative to the root ("/usr/lib64"). Pure: any thread.
// Source: k8s-device-plugin v0.20.0, cmd/nvidia-device-plugin/root.go; the distributions' own layouts.
std::span<const std::string_view> library_directories();
// The first part: those of Debian, Ubuntu, RHEL, SUSE, Arch and Amazon Linux, and of GKE or a driver
// container as the root itself.
std::span<const std::string_view> distribution_library_directories();
// The rest: those of GKE, Flatcar and Talos below the host's own root, of NixOS, and of roots with a single
// library directory.
std::span<const std::string_view> vendor_library_directories();

}  // namespace gpulet
