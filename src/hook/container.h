// The container that a runtime passes to its hooks, and what they write in it. The OCI state on standard
// input names the root directory (crun) or the bundle, whose config.json names it (runc). Both are read by a
// strict parser within limits: the runtime writes them, but annotations and environment come from the authors
// of the Pod and the image.
//
// Source: opencontainers/runtime-spec v1.2, runtime.md "State" and config.md; crun's `root` in the state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "hook/rootfs.h"

namespace gpulet::hook {

inline constexpr std::size_t kMaxStateBytes = 1u << 20;
inline constexpr std::size_t kMaxConfigBytes = 8u << 20;

// The OCI state. Absent strings are empty.
struct OciState {
  std::string id;
  std::string bundle;
  std::string root;  // crun only
};
Result<OciState> parse_oci_state(std::string_view json);

// The relevant part of config.json.
struct BundleConfig {
  std::string root_path;  // relative to the bundle, or absolute
  bool root_read_only = false;
  std::vector<std::string> environment;  // "NAME=value", from the image and the Pod; never the hook's
  bool user_namespace = false;           // linux.namespaces has a user namespace: rootless or mapped
};
Result<BundleConfig> parse_bundle_config(std::string_view json);

struct Container {
  Rootfs root;
  // The runtime's name of the root directory, for messages only.
  std::string root_path;
  bool root_read_only = false;
  bool user_namespace = false;
  std::vector<std::string> environment;  // of the container, untrusted

  // Returns the value of the last "NAME=value" of the environment, or "".
  std::string_view environment_value(std::string_view name) const;
};

// Reads the state from `state_fd` to its end, then the bundle's config.json. A state with a root needs no
// bundle. Errors: kInvalidArgument (no JSON, no root, too large, a root of "" or "/"), and those of
// Rootfs::open_root.
Result<Container> read_container(int state_fd);

// Driver files that a hook writes in a container: symbolic links, /proc/driver/nvidia/params, the application
// profile.

// A link that the driver's libraries need (libcuda.so → libcuda.so.1, /dev/dri/by-path), as in
// nvidia-cdi-hook's create-symlinks. `target` is the link's content, `path` its place in the container.
struct Link {
  std::string target;
  std::string path;
};

// Parses "target::path". Errors: kInvalidArgument.
Result<Link> parse_link(std::string_view text);

// Creates the links in order and leaves correct ones alone. After a refused link (kPermissionDenied) it
// continues and returns that error at the end; any other error stops it.
Status make_links(const Container& container, const std::vector<Link>& links);

// Turns ModifyDeviceFiles off: the driver's user-space tools (nvidia-smi, nvidia-modprobe) create missing
// /dev/nvidia<n> as root if /proc/driver/nvidia/params permits. In a container they would create the nodes of
// other containers' GPUs. A copy of the file with ModifyDeviceFiles 0 is bind-mounted over the container's.
//
// The copy is in a private read-only tmpfs, reachable only through that mount. It is created with descriptors
// (fsmount, open_tree, move_mount: Linux 5.2), so that no path of the image is used and no directory remains.

// Returns the params with "ModifyDeviceFiles: 0", or nullopt if they have it already or do not have the key.
std::optional<std::string> without_device_modification(std::string_view params);

// `host_proc` is the path of the host's /proc. Does nothing if the host or the container has no such file.
Status disable_device_modification(const Container& container, const std::string& host_proc = "/proc");

// The driver's application profile restricts EGL and Vulkan in a container to the GPUs whose device nodes it
// has, by a mask of minor numbers. Without it, a graphics program sees all GPUs of the host and fails on
// those that it cannot open.
//
// Source: NVIDIA driver README, "Application Profiles", key EGLVisibleDGPUDevices; libnvidia-container and
// nvidia-cdi-hook (update-application-profile) write the same file.

inline constexpr std::string_view kProfileFile =
    "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf";

// Returns the file's content. Bit n of `mask` stands for /dev/nvidia<n>.
std::string app_profile_text(std::uint64_t mask);

// Writes the profile for the GPUs in the container's /dev. Does nothing if there are none.
Status write_app_profile(const Container& container);

}  // namespace gpulet::hook
