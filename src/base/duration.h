// Durations as text, in Go's form.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace gpulet {

// As Go's time.ParseDuration: "1h30m", "1.5s", "-2ms", "0". Units: ns us µs ms s m h. Returns nullopt if the
// text has another form or exceeds an int64 of nanoseconds.
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);

// "1m30s", "500ms", "0s": the shortest text that parse_duration reads back.
std::string format_duration(std::chrono::nanoseconds duration);

}  // namespace gpulet
