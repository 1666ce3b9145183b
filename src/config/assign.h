// How a setting's plain Value becomes a field of Config: what the tables of settings are written with.
#pragma once

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "config/schema.h"
#include "config/values.h"

namespace gpulet::config {

inline const std::string& text(const Value& value) { return std::get<std::string>(value); }
// Of a text that the setting's check has found to be a duration.
inline std::chrono::nanoseconds duration(const Value& value) {
  return parse_duration(text(value)).value_or(std::chrono::nanoseconds{});
}
inline const std::vector<std::string>& texts(const Value& value) {
  return std::get<std::vector<std::string>>(value);
}
inline bool flag(const Value& value) { return std::get<bool>(value); }

// The enumerator whose name is at the same place in `names`. Precondition: `value` is one of them.
template <class Enum>
Enum choice(const std::string& value, std::span<const std::string_view> names) {
  return static_cast<Enum>(std::ranges::find(names, value) - names.begin());
}

}  // namespace gpulet::config
