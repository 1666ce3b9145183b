// Text in aligned columns, for people.
#pragma once

#include <string>
#include <vector>

namespace gpulet::cli {

using Rows = std::vector<std::vector<std::string>>;

inline constexpr const char* kNone = "-";  // a cell's text where there is nothing to say
inline std::string or_none(const std::string& text) { return text.empty() ? kNone : text; }

// Columns two blanks apart, as wide as their widest cell, no blanks at a line's end. Rows may be short.
std::string text_table(const Rows& rows);

// "79.6 GiB", "512 MiB", "0 B": three digits are enough to tell one card from another.
std::string human_bytes(unsigned long long bytes);

}  // namespace gpulet::cli
