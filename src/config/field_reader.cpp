#include "config/field_reader.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <set>

#include "base/text.h"
#include "config/schema.h"
#include "config/sections.h"
#include "config/values.h"
#include "health/policy/eviction_policy.h"

namespace gpulet::config {

using NodeKind = yaml::Node::Kind;
using yaml::Node;

namespace {

bool equals_ignoring_case(std::string_view a, std::string_view b) { return text::lower(a) == text::lower(b); }

// The keys of which this is the last word: pollInterval and livenessInterval for interval.
std::vector<std::string> keys_ending_in(const std::string& key, std::span<const std::string> keys) {
  std::vector<std::string> found;
  for (const auto& longer : keys) {
    if (!key.empty() && longer.size() > key.size() &&
        equals_ignoring_case(longer.substr(longer.size() - key.size()), key))
      found.push_back(longer);
  }
  return found;
}

// The path of a setting with this key in another section, or of what other programs call so; empty: none.
std::string_view other_place(std::string_view key) {
  for (const auto& setting : settings()) {
    const auto dot = setting.path.rfind('.');
    if (dot != std::string_view::npos && setting.path.substr(dot + 1) == key) return setting.path;
  }
  return find_path_by_foreign_name(key);
}

}  // namespace

MappingReader::MappingReader(const Node& node, std::string section, std::vector<std::string> keys,
                             Problems& problems)
    : section_(std::move(section)), keys_(std::move(keys)), values_(keys_.size(), nullptr) {
  for (const auto& entry : node.entries) {
    const auto key = match_key(entry, section_, keys_, false, problems);
    if (key.empty() || entry.value.kind == NodeKind::kNull) continue;
    values_[static_cast<std::size_t>(std::ranges::find(keys_, key) - keys_.begin())] = &entry.value;
  }
}

const Node* MappingReader::operator[](std::string_view key) const {
  const auto found = std::ranges::find(keys_, key);
  return found == keys_.end() ? nullptr : values_[static_cast<std::size_t>(found - keys_.begin())];
}

bool expect_kind(NodeKind kind, const char* name, const Node& node, const std::string& field,
                 Problems& problems) {
  if (node.kind == kind) return true;
  problems.add_error(node.position, field, expected_but_found(name, node));
  return false;
}

std::optional<std::string> read_text(const Node& node, const std::string& field, Problems& problems) {
  if (!expect_kind(NodeKind::kScalar, "a string", node, field, problems)) return std::nullopt;
  return node.scalar;
}

std::optional<bool> read_bool(const Node& node, const std::string& field, Problems& problems) {
  if (node.kind == NodeKind::kScalar && node.plain) {
    if (const auto value = parse_yaml_bool(node.scalar)) return value;
  }
  problems.add_error(node.position, field, expected_but_found("true or false", node));
  return std::nullopt;
}

std::optional<ResourceName> read_name(const Node& node, const std::string& field, Problems& problems) {
  const auto text = read_text(node, field, problems);
  if (!text) return std::nullopt;
  auto name = parse_resource_name(*text);
  if (!name) {
    problems.add_error(node.position, field, name.error().message());
    return std::nullopt;
  }
  return std::move(*name);
}

bool is_hexadecimal_uuid(std::string_view text) {
  if (text.size() != 36) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? text[i] != '-' : std::isxdigit(static_cast<unsigned char>(text[i])) == 0) return false;
  }
  return true;
}

std::optional<unsigned> read_replicas(const Node& node, const std::string& field, Problems& problems,
                                      unsigned least) {
  const auto count =
      node.kind == NodeKind::kScalar && node.plain ? parse_whole_number(node.scalar) : std::nullopt;
  if (count && *count >= least && *count <= kMaxReplicas) return static_cast<unsigned>(*count);
  const bool number =
      count || (node.kind == NodeKind::kScalar && node.plain && text::starts_with(node.scalar, "-"));
  problems.add_error(
      node.position, field,
      !number ? expected_but_found("a whole number", node)
      : count && *count > kMaxReplicas
          ? "number of replicas must be <= " + std::to_string(kMaxReplicas) + "; found " + node.scalar
          : "number of replicas must be >= " + std::to_string(least) + "; found " + node.scalar);
  return std::nullopt;
}

std::string Problems::one_line(const std::string& message) {
  std::string line;
  for (const char c : message) line += c == '\n' ? "\\n" : c == '\r' ? "\\r" : std::string(1, c);
  return line;
}

