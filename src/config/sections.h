// The two sections of the file that are lists of things rather than settings: `resources` (names by pattern)
// and `sharing` (time-slicing and MPS). NVIDIA's form and rules; its plugin parses and then ignores
// `resources`, `rename` and `devices`, which work here. Problems go into `problems`; what is returned then is
// not to be used. Source: k8s-device-plugin v0.20.0, api/config/v1/{resources,replicas,sharing}.go.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/problems.h"
#include "config/yaml.h"

namespace gpulet::config {

// No GPU is shared by more: a replica is a device to the kubelet, and its lists are sent whole.
inline constexpr unsigned kMaxReplicas = 4096;

struct ResourceNames {
  std::vector<ResourcePattern> gpus, mig;
};
ResourceNames read_resources(const yaml::Node& node, Problems& problems);

Sharing read_sharing(const yaml::Node& node, Problems& problems);

// The entry of `keys` that `key` was meant to be: equal, or in drop-in mode equal but for case, as Go's JSON
// takes it (with a warning). Says what is wrong (unknown key, with the nearest) and returns an empty view
// otherwise.
std::string_view known_key(const yaml::Entry& entry, const std::string& section,
                           std::span<const std::string> keys, bool any_case, Problems& problems);

// "expected a list, found a text": one line about a node of the wrong kind.
std::string found_instead(std::string_view expected, const yaml::Node& node);

}  // namespace gpulet::config
