// The texts that settings are written in: Go's booleans and durations, YAML 1.1's booleans, resource names.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/strong.h"
#include "config/rules.h"

namespace gpulet::config {

// As Go's strconv.ParseBool: 1 t T TRUE true True, 0 f F FALSE false False.
std::optional<bool> parse_go_bool(std::string_view text);

// A plain YAML 1.1 scalar: y yes true on and their opposites, in lower, upper or capitalised form.
std::optional<bool> parse_yaml_bool(std::string_view text);

// As Go's time.ParseDuration: "1h30m", "1.5s", "-2ms", "0". Units: ns us µs ms s m h. nullopt where it is
// none, or longer than an int64 of nanoseconds.
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);

// "1m30s", "500ms", "0s": the shortest that parse_duration reads back.
std::string format_duration(std::chrono::nanoseconds duration);

// "0660": a nought and three octal digits, as chmod takes it. A file mode without the nought is refused: it
// may be what another program made of one, in decimal.
std::optional<unsigned> parse_file_mode(std::string_view text);

// No resource name is longer, its prefix included.
inline constexpr std::size_t kMaxResourceNameLength = 63;

// "gpu" and "nvidia.com/gpu" → nvidia.com/gpu. kInvalidArgument, with NVIDIA's words: longer than 63
// characters, or the rest after the prefix is not a DNS-1123 subdomain.
Result<ResourceName> parse_resource_name(std::string_view text);

// "1g.10gb", "1c.2g.20gb", "1g.10gb+me", "1g.24gb-me", "1g.24gb+gfx", "2g.48gb+me.all": of the form of a MIG
// profile's name, whether or not any GPU has it. Source: mig-parted v0.15.0, pkg/types/mig_profile.go.
bool mig_profile_form(std::string_view text);

// "pool" and "example.com/pool=inference": a label's key, and its value where one is given. nullopt for what
// is none in Kubernetes.
std::optional<NodeLabel> parse_node_label(std::string_view text);

// What a resource is called once shared with renameByDefault: "<name>.shared".
inline constexpr std::string_view kSharedSuffix = ".shared";

}  // namespace gpulet::config
