#include "config/readings.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "base/text.h"
#include "config/sections.h"
#include "config/values.h"
#include "health/moving.h"

namespace gpulet::config {
namespace {

using NodeKind = yaml::Node::Kind;

constexpr std::chrono::milliseconds kShortestDuration{1};
constexpr std::chrono::milliseconds kLongestDuration = std::chrono::hours(24);

std::string choices_of(const Setting& setting) {
  std::string out;
  for (std::size_t i = 0; i < setting.choices.size(); ++i) {
    if (i > 0) out += i + 1 == setting.choices.size() ? " or " : ", ";
    out += setting.choices[i];
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

std::optional<std::string> choice_error(const Setting& setting, const std::string& value) {
  if (std::ranges::count(setting.choices, std::string_view(value)) != 0) return std::nullopt;
  const std::string complaint = setting.complaint.empty() ? "invalid value" : std::string(setting.complaint);
  std::string hint = choices_of(setting) + " would do";
  if (value == "vfio") hint = "vfio is for gpu-feature-discovery alone; " + hint;
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

// Of a file or folder of the node that need not be.
bool absolute_or_empty(const std::string& value) { return value.empty() || value.front() == '/'; }

void drop_doubles(std::vector<std::string>& items) {
  std::set<std::string> seen;
  std::erase_if(items, [&](const auto& item) { return !seen.insert(item).second; });
}

}  // namespace

std::optional<std::string> value_error(const Setting& setting, const Value& value) {
  if (const auto* one = std::get_if<std::string>(&value)) {
    if (setting.kind == Kind::kChoice) return choice_error(setting, *one);
    if (setting.kind == Kind::kDuration) return duration_error(setting, *one);
    if (setting.kind == Kind::kUnsigned) return number_error(setting, *one);
    if (setting.kind == Kind::kGrace) {
      const auto grace = health::parse_grace(*one);
      if (!grace) return "'" + one->substr(0, 64) + "' is " + grace.error().message();
    }
    if (setting.kind == Kind::kInterval && *one != "infinite" && !parse_duration(*one)) {
      return "'" + one->substr(0, 64) + "' is not a duration, infinite, or a number of nanoseconds";
    }
    if (setting.path == "gpulet.listen") return listen_error(*one);
    if (setting.path == "gpulet.socketMode" && !parse_file_mode(*one)) {
      return "'" + one->substr(0, 64) + "' is not a file mode such as 0660";
    }
    if (setting.path == "gpulet.kubeletDir" && (one->empty() || one->front() != '/')) {
      return "'" + *one + "' is not an absolute path";
    }
    const bool path = setting.path == "gpulet.stateDir" || setting.path == "gpulet.kernelLog" ||
                      setting.path == "gpulet.healthFile" || setting.path == "gpulet.socket";
    if (path && !absolute_or_empty(*one)) return "'" + *one + "' is neither an absolute path nor empty";
  }
  if (const auto* many = std::get_if<std::vector<std::string>>(&value)) {
    if (setting.kind == Kind::kChoices) {
      const bool may_be_empty = setting.default_text && setting.default_text->empty();
      if (many->empty() && !may_be_empty) return "at least one is needed: " + choices_of(setting);
      for (const auto& item : *many) {
        if (auto error = choice_error(setting, item)) return error;
      }
    }
    if (setting.kind == Kind::kUnsigneds && !many->empty() && *many != std::vector<std::string>{"0"}) {
      return "channelIDs must be [] or [0]; found [" + text::join(*many, " ") + "]";
    }
  }
  return std::nullopt;
}

Result<Value> from_text(const Setting& setting, const std::vector<std::string>& given) {
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
    drop_doubles(items);
  }
  return Value(std::move(items));
}

Result<Value> from_node(const Setting& setting, const yaml::Node& node) {
  const bool scalar = node.kind == NodeKind::kScalar;
  const auto wrong = [&](std::string_view expected) {
    return fail(Code::kInvalidArgument, found_instead(expected, node));
  };
  switch (setting.kind) {
    case Kind::kBool: {
      const auto flag = scalar && node.plain ? parse_yaml_bool(node.scalar) : std::nullopt;
      if (!flag) return wrong("true or false");
      return Value(*flag);
    }
    case Kind::kUnsigned:
      if (!scalar || !node.plain) return wrong("a whole number");
      return Value(node.scalar);
    case Kind::kInterval:
      // A bare number is NVIDIA's count of nanoseconds.
      if (scalar && node.plain && text::parse_unsigned(node.scalar)) return Value(node.scalar + "ns");
      [[fallthrough]];
    case Kind::kString:
    case Kind::kChoice:
    case Kind::kDuration:
    case Kind::kGrace:
      if (!scalar) return wrong("a text");
      return Value(node.scalar);
    case Kind::kChoices:
    case Kind::kStrings:
    case Kind::kUnsigneds:
      break;
  }
  if (scalar && setting.kind == Kind::kChoices) return from_text(setting, {node.scalar});
  if (node.kind != NodeKind::kSequence) return wrong("a list");
  std::vector<std::string> items;
  for (const auto& item : node.items) {
    const bool number = item.plain && text::parse_unsigned(item.scalar).has_value();
    if (item.kind != NodeKind::kScalar || (setting.kind == Kind::kUnsigneds && !number)) {
      return fail(
          Code::kInvalidArgument,
          found_instead(setting.kind == Kind::kUnsigneds ? "a list of whole numbers" : "a list of texts",
                        item));
    }
    items.push_back(item.scalar);
  }
  if (setting.kind != Kind::kUnsigneds) drop_doubles(items);
  return Value(std::move(items));
}

}  // namespace gpulet::config
