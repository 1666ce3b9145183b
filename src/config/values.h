// Parsers of setting texts: Go's and YAML's booleans, file modes, resource names, MIG profiles, node labels.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/types.h"
#include "config/partition_rules.h"

namespace gpulet::config {

// As Go's strconv.ParseBool: 1 t T TRUE true True, 0 f F FALSE false False.
std::optional<bool> parse_go_bool(std::string_view text);

// A plain YAML 1.1 scalar: y yes true on and their opposites, in lower, upper or title case.
std::optional<bool> parse_yaml_bool(std::string_view text);

// A plain YAML number that is whole, in any notation: "4", and, as NVIDIA's programs take them, "4.0" and
// "1.5e9". nullopt for another text, a fraction, a negative number, and one beyond 2^53 that is not written
// as digits. Source: sigs.k8s.io/yaml, which turns YAML into JSON and prints 4.0 as 4.
std::optional<std::uint64_t> parse_whole_number(std::string_view text);

// "0660": a zero and three octal digits, as for chmod. Without the zero it is rejected, because it may be the
// decimal form that another program wrote.
std::optional<unsigned> parse_file_mode(std::string_view text);

// Limit of a resource name with its prefix.
inline constexpr std::size_t kMaxResourceNameLength = 63;

// "gpu" and "nvidia.com/gpu" → nvidia.com/gpu. Errors: kInvalidArgument with NVIDIA's text if it is longer
// than 63 characters, or the part after the prefix is not a DNS-1123 subdomain.
Result<ResourceName> parse_resource_name(std::string_view text);

// "1g.10gb", "1c.2g.20gb", "1g.10gb+me", "1g.24gb-me", "1g.24gb+gfx", "2g.48gb+me.all": whether it has the
// form of a MIG profile's name, even if no GPU has that profile. Source: mig-parted v0.15.0,
// pkg/types/mig_profile.go.
bool is_mig_profile_name(std::string_view text);

// "pool", "example.com/pool=inference": a label's key with an optional value. nullopt if it is not a valid
// Kubernetes label.
std::optional<NodeLabel> parse_node_label(std::string_view text);

// Suffix of a resource that is shared with renameByDefault.
inline constexpr std::string_view kSharedSuffix = ".shared";

}  // namespace gpulet::config
