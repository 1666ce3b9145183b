// GpuNode as JSON, both ways: what one version writes a later one reads, and whatever is in the cluster is
// bounded.
#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "scheduler/gpu_node.h"
#include "scheduler/link_matrix.h"

namespace gpulet::scheduler {
namespace {

using nlohmann::json;

constexpr unsigned kVersion = 1;  // of the spec's meaning; a field that may be missing needs no new one
constexpr std::array<std::string_view, 2> kPolicies = {"best-effort", "tightest"};
constexpr std::array<std::string_view, 2> kSharedPolicies = {"distributed", "packed"};
constexpr std::array<std::string_view, 3> kSharings = {"none", "time-slicing", "mps"};
constexpr std::uint64_t kMaxMib = 1u << 30;  // a pebibyte
constexpr unsigned kMaxNumber = 1'000'000;

std::string cut(const std::string& text) { return text.substr(0, kMaxTextBytes); }

std::string dotted(unsigned major, unsigned minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

json json_of(const GpuModel& model) {
  return {{"name", cut(model.name)},
          {"architecture", cut(model.architecture)},
          {"compute", dotted(model.compute_major, model.compute_minor)},
          {"memoryMiB", model.memory_mib}};
}

json json_of(const NodeGpu& gpu) {
  json object = {{"uuid", cut(gpu.uuid)}, {"model", gpu.model}, {"state", name(gpu.state)}};
  if (gpu.numa) object["numa"] = *gpu.numa;
  if (!gpu.reason.empty()) object["reason"] = cut(gpu.reason);
  if (!gpu.load.empty()) object["load"] = gpu.load;
  return object;
}

json json_of(const Unit& unit) {
  json object = {{"gpu", unit.gpu}};
  if (!unit.profile.empty()) object["profile"] = cut(unit.profile);
  if (unit.memory_mib != 0) object["memoryMiB"] = unit.memory_mib;
  if (unit.slice != 0) object["slice"] = unit.slice;
  if (unit.shares != 1) object["shares"] = unit.shares;
  if (unit.share_mib != 0) object["shareMiB"] = unit.share_mib;
  if (unit.out != 0) object["out"] = unit.out;
  if (!unit.why.empty()) object["why"] = cut(unit.why);
  return object;
}

json json_of(const NodeResource& resource) {
  json units = json::array();
  for (const auto& unit : resource.units) units.push_back(json_of(unit));
  return {{"name", resource.name.str()},
          {"sharing", kSharings[static_cast<std::size_t>(resource.sharing)]},
          {"units", std::move(units)}};
}

json json_of(const PodHolding& holding) {
  json parts = json::array();
  for (const auto& part : holding.parts) parts.push_back({part.resource, part.unit, part.shares});
  return {{"pod", holding.pod}, {"holds", std::move(parts)}};
}

// Walks one object, and remembers the first thing that is wrong with it.
class Fields {
 public:
  Fields(const json& object, std::string where, std::optional<Error>& wrong)
      : object_(object), where_(std::move(where)), wrong_(wrong) {
    if (!object_.is_object()) refuse("", "is no object");
  }

  void refuse(std::string_view field, std::string_view what) {
    std::string path = where_;
    if (!field.empty()) path.append(path.empty() ? "" : ".").append(field);
    refuse_at(path, what);
  }
  // `path` from the top.
  void refuse_at(const std::string& path, std::string_view what) {
    if (!wrong_) wrong_ = Error(Code::kInvalidArgument, path + " " + std::string(what));
  }

  const json& at(const char* field) const {
    static const json kNull;
    const auto found = object_.find(field);
    return object_.is_object() && found != object_.end() ? *found : kNull;
  }
  std::string text(const char* field, std::size_t limit = kMaxTextBytes) {
    const auto& value = at(field);
    if (value.is_null()) return {};
    if (!value.is_string()) return refuse(field, "is no text"), std::string();
    auto text = value.get<std::string>();
    if (text.size() > limit) refuse(field, "is longer than " + std::to_string(limit) + " bytes");
    return text;
  }
  template <class T>
  T number(const char* field, T absent, std::uint64_t limit) {
    const auto& value = at(field);
    if (value.is_null()) return absent;
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > limit) {
      refuse(field, "is no whole number of at most " + std::to_string(limit));
      return absent;
    }
    return static_cast<T>(value.get<std::uint64_t>());
  }
  template <class T, std::size_t N>
  T choice(const char* field, const std::array<std::string_view, N>& names) {
    const auto& value = at(field);
    if (value.is_null()) return T{};
    const auto found = value.is_string() ? std::ranges::find(names, value.get<std::string>()) : names.end();
    if (found == names.end()) return refuse(field, "is none of the values that this version knows"), T{};
    return static_cast<T>(found - names.begin());
  }
  // The first of "12.8" and the second; "" is 0.0.
  std::pair<unsigned, unsigned> version(const char* field) {
    const std::string text = this->text(field);
    unsigned major = 0, minor = 0;
    const char* const end = text.data() + text.size();
    auto read = std::from_chars(text.data(), end, major);
    if (read.ec == std::errc{} && read.ptr != end && *read.ptr == '.') {
      read = std::from_chars(read.ptr + 1, end, minor);
    }
    if (!text.empty() && (read.ec != std::errc{} || read.ptr != end || major > 1000 || minor > 99)) {
      refuse(field, "is no version as 12.8 is one");
      return {0, 0};
    }
    return {major, minor};
  }
  // Calls `each` for every element of a list of at most `limit`; a list that is not there has none.
  template <class Each>
  void list(const char* field, std::size_t limit, Each each) {
    const auto& value = at(field);
    if (value.is_null()) return;
    if (!value.is_array()) return refuse(field, "is no list");
    if (value.size() > limit) return refuse(field, "has more than " + std::to_string(limit) + " elements");
    for (std::size_t i = 0; i < value.size() && !wrong_; ++i) {
      each(value[i], (where_.empty() ? "" : where_ + ".") + field + "[" + std::to_string(i) + "]");
    }
  }
  bool fine() const { return !wrong_; }

 private:
  const json& object_;
  const std::string where_;
  std::optional<Error>& wrong_;
};

class Decoder {
 public:
  Result<GpuNode> decode(const json& spec) {
    Fields fields(spec, "spec", wrong_);
    if (const auto version = fields.number<unsigned>("version", 0, kMaxNumber);
        version != kVersion && !wrong_) {
      return fail(Code::kUnsupported, "spec.version is " + std::to_string(version) +
                                          ", and this program knows " + std::to_string(kVersion));
    }
    node_.driver = fields.text("driver");
    const auto [major, minor] = fields.version("cuda");
    node_.cuda_version = major * 1000 + minor * 10;
    node_.rules.policy = fields.choice<placement::Policy>("placement", kPolicies);
    node_.rules.shared = fields.choice<placement::SharedPolicy>("shared", kSharedPolicies);
    fields.list("models", kMaxNodeGpus,
                [&](const json& object, std::string where) { model(object, std::move(where)); });
    fields.list("gpus", kMaxNodeGpus,
                [&](const json& object, std::string where) { gpu(object, std::move(where)); });
    links(fields.at("links"));
    fields.list("resources", kMaxResources,
                [&](const json& object, std::string where) { resource(object, std::move(where)); });
    fields.list("holders", kMaxHolders,
                [&](const json& object, std::string where) { holder(object, std::move(where)); });
    if (wrong_) return fail(*wrong_);
    return std::move(node_);
  }

