// Reading the fields of a mapping, one by one, with what is wrong said at its place: what the readers of the
// file's structured sections (config/sections.h, config/partition_section.h) are made of. What is wrong goes
// into `problems` and comes back as nothing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/strong.h"
#include "config/problems.h"
#include "config/yaml.h"

namespace gpulet::config {

// No GPU is shared by more: a replica is a device to the kubelet, and its lists are sent whole.
inline constexpr unsigned kMaxReplicas = 4096;

// The values of a mapping by its known keys; null for what is absent or null.
class Fields {
 public:
  Fields(const yaml::Node& node, std::string section, std::vector<std::string> keys, Problems& problems);
  const yaml::Node* operator[](std::string_view key) const;
  std::string path(std::string_view key) const { return section_ + "." + std::string(key); }

 private:
  std::string section_;
  std::vector<std::string> keys_;
  std::vector<const yaml::Node*> values_;
};

// Whether the node is of the kind; `name` is how the complaint calls it ("a list").
bool expect(yaml::Node::Kind kind, const char* name, const yaml::Node& node, const std::string& field,
            Problems& problems);

std::optional<std::string> read_text(const yaml::Node& node, const std::string& field, Problems& problems);
std::optional<bool> read_bool(const yaml::Node& node, const std::string& field, Problems& problems);
std::optional<ResourceName> read_name(const yaml::Node& node, const std::string& field, Problems& problems);
// At least 2 and at most kMaxReplicas.
std::optional<unsigned> read_replicas(const yaml::Node& node, const std::string& field, Problems& problems);

// "0f1e2d3c-…": 8-4-4-4-12 hexadecimal digits.
bool hexadecimal_uuid(std::string_view text);

// The entry of `keys` that `key` was meant to be: equal, or in drop-in mode equal but for case, as Go's JSON
// takes it (with a warning). Says what is wrong (unknown key, with the nearest) and returns an empty view
// otherwise.
std::string_view known_key(const yaml::Entry& entry, const std::string& section,
                           std::span<const std::string> keys, bool any_case, Problems& problems);

// "expected a list, found a text": one line about a node of the wrong kind.
std::string found_instead(std::string_view expected, const yaml::Node& node);

}  // namespace gpulet::config
