// The container that a runtime passes to its hooks. The OCI state on standard input names the root directory
// (crun) or the bundle, whose config.json names it (runc). Both are read by a strict parser within limits:
// the runtime writes them, but annotations and environment come from the authors of the Pod and the image.
//
// Source: opencontainers/runtime-spec v1.2, runtime.md "State" and config.md; crun's `root` in the state.
#pragma once

#include <cstdint>
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

}  // namespace gpulet::hook
