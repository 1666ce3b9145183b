#include "scheduler/model/gpu_node.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "base/cuda_version.h"
#include "base/json.h"
#include "scheduler/model/links.h"
#include "scheduler/model/truncated_text.h"

namespace gpulet::scheduler {

topology::Topology gpu_node_topology(const GpuNode& node) {
  topology::Topology topology;
  topology.size = node.gpus.size();
  topology.pairs = node.pairs;
  topology.pairs.resize(topology.size * topology.size);
  topology.fabrics.resize(topology.size);
  for (const auto& gpu : node.gpus) topology.numa_nodes.push_back(gpu.numa);
  return topology;
}

std::string gpu_node_summary(const GpuNode& node) {
  std::string text = std::to_string(node.gpus.size()) + (node.gpus.size() == 1 ? " GPU" : " GPUs");
  std::map<health::DeviceState, std::size_t> states;
  for (const auto& gpu : node.gpus) ++states[gpu.state];
  for (const auto& [state, count] : states) {
    if (state == health::DeviceState::kHealthy || state == health::DeviceState::kUnmonitored) continue;
    text += ", " + std::to_string(count) + " " + std::string(enum_name(state));
  }
  std::set<std::size_t> held;
  for (const auto& allocation : node.allocations) {
    for (const auto& part : allocation.parts) {
      if (part.resource < node.resources.size() && part.unit < node.resources[part.resource].units.size()) {
        held.insert(node.resources[part.resource].units[part.unit].gpu);
      }
    }
  }
  return text + ", " + std::to_string(held.size()) + " held";
}

// GpuNode as JSON, both ways: later versions read what earlier ones wrote, and all sizes are bounded.

namespace {

using nlohmann::json;

constexpr unsigned kVersion = 1;  // of the spec's meaning; optional new fields do not raise it
constexpr std::array<std::string_view, 2> kPolicies = {"best-effort", "tightest"};
constexpr std::array<std::string_view, 2> kSharedPolicies = {"distributed", "packed"};
constexpr std::array<std::string_view, 3> kLoadPolicies = {"ignore", "prefer", "strict"};
constexpr std::array<std::string_view, 3> kSharings = {"none", "time-slicing", "mps"};
constexpr std::uint64_t kMaxMib = 1u << 30;  // a pebibyte
constexpr unsigned kMaxNumber = 1'000'000;
constexpr unsigned kMaxPercent = 100;
constexpr std::uint64_t kMaxHour = 1u << 24;                 // since 1970
constexpr std::size_t kMaxPodBytes = 2 * kMaxTextBytes + 1;  // "namespace/name"

std::string truncate_text(const std::string& text) { return truncated_text(text, kMaxTextBytes); }

std::string version_text(unsigned major, unsigned minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

json json_of(const GpuModel& model) {
  return {{"name", truncate_text(model.name)},
          {"architecture", truncate_text(model.architecture)},
          {"compute", version_text(model.compute_major, model.compute_minor)},
          {"memoryMiB", model.memory_mib}};
}

json json_of(const NodeGpu& gpu) {
  json object = {{"uuid", truncate_text(gpu.uuid)}, {"model", gpu.model}, {"state", enum_name(gpu.state)}};
  if (gpu.numa) object["numa"] = *gpu.numa;
  if (!gpu.reason.empty()) object["reason"] = truncate_text(gpu.reason);
  if (!gpu.load.empty()) object["load"] = gpu.load;
  if (gpu.now.busy_percent != 0) object["busy"] = gpu.now.busy_percent;
  if (gpu.now.memory_percent != 0) object["memory"] = gpu.now.memory_percent;
  if (gpu.now.held_outside_pods) object["heldOutsidePods"] = true;
  return object;
}

json json_of(const ResourceUnit& unit) {
  json object = {{"gpu", unit.gpu}};
  if (!unit.profile.empty()) object["profile"] = truncate_text(unit.profile);
  if (unit.memory_mib != 0) object["memoryMiB"] = unit.memory_mib;
  if (unit.slice != 0) object["slice"] = unit.slice;
  if (unit.shares != 1) object["shares"] = unit.shares;
  if (unit.share_mib != 0) object["shareMiB"] = unit.share_mib;
  if (unit.unavailable != 0) object["out"] = unit.unavailable;
  if (!unit.unavailable_reason.empty()) object["why"] = truncate_text(unit.unavailable_reason);
  return object;
}

json json_of(const NodeResource& resource) {
  json units = json::array();
  for (const auto& unit : resource.units) units.push_back(json_of(unit));
  json object = {{"name", resource.name.str()},
                 {"sharing", kSharings[static_cast<std::size_t>(resource.sharing)]},
                 {"units", std::move(units)}};
  if (resource.shares_on != placement::SharesOn::kAnyGpu)
    object["sharesOn"] = placement::shares_on_name(resource.shares_on);
  return object;
}

json json_of(const PodAllocation& allocation) {
  json parts = json::array();
  for (const auto& part : allocation.parts) parts.push_back({part.resource, part.unit, part.shares});
  return {{"pod", allocation.pod}, {"holds", std::move(parts)}};
}

// `grade` is for readers; the decoder takes what it is made of.
json json_of(const fraction::LimitMeans& means) {
  json object = {{"grade", fraction::limit_grade_name(fraction::grade_of_node(means).grade)}};
  if (means.has_driver_limit) object["byDriver"] = true;
  if (means.ends_excess) object["byAudit"] = true;
  if (means.mps_process_mib != 0) object["mpsMiB"] = means.mps_process_mib;
  if (!means.no_driver_limit.empty()) object["whyNotByDriver"] = truncate_text(means.no_driver_limit);
  if (!means.no_audit.empty()) object["whyNotByAudit"] = truncate_text(means.no_audit);
  return object;
}

json json_of(const ControllerLoad& load) {
  return {{"name", load.controller},
          {"load", encode_curve(load.curve)},
          {"hours", load.hours},
          {"lastHour", load.last_hour}};
}

// Reads one object and keeps the first error.
class FieldReader {
 public:
  FieldReader(const json& object, std::string where, std::optional<Error>& wrong)
      : object_(object), path_(std::move(where)), error_(wrong) {
    if (!object_.is_object()) reject_field("", "is not an object");
  }

  void reject_field(std::string_view field, std::string_view what) {
    std::string path = path_;
    if (!field.empty()) path.append(path.empty() ? "" : ".").append(field);
    reject_path(path, what);
  }
  // `path` starts at the root.
  void reject_path(const std::string& path, std::string_view what) {
    if (!error_) error_ = Error(Code::kInvalidArgument, path + " " + std::string(what));
  }

  const json& get_field(const char* field) const {
    static const json kNull;
    const auto found = object_.find(field);
    return object_.is_object() && found != object_.end() ? *found : kNull;
  }
  std::string read_string(const char* field, std::size_t limit = kMaxTextBytes) {
    const auto& value = get_field(field);
    if (value.is_null()) return {};
    if (!value.is_string()) return reject_field(field, "is not a string"), std::string();
    auto text = value.get<std::string>();
    if (text.size() > limit) reject_field(field, "is longer than " + std::to_string(limit) + " bytes");
    return text;
  }
  template <class T>
  T read_number(const char* field, T absent, std::uint64_t limit) {
    const auto& value = get_field(field);
    if (value.is_null()) return absent;
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > limit) {
      reject_field(field, "is not a whole number up to " + std::to_string(limit));
      return absent;
    }
    return static_cast<T>(value.get<std::uint64_t>());
  }
  bool read_flag(const char* field) {
    const auto& value = get_field(field);
    if (!value.is_null() && !value.is_boolean()) reject_field(field, "is neither true nor false");
    return value.is_boolean() && value.get<bool>();
  }
  template <class T, std::size_t N>
  T read_enum(const char* field, const std::array<std::string_view, N>& names) {
    const auto& value = get_field(field);
    if (value.is_null()) return T{};
    const auto found = value.is_string() ? std::ranges::find(names, value.get<std::string>()) : names.end();
    if (found == names.end()) return reject_field(field, "is not a value that this version supports"), T{};
    return static_cast<T>(found - names.begin());
  }
  // The two numbers of "12.8"; "" is 0.0.
  std::pair<unsigned, unsigned> read_version(const char* field) {
    const std::string text = this->read_string(field);
    unsigned major = 0, minor = 0;
    const char* const end = text.data() + text.size();
    auto read = std::from_chars(text.data(), end, major);
    if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '.') {
      read = std::from_chars(read.ptr + 1, end, minor);
    }
    if (!text.empty() && (read.ec != std::errc{} || read.ptr != end || major > 1000 || minor > 99)) {
      reject_field(field, "is not a version such as 12.8");
      return {0, 0};
    }
    return {major, minor};
  }
  // Calls `each` for every element of a list of at most `limit`; a missing list is empty.
  template <class Each>
  void read_list(const char* field, std::size_t limit, Each each) {
    const auto& value = get_field(field);
    if (value.is_null()) return;
    if (!value.is_array()) return reject_field(field, "is not a list");
    if (value.size() > limit)
      return reject_field(field, "has more than " + std::to_string(limit) + " elements");
    for (std::size_t i = 0; i < value.size() && !error_; ++i) {
      each(value[i], (path_.empty() ? "" : path_ + ".") + field + "[" + std::to_string(i) + "]");
    }
  }
  bool is_valid() const { return !error_; }

