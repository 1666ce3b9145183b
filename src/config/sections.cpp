#include "config/sections.h"

#include <algorithm>

#include "base/text.h"
#include "config/values.h"

namespace gpulet::config {
namespace {

using NodeKind = yaml::Node::Kind;
using yaml::Node;

const std::string kPattern = "pattern", kName = "name";

std::vector<ResourcePattern> read_patterns(const Node& list, const std::string& section, Problems& problems) {
  std::vector<ResourcePattern> patterns;
  if (list.kind == NodeKind::kNull || !expect_kind(NodeKind::kSequence, "a list", list, section, problems))
    return patterns;
  for (std::size_t i = 0; i < list.items.size(); ++i) {
    const auto& item = list.items[i];
    const std::string path = section + "[" + std::to_string(i) + "]";
    if (!expect_kind(NodeKind::kMapping, "a mapping with pattern and name", item, path, problems)) continue;
    const MappingReader fields(item, path, {kPattern, kName}, problems);
    for (const auto& key : {kPattern, kName}) {
      if (!fields[key])
        problems.add_error(item.position, path, "resources must have a '" + key + "' field set");
    }
    if (!fields[kPattern] || !fields[kName]) continue;
    auto pattern = read_text(*fields[kPattern], fields.field_path(kPattern), problems);
    auto name = read_name(*fields[kName], fields.field_path(kName), problems);
    if (pattern && name) patterns.push_back({std::move(*pattern), std::move(*name)});
  }
  return patterns;
}

// "0", "0:1", "GPU-<uuid>", "MIG-<uuid>", "MIG-GPU-<uuid>/<gi>/<ci>".
bool device_reference(std::string_view text) {
  if (text::starts_with(text, "GPU-")) return is_hexadecimal_uuid(text.substr(4));
  if (text::starts_with(text, "MIG-GPU-")) {
    const auto parts = text::split(text.substr(8), '/');
    return parts.size() == 3 && is_hexadecimal_uuid(parts[0]) && text::parse_unsigned(parts[1]) &&
           text::parse_unsigned(parts[2]);
  }
  if (text::starts_with(text, "MIG-")) return is_hexadecimal_uuid(text.substr(4));
  const auto parts = text::split(text, ':');
  return (parts.size() == 1 || parts.size() == 2) &&
         std::ranges::all_of(parts, [](const auto& part) { return text::parse_unsigned(part).has_value(); });
}

std::optional<DeviceSelection> read_device_list(const Node& node, const std::string& field,
                                                Problems& problems) {
  DeviceRefs refs;
  for (const auto& item : node.items) {
    if (item.kind != NodeKind::kScalar || !device_reference(item.scalar)) {
      problems.add_error(item.position, field,
                         "unsupported type for device in devices list: " +
                             (item.kind == NodeKind::kScalar ? item.scalar : "") +
                             " (expected an index, \"gpu:mig\", GPU-… or MIG-…)");
      return std::nullopt;
    }
    refs.push_back(item.scalar);
  }
  if (refs.empty()) {
    problems.add_error(node.position, field, "an empty list of devices; omit devices or list at least one");
    return std::nullopt;
  }
  return refs;
}

std::optional<DeviceSelection> read_devices(const Node& node, const std::string& field, Problems& problems) {
  if (node.kind == NodeKind::kSequence) return read_device_list(node, field, problems);
  if (node.kind != NodeKind::kScalar) {
    problems.add_error(
        node.position, field,
        "unrecognized type for devices spec: " + expected_but_found("all, a count or a list", node));
    return std::nullopt;
  }
  if (node.scalar == "all") return AllDevices{};
  if (node.plain) {
    const auto count = text::parse_unsigned(node.scalar);
    if (count && *count > 0 && *count <= kMaxReplicas) return DeviceCount{static_cast<unsigned>(*count)};
    const bool negative = text::starts_with(node.scalar, "-") && text::parse_unsigned(node.scalar.substr(1));
    if (count || negative) {
      problems.add_error(node.position, field,
                         "devices set as '" + node.scalar + "' but a count of devices must be > 0" +
                             (count && *count > 0 ? " and at most " + std::to_string(kMaxReplicas) : ""));
      return std::nullopt;
    }
  }
  problems.add_error(node.position, field,
                     "devices set as '" + node.scalar + "' but the only valid string input is 'all'");
  return std::nullopt;
}

std::optional<ReplicatedResource> read_replicated(const Node& item, const std::string& path,
                                                  bool rename_by_default, Problems& problems) {
  if (!expect_kind(NodeKind::kMapping, "a mapping with name and replicas", item, path, problems))
    return std::nullopt;
  const MappingReader fields(item, path, {"name", "rename", "devices", "replicas"}, problems);
  if (!fields["name"]) problems.add_error(item.position, path, "no resource name specified");
  if (!fields["replicas"]) problems.add_error(item.position, path, "no replicas specified");
  ReplicatedResource resource;
  bool good = fields["name"] && fields["replicas"];
  if (const auto* node = fields["name"]) {
    const auto name = read_name(*node, fields.field_path("name"), problems);
    good = good && name;
    if (name) resource.name = *name;
  }
  if (const auto* node = fields["replicas"]) {
    const auto replicas = read_replicas(*node, fields.field_path("replicas"), problems);
    good = good && replicas;
    resource.replicas = replicas.value_or(0);
  }
  if (const auto* node = fields["devices"]) {
    auto devices = read_devices(*node, fields.field_path("devices"), problems);
    good = good && devices;
    if (devices) resource.devices = std::move(*devices);
  }
  if (const auto* node = fields["rename"]) {
    resource.rename = read_name(*node, fields.field_path("rename"), problems);
    good = good && resource.rename;
  } else if (good && rename_by_default) {
    auto shared = parse_resource_name(resource.name.str() + std::string(kSharedSuffix));
    if (!shared) problems.add_error(item.position, path, "renameByDefault: " + shared.error().message());
    good = good && shared;
    if (shared) resource.rename = std::move(*shared);
  }
  if (!good) return std::nullopt;
  return resource;
}

// `timeSlicing` or `mps`.
Sharing read_replication(const Node& node, SharingStrategy strategy, const std::string& section,
                         Problems& problems) {
  Sharing sharing;
  sharing.strategy = strategy;
  sharing.fail_requests_greater_than_one = strategy == SharingStrategy::kMps;
  if (!expect_kind(NodeKind::kMapping, "a mapping with resources", node, section, problems)) return sharing;
  const MappingReader fields(node, section, {"renameByDefault", "failRequestsGreaterThanOne", "resources"},
                             problems);
  bool rename = false;
  if (const auto* value = fields["renameByDefault"]) {
    rename = read_bool(*value, fields.field_path("renameByDefault"), problems).value_or(false);
  }
  if (const auto* value = fields["failRequestsGreaterThanOne"]) {
    sharing.fail_requests_greater_than_one =
        read_bool(*value, fields.field_path("failRequestsGreaterThanOne"), problems).value_or(false);
  }
  const auto* list = fields["resources"];
  if (!list || (list->kind == NodeKind::kSequence && list->items.empty())) {
    problems.add_error(
        (list ? list : &node)->position, section,
        "no resources specified: give at least one with name and replicas, or leave " + section + " out");
    return sharing;
  }
  if (!expect_kind(NodeKind::kSequence, "a list", *list, fields.field_path("resources"), problems))
    return sharing;
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    auto resource = read_replicated(
        list->items[i], fields.field_path("resources") + "[" + std::to_string(i) + "]", rename, problems);
    if (resource) sharing.resources.push_back(std::move(*resource));
  }
  return sharing;
}

}  // namespace

