#include "dra/device_selector.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/quantity.h"
#include "base/text.h"

namespace gpulet::dra {
namespace {

using nlohmann::json;

std::optional<json> parse_literal(std::string_view text) {
  if (text == "true" || text == "false") return json(text == "true");
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front()) {
    const auto inner = text.substr(1, text.size() - 2);
    if (inner.find_first_of("\\\"'") != std::string_view::npos) return std::nullopt;
    return json(std::string(inner));
  }
  const auto number = text::parse_unsigned(text);
  return number ? std::optional<json>(*number) : std::nullopt;
}

template <class T>
bool compare_values(std::string_view op, const T& a, const T& b) {
  if (op == "==") return a == b;
  if (op == "!=") return a != b;
  if (op == ">=") return a >= b;
  if (op == "<=") return a <= b;
  return op == ">" ? a > b : a < b;
}

// device.attributes["gpu.nvidia.com"].type → {"gpu.nvidia.com", "type"}, for this member.
std::optional<std::pair<std::string, std::string>> parse_member(std::string_view text,
                                                                std::string_view member) {
  if (!text.starts_with(member)) return std::nullopt;
  text.remove_prefix(member.size());
  if (text.size() < 5 || text[0] != '[' || (text[1] != '"' && text[1] != '\'')) return std::nullopt;
  const auto end = text.find(text[1], 2);
  if (end == std::string_view::npos || !text.substr(end + 1).starts_with("].")) return std::nullopt;
  const auto name = text.substr(end + 3);
  const bool is_name = !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (!is_name) return std::nullopt;
  return std::pair(std::string(text.substr(2, end - 2)), std::string(name));
}

}  // namespace

std::vector<std::string> split_selector(std::string_view expression) {
  std::vector<std::string> parts;
  char quote = 0;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (quote != 0) {
      if (c == '\\') ++i;
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '(' || c == '[') {
      ++depth;
    } else if (c == ')' || c == ']') {
      --depth;
    } else if (depth == 0 && (expression.substr(i).starts_with("||") || c == '?')) {
      return {std::string(text::trim(expression))};
    } else if (depth == 0 && expression.substr(i).starts_with("&&")) {
      parts.emplace_back(text::trim(expression.substr(begin, i - begin)));
      begin = i + 2;
      ++i;
    }
  }
  parts.emplace_back(text::trim(expression.substr(begin)));
  return parts;
}

const json& find_device_value(const json& device, const std::string& driver, const char* where,
                              const std::string& domain, const std::string& name) {
  const auto& values = json_member(device, where);
  const auto& full = json_member(values, (domain + "/" + name).c_str());
  return full.is_null() && domain == driver ? json_member(values, name.c_str()) : full;
}

std::optional<bool> meets_condition(const json& device, const std::string& driver, std::string_view text) {
  constexpr std::string_view kShared = "device.allowMultipleAllocations";
  const auto& shared = json_member(device, "allowMultipleAllocations");
  const bool is_shared = shared.is_boolean() && shared.get<bool>();
  if (text == kShared) return is_shared;
  const auto at = text.find_first_of("=!<>");
  if (at == std::string_view::npos) {
    const auto flag = parse_member(text, "device.attributes");
    if (!flag) return std::nullopt;
    const auto& value =
        json_member(find_device_value(device, driver, "attributes", flag->first, flag->second), "bool");
    return value.is_boolean() && value.get<bool>();
  }
  const auto op = text.substr(at, text.substr(at + 1).starts_with('=') ? 2 : 1);
  if (op == "=" || op == "!") return std::nullopt;
  const auto literal = parse_literal(text::trim(text.substr(at + op.size())));
  auto left = text::trim(text.substr(0, at));
  if (!literal) return std::nullopt;
  if (left == "device.driver")
    return literal->is_string() ? std::optional(compare_values(op, driver, literal->get<std::string>()))
                                : std::nullopt;
  if (left == kShared)
    return literal->is_boolean() ? std::optional(compare_values(op, is_shared, literal->get<bool>()))
                                 : std::nullopt;
  if (const auto attribute = parse_member(left, "device.attributes")) {
    const auto& value = find_device_value(device, driver, "attributes", attribute->first, attribute->second);
    const char* kind = literal->is_string() ? "string" : literal->is_boolean() ? "bool" : "int";
    const auto& found = json_member(value, kind);
    // An error in CEL, which no device survives.
    if (found.is_null()) return false;
    return compare_values(op, found, *literal);
  }
  constexpr std::string_view kCompare = ".compareTo(quantity(";
  const auto call = left.find(kCompare);
  if (call == std::string_view::npos || !left.ends_with("))")) return std::nullopt;
  const auto capacity = parse_member(left.substr(0, call), "device.capacity");
  const auto quoted =
      parse_literal(left.substr(call + kCompare.size(), left.size() - call - kCompare.size() - 2));
  if (!capacity || !quoted || !quoted->is_string() || *literal != 0U) return std::nullopt;
  const auto& value =
      json_member(find_device_value(device, driver, "capacity", capacity->first, capacity->second), "value");
  const auto has = parse_quantity_milli(json_text(value));
  const auto wanted = parse_quantity_milli(quoted->get<std::string>());
  if (!wanted) return std::nullopt;
  return has && compare_values(op, *has, *wanted);
}

}  // namespace gpulet::dra
