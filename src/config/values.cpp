#include "config/values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/text.h"

namespace gpulet::config {
namespace {

constexpr std::string_view kPrefix = "nvidia.com/";

struct Unit {
  std::string_view name;
  std::int64_t nanoseconds;
};
// Longer names first: "ms" is not "m".
constexpr std::array<Unit, 8> kUnits = {{{"ns", 1},
                                         {"us", 1'000},
                                         {"\xc2\xb5s", 1'000},  // U+00B5
                                         {"\xce\xbcs", 1'000},  // U+03BC
                                         {"ms", 1'000'000},
                                         {"s", 1'000'000'000},
                                         {"m", 60'000'000'000},
                                         {"h", 3'600'000'000'000}}};

bool digit(char c) { return c >= '0' && c <= '9'; }

// One "<number><unit>" taken off the front of `rest`, in nanoseconds.
std::optional<std::int64_t> take_part(std::string_view& rest) {
  std::uint64_t whole = 0;
  double fraction = 0;
  double scale = 1;
  bool any = false;
  for (; !rest.empty() && digit(rest.front()); rest.remove_prefix(1), any = true) {
    if (whole > std::numeric_limits<std::int64_t>::max() / 10) return std::nullopt;
    whole = whole * 10 + static_cast<std::uint64_t>(rest.front() - '0');
  }
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    for (; !rest.empty() && digit(rest.front()); rest.remove_prefix(1), any = true) {
      scale /= 10;
      fraction += scale * (rest.front() - '0');
    }
  }
  if (!any) return std::nullopt;
  for (const auto& unit : kUnits) {
    if (!text::starts_with(rest, unit.name)) continue;
    const auto after = rest.substr(unit.name.size());
    if (!after.empty() && !digit(after.front()) && after.front() != '.') continue;
    rest = after;
    const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / unit.nanoseconds);
    if (whole > most) return std::nullopt;
    const auto full = static_cast<std::int64_t>(whole) * unit.nanoseconds;
    const auto part =
        static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(unit.nanoseconds)));
    if (part > std::numeric_limits<std::int64_t>::max() - full) return std::nullopt;
    return full + part;
  }
  return std::nullopt;
}

bool label_character(char c) { return (c >= 'a' && c <= 'z') || digit(c); }

bool dns_subdomain(std::string_view name) {
  if (name.empty()) return false;
  for (const auto& label : text::split(name, '.')) {
    if (label.empty() || label.size() > 63 || !label_character(label.front()) ||
        !label_character(label.back())) {
      return false;
    }
    if (!std::ranges::all_of(label, [](char c) { return label_character(c) || c == '-'; })) return false;
  }
  return true;
}

}  // namespace

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

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  bool negative = false;
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    negative = text.front() == '-';
    text.remove_prefix(1);
  }
  if (text == "0") return std::chrono::nanoseconds{};
  if (text.empty()) return std::nullopt;
  std::int64_t sum = 0;
  while (!text.empty()) {
    const auto part = take_part(text);
    if (!part || *part > std::numeric_limits<std::int64_t>::max() - sum) return std::nullopt;
    sum += *part;
  }
  return std::chrono::nanoseconds(negative ? -sum : sum);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  auto rest = duration.count();
  if (rest == 0) return "0s";
  std::string out = rest < 0 ? "-" : "";
  // The most negative count has no opposite; one nanosecond less is near enough.
  if (rest < 0)
    rest =
        rest == std::numeric_limits<std::int64_t>::min() ? std::numeric_limits<std::int64_t>::max() : -rest;
  for (const auto& [name, size] : {kUnits[7], kUnits[6], kUnits[5], kUnits[4], kUnits[1], kUnits[0]}) {
    if (rest < size) continue;
    out += std::to_string(rest / size) + std::string(name);
    rest %= size;
  }
  return out;
}

Result<ResourceName> parse_resource_name(std::string_view given) {
  std::string full(given);
  if (!text::starts_with(full, kPrefix)) full = std::string(kPrefix) + full;
  if (full.size() > kMaxResourceNameLength) {
    return fail(Code::kInvalidArgument,
                "fully-qualified resource name must be " + std::to_string(kMaxResourceNameLength) +
                    " characters or less: " + full.substr(0, 80) + " has " + std::to_string(full.size()));
  }
  if (!dns_subdomain(std::string_view(full).substr(kPrefix.size()))) {
    return fail(Code::kInvalidArgument,
                "incorrect format for resource name '" + full +
                    "': after nvidia.com/ come lower case letters, digits, '-' and '.', "
                    "beginning and ending with a letter or digit");
  }
  return ResourceName(std::move(full));
}

}  // namespace gpulet::config
