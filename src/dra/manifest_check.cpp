#include "dra/manifest_check.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "config/yaml_documents.h"
#include "dra/gpu_groups.h"

namespace gpulet::dra {
namespace {

using config::yaml::Node;
using nlohmann::json;

constexpr std::string_view kGroup = "resource.k8s.io/";
constexpr std::string_view kOwnDomain = "gpulet.io/";  // of attributes

// Where each kind has its configs and constraints.
struct ConfigKind {
  std::string_view kind;
  std::string_view parent;  // of "config" and "constraints"
};
constexpr std::array<ConfigKind, 3> kConfigKinds = {{{"ResourceClaim", "spec.devices"},
                                                     {"ResourceClaimTemplate", "spec.spec.devices"},
                                                     {"DeviceClass", "spec"}}};

const Node* member(const Node& node, std::string_view name) {
  if (node.kind != Node::Kind::kMapping) return nullptr;
  const auto found = std::ranges::find(node.entries, name, &config::yaml::Entry::key);
  return found == node.entries.end() ? nullptr : &found->value;
}

// "spec.devices"; nullptr where one of the fields is missing.
const Node* descend(const Node& node, std::string_view path) {
  const Node* found = &node;
  while (found != nullptr && !path.empty()) {
    const auto dot = path.find('.');
    found = member(*found, path.substr(0, dot));
    path.remove_prefix(dot == std::string_view::npos ? path.size() : dot + 1);
  }
  return found;
}

std::string text_of(const Node& node, std::string_view path) {
  const Node* found = descend(node, path);
  return found != nullptr && found->kind == Node::Kind::kScalar ? found->scalar : std::string();
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> values) {
  return std::ranges::find(values, text) != values.end();
}

// A scalar without quotes, as kubectl types it (YAML 1.1).
json plain_value(const std::string& text) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"})) return true;
  if (is_one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"})) {
    return false;
  }
  if (text.find_first_not_of("+-.0123456789eE") != std::string::npos) return text;
  json number = parse_json(text.substr(text.starts_with('+') ? 1 : 0));
  return number.is_number() ? number : json(text);
}

json to_json(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return nullptr;
    case Node::Kind::kScalar:
      return node.plain ? plain_value(node.scalar) : json(node.scalar);
    case Node::Kind::kSequence: {
      json list = json::array();
      for (const auto& item : node.items) list.push_back(to_json(item));
      return list;
    }
    case Node::Kind::kMapping:
      break;
  }
  json object = json::object();
  for (const auto& entry : node.entries) object[entry.key] = to_json(entry.value);
  return object;
}

class ManifestChecker {
 public:
  ManifestChecker(std::string_view driver, const FeatureGates& gates) : driver_(driver), gates_(gates) {}

  void check_document(std::size_t number, const Node& root) {
    document_ = number;
    check_object(root);
  }

  ManifestReport take_report() { return std::move(report_); }

 private:
  void check_object(const Node& object) {
    const std::string kind = text_of(object, "kind");
    if (const Node* items = member(object, "items"); items != nullptr && kind.ends_with("List")) {
      for (const auto& item : items->items) check_object(item);
      return;
    }
    if (kind.empty() || text_of(object, "apiVersion").empty()) {
      name_ = "document";
      return add_problem(object, "", "expected a Kubernetes object, with apiVersion and kind");
    }
    ++report_.objects;
    if (!text_of(object, "apiVersion").starts_with(kGroup)) return;
    const auto found = std::ranges::find(kConfigKinds, kind, &ConfigKind::kind);
    if (found == kConfigKinds.end()) return;
    name_ = kind + " " + object_name(object);
    const Node* parent = descend(object, found->parent);
    if (parent == nullptr) return;
    check_list(*parent, found->parent, "config", &ManifestChecker::check_config);
    check_list(*parent, found->parent, "constraints", &ManifestChecker::check_constraint);
  }

