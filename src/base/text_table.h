// Tables in aligned columns for a terminal, and what their cells have in common.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gpulet {

using TableRows = std::vector<std::vector<std::string>>;

inline constexpr const char* kDash = "-";  // a cell without a value
inline std::string dash_if_empty(const std::string& text) { return text.empty() ? kDash : text; }

// Columns of UTF-8 text on a screen, one for each character.
std::size_t display_width(const std::string& text);

// Columns two spaces apart, as wide as their widest cell, no spaces at a line's end. Rows may be short.
std::string render_table(const TableRows& rows);

// "79.6 GiB", "512 MiB", "0 B": three digits, enough to tell two cards apart.
std::string format_bytes(unsigned long long bytes);

}  // namespace gpulet
