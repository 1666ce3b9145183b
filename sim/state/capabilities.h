// What the driver shows of MIG outside NVML: the static table of minors, the tree
// /proc/driver/nvidia/capabilities that follows the instances, and the nodes /dev/nvidia-caps/nvidia-capN
// that open them. Here and not in sim/root, as the library itself makes them when an instance is made,
// whoever its process is. Source: NVIDIA's MIG user guide, "Device Nodes and Capabilities".
#pragma once

#include <string>

#include "sim/state/state.h"

namespace gpulet::sim {

inline constexpr std::uint32_t kCapsMajor = 506;  // dynamic on hardware: /proc/devices says it
inline constexpr std::uint32_t kConfigMinor = 1;
inline constexpr std::uint32_t kMonitorMinor = 2;

std::uint32_t gpu_instance_minor(std::uint32_t gpu_minor, std::uint32_t gpu_instance);
std::uint32_t compute_instance_minor(std::uint32_t gpu_minor, std::uint32_t gpu_instance,
                                     std::uint32_t compute_instance);

// /proc/driver/nvidia-caps/mig-minors: every GPU, GPU instance and compute instance that can be, 4322 lines.
std::string mig_minors_text();

// A capability's file: minor and mode of its node.
std::string capability_text(std::uint32_t minor, std::uint32_t mode);

// Brings the two trees below `root` in line with the GPU's instances. What is not there (no tree, no right to
// write or to make nodes) stays as it is, as in a container that sees a driver root read-only.
void sync_capabilities(const std::string& root, const Gpu& gpu);

// The driver root that a state file lies in; empty when it lies elsewhere. "/" is "/.".
std::string root_of_state(const std::string& state_path);

}  // namespace gpulet::sim
