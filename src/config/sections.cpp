#include "config/sections.h"

#include <algorithm>
#include <span>
#include <tuple>

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

namespace {

// Bounds the pairwise comparison for any file.
constexpr std::size_t kMaxRules = 256, kMaxRefs = 4096;

// A resource that a rule or `sharing` creates, with its partitioning and sharing.
struct MadeResource {
  std::string name, position, summary;  // `summary`: "timeSlicing ×4"
  enum class SharingMode { kWhole, kTimeSlicing, kMps, kMig } mode = SharingMode::kWhole;
  unsigned replicas = 1;
  bool fail_requests_greater_than_one = false;
  placement::SharesOn shares_on = placement::SharesOn::kAnyGpu;
  std::optional<MpsShare> share;
  bool sm_partitions = false;
  std::string daemon;
  std::map<std::string, unsigned> mig_devices;
  const PartitionRule* rule = nullptr;  // null for `sharing`

  auto kind() const {
    return std::tuple(mode, replicas, fail_requests_greater_than_one, shares_on, share, sm_partitions, daemon,
                      mig_devices);
  }
};

// Two rules that never apply to the same node.
bool exclusive(const PartitionRule& a, const PartitionRule& b) {
  return a.node_label && b.node_label && a.node_label->key == b.node_label->key && a.node_label->value &&
         b.node_label->value && *a.node_label->value != *b.node_label->value;
}

// Whether `earlier` applies wherever `later` does, as far as model, label and display go.
bool covers(const PartitionRule& earlier, const PartitionRule& later) {
  return (!earlier.model || earlier.model == later.model) &&
         (!earlier.node_label || earlier.node_label == later.node_label) &&
         (!earlier.display || earlier.display == later.display);
}

std::optional<std::string> common(std::span<const GpuRef> a, std::span<const GpuRef> b) {
  for (const auto& one : a) {
    for (const auto& other : b) {
      if (one.uuid != other.uuid || one.pci != other.pci) continue;
      if (!one.is_range()) return one.ref_text();
      const auto first = std::max(one.first, other.first);
      if (first <= std::min(one.last, other.last)) return std::to_string(first);
    }
  }
  return std::nullopt;
}

void check_duplicates(const PartitionRule& rule, Problems& problems) {
  const auto* refs = std::get_if<GpuRefs>(&rule.devices);
  for (std::size_t i = 0; refs && i < refs->size(); ++i) {
    const std::span all(*refs);
    if (const auto gpu = common(all.first(i), all.subspan(i, 1))) {
      problems.add_error(rule.position, "gpulet.partition: GPU " + *gpu + " is listed twice");
      return;
    }
  }
}

void check_overlap(const PartitionRule& earlier, const PartitionRule& later, Problems& problems) {
  if (exclusive(earlier, later) || !covers(earlier, later)) return;
  if (std::holds_alternative<AllDevices>(earlier.devices)) {
    problems.add_warning(later.position + ": gpulet.partition: this rule can never apply: the rule at " +
                         earlier.position + " selects all its GPUs");
    return;
  }
  // A range of a later rule may include GPUs that are excluded.
  if (std::holds_alternative<Exclude>(earlier.mode)) return;
  const auto* a = std::get_if<GpuRefs>(&earlier.devices);
  const auto* b = std::get_if<GpuRefs>(&later.devices);
  const auto gpu = a && b ? common(*a, *b) : std::nullopt;
  if (gpu) {
    problems.add_error(later.position,
                       "gpulet.partition: GPU " + *gpu + " already has a rule at " + earlier.position);
  }
}

class ResourceNameCheck {
 public:
  ResourceNameCheck(const Config& config, Problems& problems) : config_(config), problems_(problems) {}

  void add_rule(const PartitionRule& rule) {
    rule_ = &rule;
    std::visit([&](const auto& how) { add_resources_of(how); }, rule.mode);
  }

  void add_sharing(const std::string& place) {
    for (const auto& entry : config_.sharing.resources) {
      MadeResource made;
      made.name = entry.rename.value_or(entry.name).str();
      made.position = place;
      made.replicas = entry.replicas;
      made.fail_requests_greater_than_one = config_.sharing.fail_requests_greater_than_one;
      const bool mps = config_.sharing.strategy == SharingStrategy::kMps;
      made.mode = mps ? MadeResource::SharingMode::kMps : MadeResource::SharingMode::kTimeSlicing;
      if (mps) made.daemon = made.name;
      made.summary = std::string("sharing.") + (mps ? "mps" : "timeSlicing");
      made_.push_back(std::move(made));
    }
  }

 private:
  // `given`, else the name of the rule's whole GPUs plus the suffix; nullopt if that depends on the model or
  // is too long.
  std::optional<std::string> resource_name(const std::optional<ResourceName>& given,
                                           std::string_view suffix) {
    if (given) return given->str();
    if (config_.gpu_resources.size() > 1) return std::nullopt;
    auto name = parse_resource_name(config_.gpu_resources.front().name.str() + std::string(suffix));
    return name ? std::optional(name->str()) : std::nullopt;
  }

  void add_resource(MadeResource made) {
    made.rule = rule_;
    made.position = rule_->position;
    for (const auto& other : made_) {
      if (other.name != made.name || other.kind() == made.kind()) continue;
      if (other.rule && exclusive(*other.rule, *rule_)) continue;
      problems_.add_error(rule_->position, "gpulet.partition: " + made.name + " of " + made.summary +
                                               " conflicts with " + other.summary + " at " + other.position +
                                               ": set a name");
      return;
    }
    made_.push_back(std::move(made));
  }

