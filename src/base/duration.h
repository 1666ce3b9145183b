// Durations as text: Go's form for settings and whatever a program reads back, kubectl's short form for
// people.
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

// "45s", "9m59s", "3h2m", "47h", "5d4h": at most two units, rounded down, "0s" for a negative duration. For
// ages in tables and messages; cannot be parsed back. Source: k8s.io/apimachinery, util/duration
// HumanDuration.
std::string format_age(std::chrono::nanoseconds age);

}  // namespace gpulet
