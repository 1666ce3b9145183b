// The table of all settings: flag, environment variables, path in the file, type, default and help of each.
// The command line, the loader and `gpulet config print` are driven by it.
//
// Names and defaults are NVIDIA's where NVIDIA has the setting (k8s-device-plugin v0.20.0, flags and
// api/config/v1). The lists `resources`, `sharing` and `gpulet.partition` have readers of their own:
// config/sections.h, config/partition_rules.h.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/text.h"

namespace gpulet::config {

struct Config;

enum class Kind {
  kBool,
  kString,
  kChoice,     // one of `choices`
  kChoices,    // some of `choices`, without duplicates; in the file a string or a list
  kStrings,    // a list; comma-separated in the environment and on the command line
  kUnsigned,   // a non-negative integer
  kUnsigneds,  // a list of them
  kDuration,   // Go's form: "10s", "1m30s", "500ms"
  kGrace,      // health::Grace: "stay", "finish", "finish=30m", "evict"
  kInterval,   // NVIDIA's form: a duration, "infinite", or a number of nanoseconds
};

// kBool: bool; kString, kChoice, kUnsigned, kDuration, kGrace, kInterval: text; lists: texts.
using Value = std::variant<bool, std::string, std::vector<std::string>>;

struct Setting {
  std::string_view flag = {};  // without dashes; empty: none
  std::vector<std::string_view> flag_aliases = {};
  std::vector<std::string_view> environment = {};  // the first that is set counts
  std::string_view path = {};                      // "flags.plugin.passDeviceSpecs"; empty: not in the file
  Kind kind = Kind::kString;
  std::span<const std::string_view> choices = {};
  std::string_view error_prefix = {};  // NVIDIA's error text for a value outside `choices`
  // In the form of the environment; nullopt: unset unless given.
  std::optional<std::string_view> default_text = std::nullopt;
  std::string_view help = {};  // one line
  // The range of kUnsigned and kDuration (in milliseconds); nullopt: any number, 1 ms to a day.
  struct Bounds {
    std::uint64_t least = 0, most = 0;
  };
  std::optional<Bounds> bounds = std::nullopt;
  bool discovery_only = false;             // a flag of `gpu-feature-discovery` only
  std::string_view discovery_choice = {};  // the one of `choices` that only `gpu-feature-discovery` takes
  // A value that NVIDIA's programs take and gpulet does not, and why.
  struct RefusedChoice {
    std::string_view name = {}, reason = {};
  };
  RefusedChoice refused_choice = {};
  // Stores a valid value; empty: accepted for compatibility, without effect.
  std::function<void(Config&, const Value&)> assign = nullptr;
};

// All settings, by section, in the order in which `gpulet config print` prints them.
std::span<const Setting> settings();

// Finds a setting by its flag or an alias, or by its path; null if there is none.
const Setting* find_setting_by_flag(std::string_view flag);
const Setting* find_setting_by_path(std::string_view path);
// The path of what other GPU programs and articles give a key or a flag of this name ("resourceNames",
// "resource-names"); empty: none.
std::string_view find_path_by_foreign_name(std::string_view name);

// For the tables: a Value as the type of a field of Config.

inline const std::string& text_value(const Value& value) { return std::get<std::string>(value); }
// Precondition: value_error() accepts the value.
inline std::chrono::nanoseconds duration_value(const Value& value) {
  return parse_duration(text_value(value)).value_or(std::chrono::nanoseconds{});
}
inline const std::vector<std::string>& list_value(const Value& value) {
  return std::get<std::vector<std::string>>(value);
}
inline bool bool_value(const Value& value) { return std::get<bool>(value); }

// The enumerator with the index of `value` in `names`. Precondition: `value` is one of them.
template <class Enum>
Enum enum_value(const std::string& value, std::span<const std::string_view> names) {
  return static_cast<Enum>(std::ranges::find(names, value) - names.begin());
}

}  // namespace gpulet::config
