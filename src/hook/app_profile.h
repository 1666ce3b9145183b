// The driver's application profile that keeps EGL and Vulkan in a container to the GPUs whose device nodes it
// has: a mask of minor numbers. Without it a graphics program counts the host's GPUs and fails on those that
// it cannot open.
//
// Source: NVIDIA driver README, "Application Profiles", key EGLVisibleDGPUDevices; libnvidia-container and
// nvidia-cdi-hook (update-application-profile) write the same file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hook/container.h"

namespace gpulet::hook {

inline constexpr std::string_view kProfileFile =
    "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf";

// The file's content for a mask whose bit n stands for /dev/nvidia<n>.
std::string profile_text(std::uint64_t mask);

// Writes the profile of the GPUs in the container's /dev; does nothing when there is none.
Status write_app_profile(const Container& container);

}  // namespace gpulet::hook