  void add_resources_of(const Whole& whole) {
    if (const auto name = resource_name(whole.name, "")) {
      MadeResource made;
      made.name = *name;
      made.summary = "whole GPUs";
      add_resource(std::move(made));
    }
  }

  void add_resources_of(const Exclude&) {}
  void add_resources_of(const DynamicMig&) {}

  void add_resources_of(const TimeSlicing& slicing) {
    const auto name = resource_name(slicing.name, kSharedSuffix);
    if (!name) return;
    MadeResource made;
    made.name = *name;
    made.summary = "timeSlicing with " + std::to_string(slicing.replicas) + " replicas";
    made.mode = MadeResource::SharingMode::kTimeSlicing;
    made.replicas = slicing.replicas;
    made.fail_requests_greater_than_one = slicing.fail_requests_greater_than_one;
    made.shares_on = slicing.shares_on;
    add_resource(std::move(made));
  }

  void add_resources_of(const Mps& mps) {
    const bool equal = has_equal_shares(mps);
    const auto daemon = resource_name(mps.name, equal ? kSharedSuffix : kMpsSuffix);
    MadeResource made;
    made.mode = MadeResource::SharingMode::kMps;
    made.fail_requests_greater_than_one = mps.fail_requests_greater_than_one;
    made.shares_on = mps.shares_on;
    made.daemon = daemon.value_or("");
    if (mps.shares.empty()) {
      if (!daemon) return;
      made.name = *daemon;
      made.replicas = mps.replicas;
      made.sm_partitions = mps.sm_partitions;
      made.summary =
          "mps with " + std::to_string(mps.replicas) + (mps.sm_partitions ? " SM partitions" : " replicas");
      return add_resource(std::move(made));
    }
    std::map<std::pair<std::string, MpsShare>, unsigned> count;
    for (const auto& share : mps.shares) {
      std::string name = daemon ? *daemon + (equal ? "" : share_suffix(share.size)) : "";
      if (share.name) name = share.name->str();
      if (name.size() > kMaxResourceNameLength) {
        problems_.add_error(rule_->position,
                            "gpulet.partition: " + name + " is too long for a resource: set a name");
        return;
      }
      if (!name.empty()) ++count[{name, share.size}];
    }
    for (const auto& [key, replicas] : count) {
      made.name = key.first;
      made.share = key.second;
      made.replicas = replicas;
      made.summary = "an mps share of " + share_suffix(key.second).substr(1) + " percent";
      add_resource(made);
    }
  }

  void add_resources_of(const Mig& mig) {
    // With strategy mixed and no name, the driver's profiles name the resources.
    if (!mig.name && mig.strategy != MigStrategy::kSingle) return;
    MadeResource made;
    made.name = mig.name ? mig.name->str() : kGpu;
    if (!mig.name && !config_.mig_resources.empty()) return;
    made.mode = MadeResource::SharingMode::kMig;
    for (const auto& [profile, count] : mig.devices) {
      if (count > 0) made.mig_devices[profile] = 1;  // the profile counts, not how many a GPU has
    }
    made.summary = "MIG devices";
    add_resource(std::move(made));
  }

  static constexpr const char* kGpu = "nvidia.com/gpu";
  const Config& config_;
  Problems& problems_;
  const PartitionRule* rule_ = nullptr;
  std::vector<MadeResource> made_;
};

}  // namespace

void check_partition(const Config& config, const std::string& sharing_origin, Problems& problems) {
  const auto& rules = config.gpulet.partition;
  std::size_t refs = 0;
  for (const auto& rule : rules) {
    if (const auto* list = std::get_if<GpuRefs>(&rule.devices)) refs += list->size();
  }
  if (rules.size() > kMaxRules || refs > kMaxRefs) {
    problems.add_error(rules.front().position, "gpulet.partition: more than " + std::to_string(kMaxRules) +
                                                   " rules, or " + std::to_string(kMaxRefs) +
                                                   " devices in them");
    return;
  }
  for (std::size_t i = 0; i < rules.size(); ++i) {
    check_duplicates(rules[i], problems);
    for (std::size_t j = 0; j < i; ++j) check_overlap(rules[j], rules[i], problems);
  }
  for (const auto& rule : rules) {
    if (rule.offer == OfferSide::kClaims && !config.gpulet.dra.enabled) {
      problems.add_error(
          rule.position,
          "gpulet.partition: offer is claims while gpulet.dra.enabled is false; expected true");
    } else if (const auto key = claims_only_key(rule); !key.empty() && !config.gpulet.dra.enabled) {
      problems.add_error(rule.position,
                         "gpulet.partition: " + std::string(key) +
                             " is for claims while gpulet.dra.enabled is false; expected true");
    } else if (const auto* mig = std::get_if<Mig>(&rule.mode);
               mig != nullptr && mig->on_demand && !rule.offer && config.gpulet.dra.enabled) {
      problems.add_error(rule.position,
                         "gpulet.partition: mig.onDemand is for Pods without claims while gpulet.dra.enabled "
                         "is true; expected offer: devicePlugin");
    }
  }
  ResourceNameCheck names(config, problems);
  names.add_sharing(text::starts_with(sharing_origin, "file ") ? sharing_origin.substr(5) : sharing_origin);
  for (const auto& rule : rules) {
    if (rule.offer != OfferSide::kClaims) names.add_rule(rule);
  }
}

}  // namespace gpulet::config