 private:
  const json& object_;
  const std::string path_;
  std::optional<Error>& error_;
};

std::vector<ControllerLoad> read_controllers(FieldReader& spec_or_status, std::optional<Error>& wrong) {
  std::vector<ControllerLoad> controllers;
  spec_or_status.read_list("controllers", kMaxControllers, [&](const json& object, std::string where) {
    FieldReader fields(object, std::move(where), wrong);
    ControllerLoad load{.controller = fields.read_string("name", kMaxPodBytes),
                        .curve = {},
                        .hours = fields.read_number<std::uint32_t>("hours", 0, kMaxHour),
                        .last_hour = fields.read_number<std::int64_t>("lastHour", 0, kMaxHour)};
    if (load.controller.empty()) fields.reject_field("name", "is missing");
    if (auto curve = decode_curve(fields.read_string("load"))) {
      load.curve = *curve;
    } else {
      fields.reject_field("load", "is not a load curve: " + curve.error().message());
    }
    controllers.push_back(std::move(load));
  });
  return controllers;
}

class GpuNodeDecoder {
 public:
  Result<GpuNode> decode_spec(const json& spec) {
    FieldReader fields(spec, "spec", error_);
    if (const auto version = fields.read_number<unsigned>("version", 0, kMaxNumber);
        version != kVersion && !error_) {
      return fail(Code::kUnsupported,
                  "spec.version is " + std::to_string(version) + ", expected " + std::to_string(kVersion));
    }
    node_.driver = fields.read_string("driver");
    const auto [major, minor] = fields.read_version("cuda");
    node_.cuda_version = major * 1000 + minor * 10;
    node_.rules.policy = fields.read_enum<placement::Policy>("placement", kPolicies);
    node_.rules.shared = fields.read_enum<placement::SharedPolicy>("shared", kSharedPolicies);
    // Absent in what an older agent publishes, which does not choose by load.
    node_.rules.load = fields.read_enum<placement::LoadPolicy>("placementLoad", kLoadPolicies);
    fields.read_list("models", kMaxNodeGpus,
                     [&](const json& object, std::string where) { read_model(object, std::move(where)); });
    fields.read_list("gpus", kMaxNodeGpus,
                     [&](const json& object, std::string where) { read_gpu(object, std::move(where)); });
    read_links(fields.get_field("links"));
    fields.read_list("resources", kMaxResources,
                     [&](const json& object, std::string where) { read_resource(object, std::move(where)); });
    fields.read_list("holders", kMaxAllocations, [&](const json& object, std::string where) {
      read_allocation(object, std::move(where));
    });
    node_.controllers = read_controllers(fields, error_);
    if (!fields.get_field("memoryLimit").is_null()) read_memory_limit(fields.get_field("memoryLimit"));
    node_.no_compute_limit = fields.read_string("whyNoComputeLimit");
    node_.mig_offer = decode_mig_offer(fields.get_field("migOnDemand"));
    if (error_) return fail(*error_);
    return std::move(node_);
  }

