#include "base/dns_name.h"

#include <algorithm>

namespace gpulet {
namespace {

constexpr std::size_t kMaxLabel = 63, kMaxSubdomain = 253;

constexpr bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// Or a digit.
constexpr bool is_letter(char c) { return is_alphanumeric(c) || (c >= 'A' && c <= 'Z'); }

// A label of any length.
bool has_label_form(std::string_view text) {
  return !text.empty() && is_alphanumeric(text.front()) && is_alphanumeric(text.back()) &&
         std::ranges::all_of(text, [](char c) { return is_alphanumeric(c) || c == '-'; });
}

}  // namespace

bool is_dns_label(std::string_view text) { return text.size() <= kMaxLabel && has_label_form(text); }

bool is_dns_subdomain(std::string_view text) {
  if (text.size() > kMaxSubdomain) return false;
  for (;;) {
    const auto dot = text.find('.');
    if (!has_label_form(text.substr(0, dot))) return false;
    if (dot == std::string_view::npos) return true;
    text.remove_prefix(dot + 1);
  }
}

bool is_qualified_name(std::string_view text) {
  if (const auto slash = text.find('/'); slash != std::string_view::npos) {
    if (!is_dns_subdomain(text.substr(0, slash))) return false;
    text.remove_prefix(slash + 1);
  }
  const auto is_inner = [](char c) { return is_letter(c) || c == '-' || c == '_' || c == '.'; };
  return !text.empty() && text.size() <= kMaxLabel && is_letter(text.front()) && is_letter(text.back()) &&
         std::ranges::all_of(text, is_inner);
}

std::string label_characters(std::string_view raw) {
  std::string kept;
  std::size_t end = 0;  // after the last letter or digit
  bool blank = false;
  for (const char c : raw) {
    if (c == ' ') {
      blank = true;
    } else if (is_letter(c) || (!kept.empty() && (c == '-' || c == '_' || c == '.'))) {
      if (blank && !kept.empty()) kept += '-';
      blank = false;
      kept += c;
      if (is_letter(c)) end = kept.size();
    }
  }
  kept.resize(end);
  return kept;
}

}  // namespace gpulet
