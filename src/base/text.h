// Text helpers: splitting and parsing, times and durations as text, tables, and a stable hash.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"

namespace gpulet::text {

// The part after the last '/': "b" of "/a/b"; the whole path without a '/'.
constexpr std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }
// The part before it: "/a" of "/a/b"; "/" for "/b" and without a '/'.
constexpr std::string_view parent_directory(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == 0 || slash == std::string_view::npos ? "/" : path.substr(0, slash);
}
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "a,b,,c" split at ',' → {"a","b","","c"}; an empty text gives {}.
std::vector<std::string> split(std::string_view text, char separator);
// Removes blanks (space, tab, CR, LF) at both ends.
std::string_view trim(std::string_view text);
std::string join(std::span<const std::string> parts, std::string_view separator);
// The first `limit` parts: "a, b, c and 3 more".
std::string join_limited(std::span<const std::string> parts, std::size_t limit = 3);
// The first `limit` bytes with '?' in place of all but printable ASCII: text from outside for a log or a
// terminal, which control characters could forge.
std::string printable(std::string_view text, std::size_t limit = std::string_view::npos);
// "1 GPU", "8 GPUs".
std::string count_text(std::size_t count, std::string_view noun);
// Decodes percent escapes ("%41"), and "+" as a blank if `plus_is_blank`; nullopt for an invalid escape.
std::optional<std::string> decode_percent(std::string_view text, bool plus_is_blank);
std::string lower(std::string_view text);
bool starts_with(std::string_view text, std::string_view prefix);

// Parses a non-negative decimal integer; nullopt for any other text or out of range.
std::optional<std::uint64_t> parse_unsigned(std::string_view text);

// Base64 with padding (RFC 4648, section 4). Decoding gives an empty text for anything else, white space
// included.
std::string encode_base64(std::string_view bytes);
std::string decode_base64(std::string_view text);

// The length of the UTF-8 character that `text` starts with; 0 if there is none. RFC 3629, section 4. The end
// of the text counts as a byte 0.
std::size_t utf8_length(std::string_view text);

// For "did you mean": the candidate with the fewest edits from `word`, if they are at most a third of its
// length (at least 1, at most 3). Ties go to the earlier candidate.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace gpulet::text

namespace gpulet {

// Wall time as text: RFC 3339 in UTC with milliseconds, as Kubernetes' MicroTime and log tools read it.

// The range of the text; beyond it, nanoseconds since 1970 do not fit an int64.
inline constexpr WallTime kFirstWallTime{};
inline constexpr WallTime kLastWallTime{std::chrono::milliseconds(9'200'000'000'000)};  // in the year 2261

// "2026-01-31T12:00:00.123Z", rounded down and clamped to the range.
std::string format_wall_time(WallTime wall);
// Milliseconds since 1970, rounded down, as in JSON documents and JavaScript's Date.
std::int64_t unix_milliseconds(WallTime wall);
// Parses exactly that form; nullopt for any other text or out of range.
std::optional<WallTime> parse_wall_time(std::string_view text);

// Durations as text, in Go's form.

// As Go's time.ParseDuration: "1h30m", "1.5s", "-2ms", "0". Units: ns us µs ms s m h. Returns nullopt if the
// text has another form or exceeds an int64 of nanoseconds.
std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text);

// "1m30s", "500ms", "0s": the shortest text that parse_duration reads back.
std::string format_duration(std::chrono::nanoseconds duration);

// Tables in aligned columns for a terminal, and what their cells have in common.

using TableRows = std::vector<std::vector<std::string>>;

inline constexpr const char* kDash = "-";  // a cell without a value
inline std::string dash_if_empty(const std::string& text) { return text.empty() ? kDash : text; }

// Columns of UTF-8 text on a screen, one for each character.
std::size_t display_width(const std::string& text);

// Columns two spaces apart, as wide as their widest cell, no spaces at a line's end. Rows may be short.
std::string render_table(const TableRows& rows);

// "79.6 GiB", "512 MiB", "0 B": three digits, enough to tell two cards apart.
std::string format_bytes(unsigned long long bytes);

// FNV-1a: a fast hash whose values are the same in every process and on every machine, for names and
// checksums of what gpulet writes itself. Not for untrusted keys.
// Source: http://www.isthe.com/chongo/tech/comp/fnv/

inline constexpr std::uint64_t kFnv1aBasis64 = 0xcbf29ce484222325u;
inline constexpr std::uint32_t kFnv1aBasis32 = 0x811c9dc5u;

// Continues from `basis`, so that a text can be hashed in parts.
constexpr std::uint64_t fnv1a_64(std::string_view text, std::uint64_t basis = kFnv1aBasis64) {
  for (const char c : text) basis = (basis ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return basis;
}
constexpr std::uint32_t fnv1a_32(std::string_view text, std::uint32_t basis = kFnv1aBasis32) {
  for (const char c : text) basis = (basis ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return basis;
}

// The lowest `digits` hexadecimal digits of `value`, lower case, with leading zeros.
inline std::string hex_text(std::uint64_t value, std::size_t digits = 16) {
  std::string text(digits, '0');
  for (auto at = text.rbegin(); at != text.rend(); ++at, value >>= 4) *at = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace gpulet
