#include "doctor/redact.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "base/json.h"
#include "base/text.h"
#include "base/yaml_writer.h"
#include "config/yaml.h"
#include "runtimes/toml.h"

namespace gpulet::doctor {
namespace {

using config::yaml::Entry;
using config::yaml::Node;
using Json = nlohmann::ordered_json;

constexpr int kMaxDocumentsInStrings = 3;  // a document in a string in a document …
constexpr std::size_t kMaxDocuments = 64;  // of one YAML file

Node text_node(std::string text) {
  Node node;
  node.kind = Node::Kind::kScalar;
  node.scalar = std::move(text);
  return node;
}

std::optional<std::string> redact_json(std::string_view text, int level);
std::optional<std::string> redact_yaml(std::string_view text, int level);

// A string that may be a document.
std::string redact_string(const std::string& text, int level) {
  if (level < kMaxDocumentsInStrings) {
    const auto first = text::trim(text).substr(0, 1);
    if (first == "{" || first == "[")
      if (auto json = redact_json(text, level + 1)) return *json;
    if (text::trim(text).find('\n') != std::string_view::npos)
      if (auto yaml = redact_yaml(text, level + 1)) return *yaml;
  }
  return redact_text(text);
}

const Node* find_member(const Node& mapping, std::string_view key) {
  for (const Entry& entry : mapping.entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

bool is_text(const Node* node) { return node != nullptr && node->kind == Node::Kind::kScalar; }

class TreeRedactor {
 public:
  explicit TreeRedactor(int level) : level_(level) {}

  // `name`: the nearest name above. `below`: a name above it is a secret's, so all leaves are.
  void redact_node(Node& node, std::string_view name, bool below) {
    switch (node.kind) {
      case Node::Kind::kNull:
        return;
      case Node::Kind::kScalar:
        return redact_scalar(node, name, below);
      case Node::Kind::kSequence:
        return redact_items(node, name, below);
      case Node::Kind::kMapping:
        return redact_members(node, below);
    }
  }

  // A value that was removed under one name is one under all: an alias of YAML, the same text in an argument.
  void remove_copies(Node& node) const {
    if (node.kind == Node::Kind::kScalar && removed_.contains(node.scalar))
      node = text_node(std::string(kRedacted));
    for (Node& item : node.items) remove_copies(item);
    for (Entry& entry : node.entries) remove_copies(entry.value);
  }

 private:
  void remove_value(Node& node) {
    constexpr std::size_t kTelling = 6;  // characters; "gpu" may be anything
    if (node.scalar.size() >= kTelling) removed_.insert(node.scalar);
    node = text_node(std::string(kRedacted));
  }

  void redact_scalar(Node& node, std::string_view name, bool below) {
    const std::string judged = below ? "secret." + std::string(name) : std::string(name);
    if (is_secret_value(judged, node.scalar)) return remove_value(node);
    std::string clean = redact_string(node.scalar, level_);
    if (clean == node.scalar) return;
    node.scalar = std::move(clean);
    node.plain = false;
  }

  void redact_items(Node& list, std::string_view name, bool below) {
    // ["--token", "x"], ["DB_PASS", "x"]; not ["DB_PASS=x", "HOME=/"], where each item has its own value.
    const bool pair = list.items.size() == 2;
    std::string before;
    for (Node& item : list.items) {
      const bool announced = (before.starts_with("--") || pair) && before.find('=') == std::string::npos;
      const std::string own = item.kind == Node::Kind::kScalar ? item.scalar : std::string();
      if (!below && announced && !own.empty() && !own.starts_with("--") && is_secret_value(before, own)) {
        remove_value(item);
      } else {
        redact_node(item, name, below || (item.kind == Node::Kind::kSequence && is_secret_name(name)));
      }
      before = own;
    }
  }

  void redact_members(Node& mapping, bool below) {
    const Node* kind = find_member(mapping, "kind");
    const bool secret_object = is_text(kind) && kind->scalar == "Secret";
    const bool variable = names_secret(mapping);
    const bool selector =
        find_member(mapping, "operator") != nullptr || find_member(mapping, "effect") != nullptr;
    for (Entry& entry : mapping.entries) {
      bool hidden = below;
      if (secret_object && (entry.key == "data" || entry.key == "stringData")) hidden = true;
      if (variable && text::lower(entry.key) == "value") hidden = true;
      if (is_below_secret(entry.key)) hidden = true;
      if (entry.value.kind == Node::Kind::kMapping && is_secret_section(entry.key)) hidden = true;
      if (entry.value.kind == Node::Kind::kSequence && is_secret_name(entry.key)) hidden = true;
      const bool lone_key = text::lower(entry.key) == "key" && !selector;
      if (lone_key && is_text(&entry.value) && !is_qualified_name(entry.value.scalar) &&
          is_secret_value("own-key", entry.value.scalar)) {
        remove_value(entry.value);
      } else {
        redact_node(entry.value, entry.key, hidden);
      }
      entry.key = redact_text(entry.key);
    }
  }

  // {name: DB_PASS, value: x}
  static bool names_secret(const Node& mapping) {
    for (const Entry& entry : mapping.entries) {
      const std::string key = text::lower(entry.key);
      if ((key == "name" || key == "key" || key == "variable") && is_text(&entry.value) &&
          is_secret_name(entry.value.scalar))
        return true;
    }
    return false;
  }

  // The kubelet's `authorization: {mode: Webhook}` is a section with names of its own; `passwords: {admin:
  // x}` is not.
  static bool is_secret_section(std::string_view name) {
    return is_secret_name(name) && name != "authorization" && !text::lower(name).ends_with("ref");
  }

  // In `secrets.admin.value`, a dotted key of TOML.
  static bool is_below_secret(const std::string& key) {
    auto parts = text::split(key, '.');
    if (!parts.empty()) parts.pop_back();
    return std::ranges::any_of(parts, is_secret_section);
  }

  // A label's or a taint's key: "nvidia.com/gpu".
  static bool is_qualified_name(std::string_view value) {
    const auto slash = value.find('/');
    return slash != std::string_view::npos && slash > 0 &&
           value.substr(0, slash).find('.') != std::string_view::npos;
  }

  int level_;
  std::set<std::string> removed_;
};

Node redacted_tree(Node root, int level) {
  TreeRedactor redactor(level);
  redactor.redact_node(root, {}, false);
  redactor.remove_copies(root);
  return root;
}

// JSON.

// After parsing, because comments may hide brackets from exceeds_nesting(), and parsing does not recurse.
bool is_nested_deeper(const Json& json, std::size_t levels) {
  return json.is_structured() && (levels == 0 || std::ranges::any_of(json, [&](const Json& item) {
                                    return is_nested_deeper(item, levels - 1);
                                  }));
}

Node node_from_json(const Json& json) {
  Node node;
  if (json.is_object()) {
    node.kind = Node::Kind::kMapping;
    for (const auto& [key, value] : json.items()) node.entries.push_back({key, {}, node_from_json(value)});
  } else if (json.is_array()) {
    node.kind = Node::Kind::kSequence;
    for (const auto& item : json) node.items.push_back(node_from_json(item));
  } else if (json.is_string()) {
    node = text_node(json.get<std::string>());
  } else if (!json.is_null()) {
    node = text_node(json.dump());
    node.plain = true;
  }
  return node;
}

Json json_from_node(const Node& node) {
  if (node.kind == Node::Kind::kMapping) {
    Json object = Json::object();
    for (const Entry& entry : node.entries) object[entry.key] = json_from_node(entry.value);
    return object;
  }
  if (node.kind == Node::Kind::kSequence) {
    Json array = Json::array();
    for (const Node& item : node.items) array.push_back(json_from_node(item));
    return array;
  }
  if (node.kind == Node::Kind::kNull) return nullptr;
  return node.plain ? parse_json<Json>(node.scalar) : Json(node.scalar);
}

std::optional<std::string> redact_json(std::string_view text, int level) {
  const auto json = Json::parse(text, nullptr, false, /*ignore_comments=*/true);
  if (!json.is_structured() || is_nested_deeper(json, kMaxNesting)) return std::nullopt;
  const bool lines = text::trim(text).find('\n') != std::string_view::npos;
  return json_from_node(redacted_tree(node_from_json(json), level))
             .dump(lines ? 2 : -1, ' ', false, Json::error_handler_t::replace) +
         (text.ends_with('\n') ? "\n" : "");
}

// YAML.

YamlNode yaml_from_node(const Node& node) {
  YamlNode out;
  switch (node.kind) {
    case Node::Kind::kNull:
      return YamlNode::bare("null");
    case Node::Kind::kScalar: {
      const bool one_line = node.scalar.find_first_of("\n\r") == std::string::npos;
      return node.plain && one_line && !node.scalar.empty() ? YamlNode::bare(node.scalar)
                                                            : YamlNode::text(node.scalar);
    }
    case Node::Kind::kSequence:
      out = YamlNode::list();
      for (const Node& item : node.items) out.items.push_back(yaml_from_node(item));
      return out;
    case Node::Kind::kMapping:
      for (const Entry& entry : node.entries) out.add(entry.key, yaml_from_node(entry.value));
      return out;
  }
  return out;
}

// Nothing if it is a text, or a list of texts: every text is YAML.
bool has_structure(const Node& node) {
  if (node.kind == Node::Kind::kMapping) return true;
  return node.kind == Node::Kind::kSequence && std::ranges::any_of(node.items, has_structure);
}

std::optional<std::string> redact_yaml(std::string_view text, int level) {
  std::string out;
  for (std::size_t count = 0; count < kMaxDocuments; ++count) {
    auto document = config::yaml::parse_yaml(text, "");
    if (!document) return std::nullopt;
    if (!has_structure(document->root) && !(count > 0 && document->root.kind == Node::Kind::kNull))
      return std::nullopt;
    if (count > 0) out += "---\n";
    if (document->root.kind != Node::Kind::kNull)
      out += write_yaml(yaml_from_node(redacted_tree(std::move(document->root), level)));
    if (!document->second) return out;
    // The marker of the next document is on that line or above.
    std::size_t at = 0;
    for (unsigned line = 1; line < document->second->line && at < text.size(); ++line)
      at = runtimes::toml::line_end(text, at);
    if (at == 0) return std::nullopt;
    text.remove_prefix(at);
  }
  return std::nullopt;
}

// TOML.

class TomlRedactor {
 public:
  TomlRedactor(std::string_view text, const runtimes::toml::Document& document, int level)
      : text_(text), document_(document), level_(level) {}

  std::string redact() {
    std::string out;
    for (std::size_t table = 0; table < document_.tables.size(); ++table) {
      const auto& path = document_.tables[table].path;
      if (table > 0)
        out += (document_.tables[table].array ? "[[" : "[") + key_text(path) +
               (document_.tables[table].array ? "]]\n" : "]\n");
      Node members = table_node(table);
      Node root = nested_in(path, std::move(members));
      root = redacted_tree(std::move(root), level_);
      const Node* inner = &root;
      for (std::size_t i = 0; i < path.size(); ++i) inner = &inner->entries.front().value;
      for (const Entry& entry : inner->entries) out += entry.key + " = " + value_text(entry.value) + "\n";
    }
    return out;
  }

 private:
  using Value = runtimes::toml::Value;
  using Path = runtimes::toml::Path;

  static std::string key_part(const std::string& part) {
    const bool bare = !part.empty() && std::ranges::all_of(part, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
    });
    return bare ? part : runtimes::toml::quote_toml(part);
  }
  static std::string key_text(const Path& path) {
    std::vector<std::string> parts;
    for (const auto& part : path) parts.push_back(key_part(redact_text(part)));
    return text::join(parts, ".");
  }

  // The names of the tables around count as those of a mapping do.
  static Node nested_in(const Path& path, Node members) {
    for (auto part = path.rbegin(); part != path.rend(); ++part) {
      Node outer;
      outer.kind = Node::Kind::kMapping;
      outer.entries.push_back({*part, {}, std::move(members)});
      members = std::move(outer);
    }
    return members;
  }

  // The entries of a table; a dotted key keeps its dots.
  Node table_node(std::size_t table) const {
    Node node;
    node.kind = Node::Kind::kMapping;
    const auto skipped = document_.tables[table].path.size();
    for (std::size_t i = 0; i < document_.entries.size(); ++i) {
      const auto& entry = document_.entries[i];
      if (entry.table != table || entry.is_inline) continue;
      const Path own(entry.path.begin() + static_cast<std::ptrdiff_t>(skipped), entry.path.end());
      node.entries.push_back({key_text(own), {}, value_node(entry.value, entry.path)});
    }
    return node;
  }

  Node value_node(const Value& value, const Path& path) const {
    Node node;
    if (value.kind == runtimes::toml::Kind::kString) return text_node(value.text);
    if (value.kind == runtimes::toml::Kind::kArray) {
      node.kind = Node::Kind::kSequence;
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        Path scope = path;
        scope.push_back("[" + std::to_string(i) + "]");
        node.items.push_back(value_node(value.items[i], scope));
      }
      return node;
    }
    if (value.kind == runtimes::toml::Kind::kTable) {
      node.kind = Node::Kind::kMapping;
      for (const auto& entry : document_.entries) {
        const bool inside = entry.is_inline && entry.begin >= value.begin && entry.value.end <= value.end;
        if (!inside || !runtimes::toml::has_prefix(entry.path, path) || is_in_nested_table(entry, value))
          continue;
        const Path own(entry.path.begin() + static_cast<std::ptrdiff_t>(path.size()), entry.path.end());
        node.entries.push_back({key_text(own), {}, value_node(entry.value, entry.path)});
      }
      return node;
    }
    node = text_node(std::string(text_.substr(value.begin, value.end - value.begin)));
    node.plain = true;
    return node;
  }

  // Whether the entry belongs to a table inside `value`, which gets it.
  bool is_in_nested_table(const runtimes::toml::Entry& entry, const Value& value) const {
    return std::ranges::any_of(document_.entries, [&](const runtimes::toml::Entry& other) {
      return other.is_inline && &other != &entry && other.value.begin > value.begin &&
             other.value.end < value.end && entry.begin > other.value.begin &&
             entry.value.end <= other.value.end;
    });
  }

  static std::string value_text(const Node& node) {
    std::vector<std::string> parts;
    if (node.kind == Node::Kind::kSequence) {
      for (const Node& item : node.items) parts.push_back(value_text(item));
      return "[" + text::join(parts, ", ") + "]";
    }
    if (node.kind == Node::Kind::kMapping) {
      for (const Entry& entry : node.entries) parts.push_back(entry.key + " = " + value_text(entry.value));
      return "{" + text::join(parts, ", ") + "}";
    }
    return node.plain ? node.scalar : runtimes::toml::quote_toml(node.scalar);
  }

  std::string_view text_;
  const runtimes::toml::Document& document_;
  int level_;
};

std::optional<std::string> redact_toml(std::string_view text) {
  constexpr std::size_t kMaxEntries = 5000;  // is_in_nested_table is quadratic
  const auto document = runtimes::toml::parse_toml(text, "");
  if (!document || document->entries.size() > kMaxEntries) return std::nullopt;
  return TomlRedactor(text, *document, 0).redact();
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return name.ends_with(end); });
}

