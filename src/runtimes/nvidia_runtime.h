// NVIDIA's container runtime, which gives a container the GPUs that its variable NVIDIA_VISIBLE_DEVICES
// names: all of them where an image sets "all", as nvidia/cuda does, though its Pod requests none.
//
// Two settings of its config close that: accept-nvidia-visible-devices-envvar-when-unprivileged = false, and
// accept-nvidia-visible-devices-as-volume-mounts = true, so that a device plugin names the devices by mounts,
// which an image cannot. CDI needs neither. The runtime reads its config whenever it starts a container.
//
// Sources: NVIDIA Container Toolkit, config.toml and its defaults; NVIDIA GPU operator, toolkit.env.
#pragma once

#include <string>

#include "base/result.h"
#include "runtimes/engine.h"

namespace gpulet::runtimes::nvidia {

// The package's config, and that of the GPU operator's toolkit, which writes it again at each start.
inline constexpr const char* kPackageConfig = "/etc/nvidia-container-runtime/config.toml";
inline constexpr const char* kOperatorConfig =
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml";

struct RuntimeConfig {
  std::string path{};                   // empty: no file, so the defaults count
  bool accepts_images_variable = true;  // of an unprivileged container
  bool accepts_volume_mounts = false;
};

// If there are several, the first that accepts an image's variable. Errors: not readable, not TOML.
Result<RuntimeConfig> read_runtime_config(const Reader& reader);

// Sets both in `config`; empty: in each file that exists, and without one in a new file of the package. All
// other bytes are kept, and plan_acceptance restores those that were changed.
// Errors: kInvalidArgument about "FILE:LINE" for a file that is not TOML, or a value that is no boolean.
Result<Plan> plan_denial(const std::string& config, const Reader& reader);
Result<Plan> plan_acceptance(const std::string& config, const Reader& reader);

}  // namespace gpulet::runtimes::nvidia