 private:
  void read_model(const json& object, std::string where) {
    FieldReader fields(object, std::move(where), error_);
    GpuModel model{.name = fields.read_string("name"), .architecture = fields.read_string("architecture")};
    std::tie(model.compute_major, model.compute_minor) = fields.read_version("compute");
    model.memory_mib = fields.read_number<std::uint64_t>("memoryMiB", 0, kMaxMib);
    node_.models.push_back(std::move(model));
  }

  void read_gpu(const json& object, std::string where) {
    FieldReader fields(object, std::move(where), error_);
    NodeGpu gpu;
    gpu.uuid = fields.read_string("uuid");
    gpu.model = fields.read_number<std::size_t>("model", 0, kMaxNodeGpus);
    if (gpu.model >= node_.models.size()) fields.reject_field("model", "is not the index of a model");
    if (!fields.get_field("numa").is_null()) gpu.numa = fields.read_number<int>("numa", 0, 1u << 20);
    const std::string state = fields.read_string("state");
    const auto* const known = std::ranges::find_if(health::kDeviceStates,
                                                   [&](auto one) { return health::enum_name(one) == state; });
    // An unknown state of a later version counts as quarantined.
    gpu.state = known != std::end(health::kDeviceStates) ? *known : health::DeviceState::kQuarantined;
    gpu.reason = fields.read_string("reason");
    gpu.load = fields.read_string("load", kMaxGpuNodeBytes);
    gpu.now = {.busy_percent = fields.read_number<std::uint8_t>("busy", 0, kMaxPercent),
               .memory_percent = fields.read_number<std::uint8_t>("memory", 0, kMaxPercent),
               .held_outside_pods = fields.read_flag("heldOutsidePods")};
    node_.gpus.push_back(std::move(gpu));
  }