 private:
  void model(const json& object, std::string where) {
    Fields fields(object, std::move(where), wrong_);
    GpuModel model{.name = fields.text("name"), .architecture = fields.text("architecture")};
    std::tie(model.compute_major, model.compute_minor) = fields.version("compute");
    model.memory_mib = fields.number<std::uint64_t>("memoryMiB", 0, kMaxMib);
    node_.models.push_back(std::move(model));
  }

  void gpu(const json& object, std::string where) {
    Fields fields(object, std::move(where), wrong_);
    NodeGpu gpu;
    gpu.uuid = fields.text("uuid");
    gpu.model = fields.number<std::size_t>("model", 0, kMaxNodeGpus);
    if (gpu.model >= node_.models.size()) fields.refuse("model", "is the number of no model");
    if (!fields.at("numa").is_null()) gpu.numa = fields.number<int>("numa", 0, 1u << 20);
    const std::string state = fields.text("state");
    const auto* const known =
        std::ranges::find_if(health::kStates, [&](auto one) { return health::name(one) == state; });
    // A state of a later version: not to be counted on.
    gpu.state = known != std::end(health::kStates) ? *known : health::State::kQuarantined;
    gpu.reason = fields.text("reason");
    gpu.load = fields.text("load", kMaxGpuNodeBytes);
    node_.gpus.push_back(std::move(gpu));
  }

