// The container that a runtime hands to its hooks: the OCI state on standard input names its root folder
// (crun) or its bundle (runc), whose config.json does. Both are bounded and read by a strict parser; the
// state comes from the runtime, but what stands in it (annotations, environment) from whoever wrote the Pod
// and the image.
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

// What the state says. Absent texts are empty.
struct State {
  std::string id;
  std::string bundle;
  std::string root;  // crun only
};
Result<State> parse_state(std::string_view json);

// What config.json says.
struct BundleConfig {
  std::string root_path;  // relative to the bundle, or absolute
  bool root_read_only = false;
  std::vector<std::string> environment;  // "NAME=value", the image's and the Pod's: never ours
  bool user_namespace = false;  // linux.namespaces has one without or with a path: rootless or mapped
};
Result<BundleConfig> parse_bundle_config(std::string_view json);

struct Container {
  Rootfs root;
  // For messages and for nothing else: the root folder as the runtime names it.
  std::string root_path;
  bool root_read_only = false;
  bool user_namespace = false;
  std::vector<std::string> environment;  // the container's, hostile

  // The value of the last "NAME=value" of the container's environment, empty when there is none.
  std::string_view variable(std::string_view name) const;
};

// Reads the state from `state_fd` to its end, then the bundle's config.json. A state with a root needs no
// bundle. Errors: kInvalidArgument (no JSON, no root, too large, a root that is "" or "/"), and those of
// Rootfs::open.
Result<Container> read_container(int state_fd);

}  // namespace gpulet::hook