bool is_free_text(std::string_view name) {
  return ends_with_any(name, {".txt"}) || name.find("/proc/") != std::string_view::npos;
}

}  // namespace

std::string redact_file(std::string_view name, std::string_view content) {
  if (text::trim(content).empty()) return std::string(content);
  std::optional<std::string> clean;
  const char first = text::trim(content).front();
  if (is_free_text(name)) {
    if (first == '{') clean = redact_json(content, 0);
    return clean ? *clean : redact_text(content);
  }
  if (ends_with_any(name, {".yaml", ".yml"})) {
    clean = redact_yaml(content, 0);
  } else if (ends_with_any(name, {".env", ".service", ".ini", "/os-release"})) {
    clean = redact_environment(content);
  } else {
    if (first == '{' || first == '[') clean = redact_json(content, 0);
    if (!clean && !ends_with_any(name, {".json"})) clean = redact_toml(content);
    if (!clean && !ends_with_any(name, {".json", ".toml"})) clean = redact_environment(content);
    if (!clean && !ends_with_any(name, {".json", ".toml"})) clean = redact_yaml(content, 0);
  }
  if (clean) return *clean;
  return std::string(kRedacted) + " unknown format, " + std::to_string(content.size()) + " bytes\n";
}

}  // namespace gpulet::doctor
