#include "config/values.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/dns_name.h"
#include "base/text.h"

namespace gpulet::config {
namespace {

constexpr std::string_view kPrefix = "nvidia.com/";

bool label_character(char c) { return (c >= 'a' && c <= 'z') || text::is_digit(c); }

// Removes "12g" from the front of `rest` and returns 12.
std::optional<std::uint64_t> take_count(std::string_view& rest, std::string_view unit) {
  const auto end = rest.find(unit);
  if (end == std::string_view::npos || end > 4) return std::nullopt;
  const auto count = text::parse_unsigned(rest.substr(0, end));
  if (!count || *count == 0) return std::nullopt;
  rest.remove_prefix(end + unit.size());
  return count;
}

// The part after the size in a profile's name: "+me", "-me", "+gfx", "+me.all", or several, comma-separated.
bool attributes(std::string_view text) {
  while (!text.empty()) {
    if (text.front() != '+' && text.front() != '-') return false;
    const auto next = text.find_first_of("+-", 1);
    for (const auto& word :
         text::split(text.substr(1, next == std::string_view::npos ? next : next - 1), ',')) {
      if (word != "me" && word != "gfx" && word != "me.all") return false;
    }
    if (text.size() == 1) return false;
    text.remove_prefix(std::min(next, text.size()));
  }
  return true;
}

bool label_name(std::string_view name) {
  const auto word = [](char c) { return label_character(c) || (c >= 'A' && c <= 'Z'); };
  return !name.empty() && name.size() <= 63 && word(name.front()) && word(name.back()) &&
         std::ranges::all_of(name, [&](char c) { return word(c) || c == '-' || c == '_' || c == '.'; });
}

}  // namespace

bool is_mig_profile_name(std::string_view text) {
  const auto dot = text.find('.');
  if (dot == std::string_view::npos) return false;
  std::optional<std::uint64_t> compute;
  if (dot > 0 && text[dot - 1] == 'c') {
    compute = take_count(text, "c.");
    if (!compute) return false;
  }
  const auto slices = take_count(text, "g.");
  return slices && (!compute || *compute <= *slices) && take_count(text, "gb") && attributes(text);
}

std::optional<NodeLabel> parse_node_label(std::string_view text) {
  const auto equals = text.find('=');
  NodeLabel label;
  label.key = std::string(text.substr(0, equals));
  if (equals != std::string_view::npos) label.value = std::string(text.substr(equals + 1));
  const auto slash = label.key.find('/');
  const std::string_view key(label.key);
  if (slash != std::string::npos && !is_dns_subdomain(key.substr(0, slash))) return std::nullopt;
  if (!label_name(slash == std::string::npos ? key : key.substr(slash + 1))) return std::nullopt;
  if (label.value && !label.value->empty() && !label_name(*label.value)) return std::nullopt;
  return label;
}

std::optional<std::uint64_t> parse_whole_number(std::string_view text) {
  if (const auto digits = text::parse_unsigned(text)) return *digits;
  constexpr double kExact = 9'007'199'254'740'992;  // 2^53
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  // Not "inf" and "nan", which YAML writes otherwise.
  const bool plain = !text.empty() && (text::is_digit(text.front()) || text.front() == '.');
  if (error != std::errc() || end != text.data() + text.size() || !plain) return std::nullopt;
  if (number > kExact || number != std::floor(number)) return std::nullopt;
  return static_cast<std::uint64_t>(number);
}

std::optional<bool> parse_go_bool(std::string_view text) {
  for (const std::string_view yes : {"1", "t", "T", "TRUE", "true", "True"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"0", "f", "F", "FALSE", "false", "False"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

std::optional<bool> parse_yaml_bool(std::string_view text) {
  for (const std::string_view yes :
       {"true", "True", "TRUE", "y", "Y", "yes", "Yes", "YES", "on", "On", "ON"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no :
       {"false", "False", "FALSE", "n", "N", "no", "No", "NO", "off", "Off", "OFF"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

std::optional<unsigned> parse_file_mode(std::string_view text) {
  if (text.size() != 4 || text[0] != '0') return std::nullopt;
  unsigned mode = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '7') return std::nullopt;
    mode = mode * 8 + static_cast<unsigned>(digit - '0');
  }
  return mode;
}

Result<ResourceName> parse_resource_name(std::string_view given) {
  std::string full(given);
  if (!text::starts_with(full, kPrefix)) full = std::string(kPrefix) + full;
  if (full.size() > kMaxResourceNameLength) {
    return fail(Code::kInvalidArgument,
                "fully-qualified resource name must be " + std::to_string(kMaxResourceNameLength) +
                    " characters or less: " + full.substr(0, 80) + " has " + std::to_string(full.size()));
  }
  if (!is_dns_subdomain(std::string_view(full).substr(kPrefix.size()))) {
    return fail(Code::kInvalidArgument,
                "incorrect format for resource name '" + full +
                    "': after nvidia.com/ come lower case letters, digits, '-' and '.', "
                    "beginning and ending with a letter or digit");
  }
  return ResourceName(std::move(full));
}

}  // namespace gpulet::config
