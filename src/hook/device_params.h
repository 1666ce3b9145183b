// ModifyDeviceFiles off: the driver's user-space parts (nvidia-smi, nvidia-modprobe) make missing
// /dev/nvidia<n> as root when /proc/driver/nvidia/params says that they may. In a container they would make
// the nodes of GPUs that are not its own. A copy of that file that says no is bound over the container's.
//
// The copy lies in a small tmpfs of its own, read-only, that is reached by nothing but that mount; it is made
// with descriptors (fsmount, open_tree, move_mount: Linux 5.2), so that no path of the image takes part, and
// no folder is left behind.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hook/container.h"

namespace gpulet::hook {

// The params with "ModifyDeviceFiles: 0"; nullopt when they say so already, or say nothing of it.
std::optional<std::string> without_device_modification(std::string_view params);

// `host_proc` is where the host's /proc is. Does nothing when the host or the container has no such file.
Status disable_device_modification(const Container& container, const std::string& host_proc = "/proc");

}  // namespace gpulet::hook
