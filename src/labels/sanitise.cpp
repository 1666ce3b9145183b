#include "labels/sanitise.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace gpulet::labels {
namespace {

constexpr std::size_t kMaxPrefix = 253;  // a DNS subdomain
constexpr std::size_t kHashDigits = 6;
constexpr const char* kUnnamed = "unnamed";

// In no locale.
bool letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}
bool allowed(char c) { return letter_or_digit(c) || c == '-' || c == '_' || c == '.'; }

std::string_view without_ends(std::string_view text) {
  while (!text.empty() && !letter_or_digit(text.front())) text.remove_prefix(1);
  while (!text.empty() && !letter_or_digit(text.back())) text.remove_suffix(1);
  return text;
}

// Only what may stand in a value, not cut yet.
std::string allowed_part(std::string_view raw) {
  std::string kept;
  bool blank = false;
  for (const char c : raw) {
    if (c == ' ') {
      blank = true;
    } else if (allowed(c)) {
      if (blank && !kept.empty()) kept += '-';
      blank = false;
      kept += c;
    }
  }
  return std::string(without_ends(kept));
}

// FNV-1a.
std::uint32_t hash_of(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

bool subdomain(std::string_view text) {
  if (text.empty() || text.size() > kMaxPrefix) return false;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const auto end = std::min(text.find('.', begin), text.size());
    const auto part = text.substr(begin, end - begin);
    const bool inner = std::ranges::all_of(
        part, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
    if (part.empty() || !inner || part.front() == '-' || part.back() == '-') return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

bool valid_value(std::string_view value) {
  if (value.empty()) return true;
  return value.size() <= kMaxLength && letter_or_digit(value.front()) && letter_or_digit(value.back()) &&
         std::ranges::all_of(value, allowed);
}

bool valid_key(std::string_view key) {
  const auto slash = key.find('/');
  const auto name = slash == std::string_view::npos ? key : key.substr(slash + 1);
  return (slash == std::string_view::npos || subdomain(key.substr(0, slash))) && !name.empty() &&
         valid_value(name);
}

std::string clean_value(std::string_view raw, std::string_view suffix) {
  const std::string kept = allowed_part(raw);
  const auto cut = without_ends(std::string_view(kept).substr(0, kMaxLength - suffix.size()));
  return std::string(without_ends(std::string(cut) + std::string(suffix)));
}

std::string clean_key_part(std::string_view raw, std::size_t most) {
  const std::string kept = allowed_part(raw);
  if (kept.empty()) return kUnnamed;
  if (kept.size() <= most) return kept;
  char digits[kHashDigits + 1];
  std::snprintf(digits, sizeof digits, "%06x", hash_of(kept) & 0xffffff);
  const auto cut = without_ends(std::string_view(kept).substr(0, most - kHashDigits - 1));
  return std::string(cut) + "-" + digits;
}

}  // namespace gpulet::labels
