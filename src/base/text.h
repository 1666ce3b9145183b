// Small text helpers that more than one room needs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpulet::text {

// Behind the last '/': "b" of "/a/b", the whole of what has none.
constexpr std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "a,b,,c" split at ',' → {"a","b","","c"}; an empty text gives {}.
std::vector<std::string> split(std::string_view text, char separator);
// Without blanks (space, tab, CR, LF) at either end.
std::string_view trim(std::string_view text);
std::string join(std::span<const std::string> parts, std::string_view separator);
std::string lower(std::string_view text);
bool starts_with(std::string_view text, std::string_view prefix);

// A whole decimal number and nothing else; nullopt for anything more, less, negative or out of range.
std::optional<std::uint64_t> parse_unsigned(std::string_view text);

// The candidate with the fewest edits from `word`, if that is at most a third of the word's length (at least
// 1, at most 3): what "did you mean" offers. Ties go to the earlier candidate.
std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates);

}  // namespace gpulet::text