  void check_list(const Node& parent, std::string_view parent_path, std::string_view name,
                  void (ManifestChecker::*check)(const Node&, const std::string&)) {
    const Node* list = member(parent, name);
    if (list == nullptr || list->kind == Node::Kind::kNull) return;
    const std::string path = std::string(parent_path) + "." + std::string(name);
    if (list->kind != Node::Kind::kSequence) return add_problem(*list, path, "expected a list");
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      (this->*check)(list->items[i], path + "[" + std::to_string(i) + "]");
    }
  }

  static std::string object_name(const Node& object) {
    const std::string name_space = text_of(object, "metadata.namespace");
    std::string name = text_of(object, "metadata.name");
    if (name.empty()) name = text_of(object, "metadata.generateName");
    return (name_space.empty() ? "" : name_space + "/") + (name.empty() ? "without a name" : name);
  }

  // With an attribute that no device has, the claim would wait for ever.
  void check_constraint(const Node& constraint, const std::string& path) {
    const std::vector<std::string> known(kGroupAttributes.begin(), kGroupAttributes.end());
    for (const std::string_view field : {"matchAttribute", "distinctAttribute"}) {
      const std::string name = text_of(constraint, field);
      if (!name.starts_with(kOwnDomain) || std::ranges::find(known, name) != known.end()) continue;
      add_problem(*member(constraint, field), path + "." + std::string(field),
                  "unknown attribute \"" + name + "\", expected one of " + text::join(known, ", "));
    }
  }

  void check_config(const Node& entry, const std::string& path) {
    const Node* opaque = member(entry, "opaque");
    if (opaque == nullptr) {
      return add_problem(entry, path, "only opaque parameters are supported by this driver");
    }
    if (text_of(*opaque, "driver") != driver_) return;
    ++report_.configs;
    const std::string field = path + ".opaque.parameters";
    const Node* parameters = member(*opaque, "parameters");
    if (parameters == nullptr || parameters->kind != Node::Kind::kMapping) {
      return add_problem(parameters == nullptr ? *opaque : *parameters, field, "expected an object");
    }
    const auto config =
        parse_device_config(to_json(*parameters).dump(-1, ' ', false, kReplaceInvalid), gates_);
    if (!config) return add_config_problem(*parameters, field, config.error().full_message());
    if (const auto* sharing = sharing_of(*config); sharing != nullptr) {
      const auto checked = check_sharing(*sharing);
      if (!checked) return add_config_problem(*parameters, field, checked.error().message());
    }
    const auto reason = unsupported_reason(*config);
    if (reason.empty() || names_only_alternatives(entry)) return;
    add_problem(*member(*parameters, "kind"), field + ".kind",
                "a " + std::string(kind_name(*config)) + " applies to no device: " + std::string(reason));
  }

  // Whether each request of the config is one of several (firstAvailable: "gpu/vfio"), so that the scheduler
  // can choose another.
  static bool names_only_alternatives(const Node& entry) {
    const Node* requests = member(entry, "requests");
    return requests != nullptr && requests->kind == Node::Kind::kSequence && !requests->items.empty() &&
           std::ranges::all_of(requests->items, [](const Node& request) {
             return request.scalar.find('/') != std::string::npos;
           });
  }

  // The parser's message begins with the field's path, "sharing.strategy: …", if it is about a field.
  void add_config_problem(const Node& parameters, const std::string& field, const std::string& message) {
    const auto end = message.find(": ");
    const std::string_view inner = std::string_view(message).substr(0, end);
    const Node* node = end == std::string::npos ? nullptr : descend(parameters, inner);
    if (end == std::string::npos || (node == nullptr && inner.find(' ') != std::string_view::npos)) {
      return add_problem(parameters, field, message);
    }
    add_problem(node == nullptr ? parameters : *node, field + "." + std::string(inner),
                message.substr(end + 2));
  }

  void add_problem(const Node& node, const std::string& field, std::string message) {
    report_.problems.push_back(
        {node.position.line, node.position.column, document_, name_, field, std::move(message)});
  }

  static constexpr auto kReplaceInvalid = json::error_handler_t::replace;

  const std::string_view driver_;
  const FeatureGates& gates_;
  std::size_t document_ = 0;  // that is being checked
  std::string name_;          // of its object
  ManifestReport report_;
};

}  // namespace

Result<ManifestReport> check_manifests(std::string_view text, const std::string& file,
                                       std::string_view driver, const FeatureGates& gates) {
  GPULET_TRY_ASSIGN(const auto documents, config::yaml::parse_documents(text, file));
  ManifestChecker checker(driver, gates);
  for (std::size_t i = 0; i < documents.size(); ++i) checker.check_document(i + 1, documents[i].root);
  return checker.take_report();
}

}  // namespace gpulet::dra