  void read_links(const json& object) {
    if (error_) return;
    LinkMatrix matrix;
    if (object.is_null()) {
      node_.pairs.resize(node_.gpus.size() * node_.gpus.size());
      return;
    }
    FieldReader fields(object, "spec.links", error_);
    fields.read_list("classes", kMaxLinkClasses, [&](const json& value, const std::string& where) {
      if (!value.is_string()) return fields.reject_path(where, "is not a string");
      matrix.classes.push_back(value.get<std::string>());
    });
    matrix.pairs = fields.read_string("pairs", kMaxNodeGpus * kMaxNodeGpus);
    if (error_) return;
    auto pairs = decode_link_matrix(matrix, node_.gpus.size());
    if (!pairs) return fields.reject_field("", pairs.error().message());
    node_.pairs = std::move(*pairs);
  }

  void read_resource(const json& object, std::string where) {
    FieldReader fields(object, where, error_);
    NodeResource resource{
        .name = ResourceName(fields.read_string("name")),
        .sharing = fields.read_enum<Sharing>("sharing", kSharings),
        .shares_on = fields.read_enum<placement::SharesOn>("sharesOn", placement::kSharesOnNames),
        .units = {}};
    if (resource.name.empty()) fields.reject_field("name", "is missing");
    std::size_t shares = 0;
    fields.read_list("units", kMaxUnits, [&](const json& one, std::string place) {
      FieldReader of_unit(one, std::move(place), error_);
      ResourceUnit unit{.gpu = of_unit.read_number<std::size_t>("gpu", 0, kMaxNodeGpus),
                        .profile = of_unit.read_string("profile"),
                        .memory_mib = of_unit.read_number<std::uint64_t>("memoryMiB", 0, kMaxMib),
                        .slice = of_unit.read_number<unsigned>("slice", 0, kMaxNumber),
                        .shares = of_unit.read_number<unsigned>("shares", 1, kMaxShares),
                        .share_mib = of_unit.read_number<std::uint64_t>("shareMiB", 0, kMaxMib),
                        .unavailable = of_unit.read_number<unsigned>("out", 0, kMaxShares),
                        .unavailable_reason = of_unit.read_string("why")};
      if (unit.gpu >= node_.gpus.size()) of_unit.reject_field("gpu", "is not the index of a GPU");
      if (unit.shares == 0) of_unit.reject_field("shares", "is 0");
      if (unit.unavailable > unit.shares) of_unit.reject_field("out", "exceeds its shares");
      shares += unit.shares;
      resource.units.push_back(std::move(unit));
    });
    if (shares > kMaxShares)
      fields.reject_field("units", "have more than " + std::to_string(kMaxShares) + " shares");
    node_.resources.push_back(std::move(resource));
  }

