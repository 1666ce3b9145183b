#include "config/fields.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "config/schema.h"
#include "config/values.h"

namespace gpulet::config {

using NodeKind = yaml::Node::Kind;
using yaml::Node;

namespace {

bool same_but_case(std::string_view a, std::string_view b) { return text::lower(a) == text::lower(b); }

// Where else in the file a key of this name belongs; empty for nowhere.
std::string_view other_place(std::string_view key) {
  for (const auto& setting : settings()) {
    const auto dot = setting.path.rfind('.');
    if (dot != std::string_view::npos && setting.path.substr(dot + 1) == key) return setting.path;
  }
  return {};
}

}  // namespace

Fields::Fields(const Node& node, std::string section, std::vector<std::string> keys, Problems& problems)
    : section_(std::move(section)), keys_(std::move(keys)), values_(keys_.size(), nullptr) {
  for (const auto& entry : node.entries) {
    const auto key = known_key(entry, section_, keys_, false, problems);
    if (key.empty() || entry.value.kind == NodeKind::kNull) continue;
    values_[static_cast<std::size_t>(std::ranges::find(keys_, key) - keys_.begin())] = &entry.value;
  }
}

const Node* Fields::operator[](std::string_view key) const {
  const auto found = std::ranges::find(keys_, key);
  return found == keys_.end() ? nullptr : values_[static_cast<std::size_t>(found - keys_.begin())];
}

bool expect(NodeKind kind, const char* name, const Node& node, const std::string& field, Problems& problems) {
  if (node.kind == kind) return true;
  problems.error(node.position, field, found_instead(name, node));
  return false;
}

std::optional<std::string> read_text(const Node& node, const std::string& field, Problems& problems) {
  if (!expect(NodeKind::kScalar, "a text", node, field, problems)) return std::nullopt;
  return node.scalar;
}

std::optional<bool> read_bool(const Node& node, const std::string& field, Problems& problems) {
  if (node.kind == NodeKind::kScalar && node.plain) {
    if (const auto value = parse_yaml_bool(node.scalar)) return value;
  }
  problems.error(node.position, field, found_instead("true or false", node));
  return std::nullopt;
}

std::optional<ResourceName> read_name(const Node& node, const std::string& field, Problems& problems) {
  const auto text = read_text(node, field, problems);
  if (!text) return std::nullopt;
  auto name = parse_resource_name(*text);
  if (!name) {
    problems.error(node.position, field, name.error().message());
    return std::nullopt;
  }
  return std::move(*name);
}

bool hexadecimal_uuid(std::string_view text) {
  if (text.size() != 36) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? text[i] != '-' : std::isxdigit(static_cast<unsigned char>(text[i])) == 0) return false;
  }
  return true;
}

std::optional<unsigned> read_replicas(const Node& node, const std::string& field, Problems& problems) {
  const auto count =
      node.kind == NodeKind::kScalar && node.plain ? text::parse_unsigned(node.scalar) : std::nullopt;
  if (count && *count >= 2 && *count <= kMaxReplicas) return static_cast<unsigned>(*count);
  const bool number =
      count || (node.kind == NodeKind::kScalar && node.plain && text::starts_with(node.scalar, "-"));
  problems.error(
      node.position, field,
      !number ? found_instead("a whole number", node)
      : count && *count > kMaxReplicas
          ? "number of replicas must be <= " + std::to_string(kMaxReplicas) + "; found " + node.scalar
          : "number of replicas must be >= 2; found " + node.scalar);
  return std::nullopt;
}

std::string found_instead(std::string_view expected, const Node& node) {
  std::string found;
  switch (node.kind) {
    case NodeKind::kNull:
      found = "nothing";
      break;
    case NodeKind::kScalar:
      found = (node.plain ? "" : "the quoted text ") + std::string("'") + node.scalar.substr(0, 64) + "'";
      break;
    case NodeKind::kSequence:
      found = "a list";
      break;
    case NodeKind::kMapping:
      found = "a mapping";
      break;
  }
  return "expected " + std::string(expected) + ", found " + found;
}

std::string_view known_key(const yaml::Entry& entry, const std::string& section,
                           std::span<const std::string> keys, bool any_case, Problems& problems) {
  if (const auto same = std::ranges::find(keys, entry.key); same != keys.end()) return *same;
  const auto similar =
      std::ranges::find_if(keys, [&](const auto& key) { return same_but_case(key, entry.key); });
  if (similar != keys.end() && problems.drop_in() && any_case) {
    problems.warning(entry.position, section, "'" + entry.key.substr(0, 64) + "' is taken for " + *similar);
    return *similar;
  }
  std::string message = "unknown key '" + entry.key.substr(0, 64) + "'";
  if (similar != keys.end()) {
    message += "; did you mean " + *similar + "?";
  } else if (const auto close = text::nearest(entry.key, keys)) {
    message += "; did you mean " + *close + "?";
  } else if (const auto other = other_place(entry.key); !other.empty()) {
    message += "; its place is " + std::string(other);
  } else {
    message += "; known here: " + text::join(keys, ", ");
  }
  problems.lenient(entry.position, section, message);
  return {};
}

}  // namespace gpulet::config