  void links(const json& object) {
    if (wrong_) return;
    LinkMatrix matrix;
    if (object.is_null()) {
      node_.pairs.resize(node_.gpus.size() * node_.gpus.size());
      return;
    }
    Fields fields(object, "spec.links", wrong_);
    fields.list("classes", kMaxLinkClasses, [&](const json& value, const std::string& where) {
      if (!value.is_string()) return fields.refuse_at(where, "is no text");
      matrix.classes.push_back(value.get<std::string>());
    });
    matrix.pairs = fields.text("pairs", kMaxNodeGpus * kMaxNodeGpus);
    if (wrong_) return;
    auto pairs = pairs_of(matrix, node_.gpus.size());
    if (!pairs) return fields.refuse("", pairs.error().message());
    node_.pairs = std::move(*pairs);
  }

  void resource(const json& object, std::string where) {
    Fields fields(object, where, wrong_);
    NodeResource resource{.name = ResourceName(fields.text("name")),
                          .sharing = fields.choice<Sharing>("sharing", kSharings),
                          .units = {}};
    if (resource.name.empty()) fields.refuse("name", "is missing");
    std::size_t shares = 0;
    fields.list("units", kMaxUnits, [&](const json& one, std::string place) {
      Fields of_unit(one, std::move(place), wrong_);
      Unit unit{.gpu = of_unit.number<std::size_t>("gpu", 0, kMaxNodeGpus),
                .profile = of_unit.text("profile"),
                .memory_mib = of_unit.number<std::uint64_t>("memoryMiB", 0, kMaxMib),
                .slice = of_unit.number<unsigned>("slice", 0, kMaxNumber),
                .shares = of_unit.number<unsigned>("shares", 1, kMaxShares),
                .share_mib = of_unit.number<std::uint64_t>("shareMiB", 0, kMaxMib),
                .out = of_unit.number<unsigned>("out", 0, kMaxShares),
                .why = of_unit.text("why")};
      if (unit.gpu >= node_.gpus.size()) of_unit.refuse("gpu", "is the number of no GPU");
      if (unit.shares == 0) of_unit.refuse("shares", "is 0");
      if (unit.out > unit.shares) of_unit.refuse("out", "is more than its shares");
      shares += unit.shares;
      resource.units.push_back(std::move(unit));
    });
    if (shares > kMaxShares)
      fields.refuse("units", "have more than " + std::to_string(kMaxShares) + " shares");
    node_.resources.push_back(std::move(resource));
  }