  void read_memory_limit(const json& object) {
    FieldReader fields(object, "spec.memoryLimit", error_);
    node_.memory_limit = {.has_driver_limit = fields.read_flag("byDriver"),
                          .no_driver_limit = fields.read_string("whyNotByDriver"),
                          .ends_excess = fields.read_flag("byAudit"),
                          .no_audit = fields.read_string("whyNotByAudit"),
                          .mps_process_mib = fields.read_number<std::uint64_t>("mpsMiB", 0, kMaxMib)};
  }

  void read_allocation(const json& object, std::string where) {
    FieldReader fields(object, std::move(where), error_);
    PodAllocation allocation{.pod = fields.read_string("pod", kMaxPodBytes), .parts = {}};
    fields.read_list("holds", kMaxUnits, [&](const json& part, const std::string& place) {
      const auto is_index = [](const json& value) { return value.is_number_unsigned(); };
      if (!part.is_array() || part.size() != 3 || !std::ranges::all_of(part, is_index)) {
        return fields.reject_path(place, "is not [resource, unit, shares]");
      }
      const auto resource = part[0].get<std::uint64_t>(), unit = part[1].get<std::uint64_t>(),
                 shares = part[2].get<std::uint64_t>();
      if (resource >= node_.resources.size() || unit >= node_.resources[resource].units.size() ||
          shares > node_.resources[resource].units[unit].shares) {
        return fields.reject_path(place, "refers to nothing in spec.resources");
      }
      allocation.parts.push_back({resource, unit, static_cast<unsigned>(shares)});
    });
    node_.allocations.push_back(std::move(allocation));
  }

