// The wall's time as text: RFC 3339 in UTC with milliseconds, as Kubernetes' MicroTime and every log tool
// read it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/loop.h"

namespace gpulet {

// What the text can hold; beyond, nanoseconds since 1970 no longer fit.
inline constexpr WallTime kFirstWallTime{};
inline constexpr WallTime kLastWallTime{std::chrono::milliseconds(9'200'000'000'000)};  // in the year 2261

// "2026-01-31T12:00:00.123Z", rounded down; what is out of bounds as the nearest in them.
std::string wall_text(WallTime wall);
// Since 1970, rounded down: what documents for machines have, and JavaScript's Date.
std::int64_t unix_milliseconds(WallTime wall);
// Exactly that form, within the bounds; nullopt for anything else.
std::optional<WallTime> parse_wall_text(std::string_view text);

}  // namespace gpulet