std::string expected_but_found(std::string_view expected, const Node& node) {
  std::string found;
  switch (node.kind) {
    case NodeKind::kNull:
      found = "nothing";
      break;
    case NodeKind::kScalar:
      found = (node.plain ? "" : "the quoted string ") + std::string("'") + node.scalar.substr(0, 64) + "'";
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

std::string_view match_key(const yaml::Entry& entry, const std::string& section,
                           std::span<const std::string> keys, bool any_case, Problems& problems) {
  if (const auto same = std::ranges::find(keys, entry.key); same != keys.end()) return *same;
  const auto similar =
      std::ranges::find_if(keys, [&](const auto& key) { return equals_ignoring_case(key, entry.key); });
  if (similar != keys.end() && problems.drop_in() && any_case) {
    problems.add_warning(entry.position, section, "'" + entry.key.substr(0, 64) + "' is read as " + *similar);
    return *similar;
  }
  std::string message = "unknown key '" + entry.key.substr(0, 64) + "'";
  if (similar != keys.end()) {
    message += "; did you mean " + *similar + "?";
  } else if (const auto close = text::nearest(entry.key, keys)) {
    message += "; did you mean " + *close + "?";
  } else if (const auto longer = keys_ending_in(entry.key, keys); !longer.empty()) {
    message += "; did you mean " + text::join(longer, " or ") + "?";
  } else if (const auto other = other_place(entry.key); !other.empty()) {
    message += "; it belongs at " + std::string(other);
  } else {
    message += "; expected one of: " + text::join(keys, ", ");
  }
  problems.add_lenient(entry.position, section, message);
  return {};
}

namespace {

using NodeKind = yaml::Node::Kind;

constexpr std::chrono::milliseconds kShortestDuration{1};
constexpr std::chrono::milliseconds kLongestDuration = std::chrono::hours(24);

std::vector<std::string> valid_choices(const Setting& setting, bool discovery) {
  std::vector<std::string> choices(setting.choices.begin(), setting.choices.end());
  if (!discovery) std::erase(choices, setting.discovery_choice);
  return choices;
}

std::string choices_text(const std::vector<std::string>& choices) {
  std::string out;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += i + 1 == choices.size() ? " or " : ", ";
    out += choices[i];
  }
  return out;
}

// "host:port", "[v6]:port", ":port".
std::optional<std::string> listen_error(const std::string& value) {
  if (value.empty()) return std::nullopt;
  const auto colon = value.rfind(':');
  const auto port = colon == std::string::npos ? std::nullopt : text::parse_unsigned(value.substr(colon + 1));
  const auto host = value.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (!port || *port > 65535 || (host.find(':') != std::string::npos && !bracketed)) {
    return "'" + value + "' is not host:port";
  }
  return std::nullopt;
}

std::optional<std::string> choice_error(const Setting& setting, const std::string& value, bool discovery) {
  const auto choices = valid_choices(setting, discovery);
  if (std::ranges::count(choices, value) != 0) return std::nullopt;
  const std::string complaint =
      setting.error_prefix.empty() ? "invalid value" : std::string(setting.error_prefix);
  const auto nearest = text::nearest(value, choices);
  std::string hint = (nearest ? "did you mean " + *nearest + "? " : "") + "expected " + choices_text(choices);
  if (!value.empty() && value == setting.discovery_choice)
    hint = value + " is for gpu-feature-discovery only; " + hint;
  if (!value.empty() && value == setting.refused_choice.name)
    hint = std::string(setting.refused_choice.reason) + "; expected " + choices_text(choices);
  return complaint + ": " + value.substr(0, 64) + " (" + hint + ")";
}

std::optional<std::string> duration_error(const Setting& setting, const std::string& value) {
  const auto duration = parse_duration(value);
  if (!duration) return "'" + value.substr(0, 64) + "' is not a duration such as 10s, 1m30s or 500ms";
  const auto least = setting.bounds ? std::chrono::milliseconds(setting.bounds->least) : kShortestDuration;
  const auto most = setting.bounds ? std::chrono::milliseconds(setting.bounds->most) : kLongestDuration;
  if (*duration < least || *duration > most) {
    return "'" + value + "' is not between " + format_duration(least) + " and " + format_duration(most);
  }
  return std::nullopt;
}

std::optional<std::string> number_error(const Setting& setting, const std::string& value) {
  const auto number = text::parse_unsigned(value);
  if (!number) return "'" + value.substr(0, 64) + "' is not a whole number";
  if (setting.bounds && (*number < setting.bounds->least || *number > setting.bounds->most)) {
    return "'" + value + "' is not between " + std::to_string(setting.bounds->least) + " and " +
           std::to_string(setting.bounds->most);
  }
  return std::nullopt;
}

// For an optional file or directory of the node.
bool absolute_or_empty(const std::string& value) { return value.empty() || value.front() == '/'; }

void remove_duplicates(std::vector<std::string>& items) {
  std::set<std::string> seen;
  std::erase_if(items, [&](const auto& item) { return !seen.insert(item).second; });
}

}  // namespace

std::optional<std::string> value_error(const Setting& setting, const Value& value, bool discovery) {
  if (const auto* one = std::get_if<std::string>(&value)) {
    if (setting.kind == Kind::kChoice) return choice_error(setting, *one, discovery);
    if (setting.kind == Kind::kDuration) return duration_error(setting, *one);
    if (setting.kind == Kind::kUnsigned) return number_error(setting, *one);
    if (setting.kind == Kind::kGrace) {
      const auto grace = health::parse_grace(*one);
      if (!grace) return "'" + one->substr(0, 64) + "': " + grace.error().message();
    }
    if (setting.kind == Kind::kInterval && *one != "infinite" && !parse_duration(*one)) {
      return "'" + one->substr(0, 64) + "' is not a duration, infinite, or a number of nanoseconds";
    }
    if (setting.path == "gpulet.listen") return listen_error(*one);
    if (setting.path == "gpulet.socketMode" && !parse_file_mode(*one)) {
      return "'" + one->substr(0, 64) + "' is not a file mode such as 0660";
    }
    const bool is_needed = setting.path == "gpulet.kubeletDir" || setting.path == "gpulet.fraction.limitDir";
    if (is_needed && (one->empty() || one->front() != '/')) {
      return "'" + *one + "' is not an absolute path";
    }
    const bool path = setting.path == "gpulet.stateDir" || setting.path == "gpulet.kernelLog" ||
                      setting.path == "gpulet.healthFile" || setting.path == "gpulet.socket";
    if (path && !absolute_or_empty(*one)) return "'" + *one + "' is not an absolute path or empty";
  }
  if (const auto* many = std::get_if<std::vector<std::string>>(&value)) {
    if (setting.kind == Kind::kChoices) {
      const bool may_be_empty = setting.default_text && setting.default_text->empty();
      if (many->empty() && !may_be_empty)
        return "expected at least one of " + choices_text(valid_choices(setting, discovery));
      for (const auto& item : *many) {
        if (auto error = choice_error(setting, item, discovery)) return error;
      }
    }
    if (setting.kind == Kind::kUnsigneds && !many->empty() && *many != std::vector<std::string>{"0"}) {
      return "channelIDs must be [] or [0]; found [" + text::join(*many, " ") + "]";
    }
  }
  return std::nullopt;
}

Result<Value> value_from_text(const Setting& setting, const std::vector<std::string>& given) {
  const std::string last = given.empty() ? "" : given.back();
  switch (setting.kind) {
    case Kind::kBool: {
      if (last.empty()) return Value(false);
      const auto flag = parse_go_bool(last);
      if (!flag) return fail(Code::kInvalidArgument, "'" + last.substr(0, 64) + "' is not true or false");
      return Value(*flag);
    }
    case Kind::kString:
    case Kind::kChoice:
    case Kind::kUnsigned:
    case Kind::kDuration:
    case Kind::kGrace:
    case Kind::kInterval:
      return Value(last);
    case Kind::kChoices:
    case Kind::kStrings:
    case Kind::kUnsigneds:
      break;
  }
  std::vector<std::string> items;
  for (const auto& text : given) {
    for (const auto& item : text::split(text, ',')) items.emplace_back(text::trim(item));
  }
  if (setting.kind == Kind::kUnsigneds) {
    for (const auto& item : items) {
      if (!text::parse_unsigned(item))
        return fail(Code::kInvalidArgument, "'" + item + "' is not a whole number");
    }
  } else {
    remove_duplicates(items);
  }
  return Value(std::move(items));
}

Result<Value> value_from_node(const Setting& setting, const yaml::Node& node) {
  const bool scalar = node.kind == NodeKind::kScalar;
  const auto wrong = [&](std::string_view expected) {
    return fail(Code::kInvalidArgument, expected_but_found(expected, node));
  };
  switch (setting.kind) {
    case Kind::kBool: {
      const auto flag = scalar && node.plain ? parse_yaml_bool(node.scalar) : std::nullopt;
      if (!flag) return wrong("true or false");
      return Value(*flag);
    }
    case Kind::kUnsigned:
      if (!scalar || !node.plain) return wrong("a whole number");
      if (const auto number = parse_whole_number(node.scalar)) return Value(std::to_string(*number));
      return Value(node.scalar);
    case Kind::kInterval:
      // NVIDIA writes a bare number of nanoseconds.
      if (scalar && node.plain) {
        if (const auto number = parse_whole_number(node.scalar)) return Value(std::to_string(*number) + "ns");
      }
      [[fallthrough]];
    case Kind::kString:
    case Kind::kChoice:
    case Kind::kDuration:
    case Kind::kGrace:
      if (!scalar) return wrong("a string");
      return Value(node.scalar);
    case Kind::kChoices:
    case Kind::kStrings:
    case Kind::kUnsigneds:
      break;
  }
  if (scalar && setting.kind == Kind::kChoices) return value_from_text(setting, {node.scalar});
  if (node.kind != NodeKind::kSequence) return wrong("a list");
  std::vector<std::string> items;
  for (const auto& item : node.items) {
    const auto number = item.plain ? parse_whole_number(item.scalar) : std::nullopt;
    if (item.kind != NodeKind::kScalar || (setting.kind == Kind::kUnsigneds && !number)) {
      return fail(
          Code::kInvalidArgument,
          expected_but_found(
              setting.kind == Kind::kUnsigneds ? "a list of whole numbers" : "a list of strings", item));
    }
    items.push_back(setting.kind == Kind::kUnsigneds ? std::to_string(*number) : item.scalar);
  }
  if (setting.kind != Kind::kUnsigneds) remove_duplicates(items);
  return Value(std::move(items));
}

}  // namespace gpulet::config