  GpuNode node_;
  std::optional<Error> error_;
};

// Both drop what exceeds the decoder's limits.
std::vector<ControllerLoad> within_limits(std::vector<ControllerLoad> controllers) {
  std::erase_if(controllers, [](const auto& load) { return load.controller.size() > kMaxPodBytes; });
  if (controllers.size() > kMaxControllers) controllers.resize(kMaxControllers);
  return controllers;
}

GpuNode within_limits(GpuNode node) {
  if (node.gpus.size() > kMaxNodeGpus || node.models.size() > kMaxNodeGpus) return {};
  if (node.resources.size() > kMaxResources) node.resources.resize(kMaxResources);
  std::size_t units = 0;
  for (auto& resource : node.resources) {
    resource.units.resize(std::min(resource.units.size(), kMaxUnits - units));
    units += resource.units.size();
    unsigned shares = 0;
    for (auto& unit : resource.units) {
      const auto left = static_cast<unsigned>(kMaxShares - kMaxUnits) - shares;
      unit.shares = std::max(1U, std::min(unit.shares, left));
      unit.unavailable = std::min(unit.unavailable, unit.shares);
      shares += std::min(unit.shares, left);
    }
  }
  if (node.allocations.size() > kMaxAllocations) node.allocations.resize(kMaxAllocations);
  for (auto& allocation : node.allocations) {
    std::erase_if(allocation.parts, [&](const auto& part) {
      return part.resource >= node.resources.size() ||
             part.unit >= node.resources[part.resource].units.size();
    });
    for (auto& part : allocation.parts) {
      part.shares = std::min(part.shares, node.resources[part.resource].units[part.unit].shares);
    }
  }
  node.controllers = within_limits(std::move(node.controllers));
  return node;
}

json spec_json(const GpuNode& node) {
  json spec = {{"version", kVersion},
               {"summary", gpu_node_summary(node)},
               {"driver", truncate_text(node.driver)},
               {"cuda", cuda_version_text(node.cuda_version)},
               {"placement", kPolicies[static_cast<std::size_t>(node.rules.policy)]},
               {"shared", kSharedPolicies[static_cast<std::size_t>(node.rules.shared)]},
               {"placementLoad", kLoadPolicies[static_cast<std::size_t>(node.rules.load)]},
               {"models", json::array()},
               {"gpus", json::array()},
               {"resources", json::array()}};
  for (const auto& model : node.models) spec["models"].push_back(json_of(model));
  for (const auto& gpu : node.gpus) spec["gpus"].push_back(json_of(gpu));
  const auto links = encode_link_matrix(node.pairs, node.gpus.size());
  spec["links"] = {{"classes", links.classes}, {"pairs", links.pairs}};
  for (const auto& resource : node.resources) spec["resources"].push_back(json_of(resource));
  if (!node.allocations.empty()) spec["holders"] = json::array();
  for (const auto& allocation : node.allocations) spec["holders"].push_back(json_of(allocation));
  if (node.memory_limit != fraction::LimitMeans{}) spec["memoryLimit"] = json_of(node.memory_limit);
  if (!node.no_compute_limit.empty()) spec["whyNoComputeLimit"] = truncate_text(node.no_compute_limit);
  if (!node.mig_offer.resources.empty()) spec["migOnDemand"] = encode_mig_offer(node.mig_offer);
  if (!node.controllers.empty()) spec["controllers"] = json::array();
  for (const auto& load : node.controllers) spec["controllers"].push_back(json_of(load));
  return spec;
}

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string encode_spec(const GpuNode& node) { return dump(spec_json(within_limits(node))); }

std::string encode_status(std::vector<ControllerLoad> controllers) {
  json list = json::array();
  for (const auto& load : within_limits(std::move(controllers))) list.push_back(json_of(load));
  return dump({{"controllers", std::move(list)}});
}

Result<NamedGpuNode> decode_gpu_node(std::string_view object) {
  if (object.size() > kMaxGpuNodeBytes) {
    return fail(Code::kInvalidArgument,
                "a GpuNode is larger than " + std::to_string(kMaxGpuNodeBytes) + " bytes");
  }
  const auto value = parse_json(object);
  std::optional<Error> wrong;
  FieldReader top(value, "", wrong);
  if (wrong) return fail(Code::kInvalidArgument, "not a GpuNode: not a JSON object");
  FieldReader metadata(top.get_field("metadata"), "metadata", wrong);
  NamedGpuNode named{.name = metadata.read_string("name"),
                     .resource_version = metadata.read_string("resourceVersion"),
                     .node = {},
                     .known_elsewhere = {}};
  if (wrong) return fail(*wrong);
  if (named.name.empty()) return fail(Code::kInvalidArgument, "metadata.name is missing");
  auto node = GpuNodeDecoder().decode_spec(top.get_field("spec"));
  if (!node) return fail(node.error().code(), node.error().message(), "gpunode/" + named.name);
  named.node = std::move(*node);
  if (const auto& status = top.get_field("status"); !status.is_null()) {
    FieldReader fields(status, "status", wrong);
    named.known_elsewhere = read_controllers(fields, wrong);
    if (wrong) named.known_elsewhere.clear();
    named.mig_demand = decode_mig_demand(fields.get_field("migDemand"));
  }
  return named;
}

}  // namespace gpulet::scheduler