  void holder(const json& object, std::string where) {
    Fields fields(object, std::move(where), wrong_);
    PodHolding holding{.pod = fields.text("pod", 2 * kMaxTextBytes + 1), .parts = {}};
    fields.list("holds", kMaxUnits, [&](const json& part, const std::string& place) {
      const auto is_index = [](const json& value) { return value.is_number_unsigned(); };
      if (!part.is_array() || part.size() != 3 || !std::ranges::all_of(part, is_index)) {
        return fields.refuse_at(place, "is not [resource, unit, shares]");
      }
      const auto resource = part[0].get<std::uint64_t>(), unit = part[1].get<std::uint64_t>(),
                 shares = part[2].get<std::uint64_t>();
      if (resource >= node_.resources.size() || unit >= node_.resources[resource].units.size() ||
          shares > node_.resources[resource].units[unit].shares) {
        return fields.refuse_at(place, "names what is not in spec.resources");
      }
      holding.parts.push_back({resource, unit, static_cast<unsigned>(shares)});
    });
    node_.holders.push_back(std::move(holding));
  }

  GpuNode node_;
  std::size_t units_ = 0;
  std::optional<Error> wrong_;
};

// What a decoder would take of it: beyond the limits the rest is not told.
GpuNode trimmed(GpuNode node) {
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
      unit.out = std::min(unit.out, unit.shares);
      shares += std::min(unit.shares, left);
    }
  }
  if (node.holders.size() > kMaxHolders) node.holders.resize(kMaxHolders);
  for (auto& holder : node.holders) {
    std::erase_if(holder.parts, [&](const auto& part) {
      return part.resource >= node.resources.size() ||
             part.unit >= node.resources[part.resource].units.size();
    });
    for (auto& part : holder.parts) {
      part.shares = std::min(part.shares, node.resources[part.resource].units[part.unit].shares);
    }
  }
  return node;
}

json spec_of(const GpuNode& node) {
  json spec = {{"version", kVersion},
               {"summary", summary(node)},
               {"driver", cut(node.driver)},
               {"cuda", dotted(node.cuda_version / 1000, node.cuda_version % 1000 / 10)},
               {"placement", kPolicies[static_cast<std::size_t>(node.rules.policy)]},
               {"shared", kSharedPolicies[static_cast<std::size_t>(node.rules.shared)]},
               {"models", json::array()},
               {"gpus", json::array()},
               {"resources", json::array()}};
  for (const auto& model : node.models) spec["models"].push_back(json_of(model));
  for (const auto& gpu : node.gpus) spec["gpus"].push_back(json_of(gpu));
  const auto links = link_matrix(node.pairs, node.gpus.size());
  spec["links"] = {{"classes", links.classes}, {"pairs", links.pairs}};
  for (const auto& resource : node.resources) spec["resources"].push_back(json_of(resource));
  if (!node.holders.empty()) spec["holders"] = json::array();
  for (const auto& holding : node.holders) spec["holders"].push_back(json_of(holding));
  return spec;
}

}  // namespace

std::string encode_spec(const GpuNode& node) {
  return spec_of(trimmed(node)).dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<NamedGpuNode> decode_gpu_node(std::string_view object) {
  if (object.size() > kMaxGpuNodeBytes) {
    return fail(Code::kInvalidArgument,
                "a GpuNode is larger than " + std::to_string(kMaxGpuNodeBytes) + " bytes");
  }
  const auto value = json::parse(object, nullptr, false);
  std::optional<Error> wrong;
  Fields top(value, "", wrong);
  if (wrong) return fail(Code::kInvalidArgument, "that is no GpuNode: no JSON object");
  Fields metadata(top.at("metadata"), "metadata", wrong);
  NamedGpuNode named{
      .name = metadata.text("name"), .resource_version = metadata.text("resourceVersion"), .node = {}};
  if (wrong) return fail(*wrong);
  if (named.name.empty()) return fail(Code::kInvalidArgument, "metadata.name is missing");
  auto node = Decoder().decode(top.at("spec"));
  if (!node) return fail(node.error().code(), node.error().message(), "gpunode/" + named.name);
  named.node = std::move(*node);
  return named;
}

}  // namespace gpulet::scheduler