ResourceNames read_resources(const Node& node, Problems& problems) {
  ResourceNames names;
  if (node.kind == NodeKind::kNull ||
      !expect_kind(NodeKind::kMapping, "a mapping with gpus and mig", node, "resources", problems)) {
    return names;
  }
  const MappingReader fields(node, "resources", {"gpus", "mig"}, problems);
  if (const auto* list = fields["gpus"]) names.gpus = read_patterns(*list, "resources.gpus", problems);
  if (const auto* list = fields["mig"]) names.mig = read_patterns(*list, "resources.mig", problems);
  return names;
}

Sharing read_sharing(const Node& node, Problems& problems) {
  if (node.kind == NodeKind::kNull ||
      !expect_kind(NodeKind::kMapping, "a mapping with timeSlicing or mps", node, "sharing", problems)) {
    return {};
  }
  const MappingReader fields(node, "sharing", {"timeSlicing", "mps"}, problems);
  Sharing sharing;
  if (const auto* value = fields["timeSlicing"]) {
    sharing = read_replication(*value, SharingStrategy::kTimeSlicing, "sharing.timeSlicing", problems);
  }
  if (const auto* value = fields["mps"]) {
    if (sharing.strategy != SharingStrategy::kNone) {
      problems.add_warning(value->position, "sharing", "both timeSlicing and mps are given: mps counts");
    }
    sharing = read_replication(*value, SharingStrategy::kMps, "sharing.mps", problems);
  }
  return sharing;
}

}  // namespace gpulet::config
