#include "web/exposition.h"

#include <array>
#include <charconv>
#include <cmath>

namespace gpulet::web {
namespace {

std::string escaped(std::string_view text, bool quotes) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\\\";
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '"' && quotes) {
      result += "\\\"";
    } else {
      result += c;
    }
  }
  return result;
}

}  // namespace

void Exposition::add(std::string_view name, Type type, std::string_view help, Labels labels, double value) {
  if (std::isnan(value)) return add_text(name, type, help, labels, "NaN");
  if (std::isinf(value)) return add_text(name, type, help, labels, value > 0 ? "+Inf" : "-Inf");
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  add_text(name, type, help, labels, std::string(digits.data(), end));
}

void Exposition::add_text(std::string_view name, Type type, std::string_view help, Labels labels, std::string value) {
  auto family = families_.find(name);
  if (family == families_.end()) {
    family = families_.emplace(std::string(name), Family{type, std::string(help), {}}).first;
  }
  std::string key;
  for (const auto& [label, text] : labels) {
    key += key.empty() ? '{' : ',';
    key.append(label).append("=\"").append(escaped(text, true)) += '"';
  }
  if (!key.empty()) key += '}';
  family->second.samples[std::move(key)] = std::move(value);
}

std::string Exposition::text() const {
  std::string page;
  for (const auto& [name, family] : families_) {
    page.append("# HELP ").append(name).append(" ").append(escaped(family.help, false)) += '\n';
    page.append("# TYPE ").append(name).append(family.type == Type::kCounter ? " counter\n" : " gauge\n");
    for (const auto& [labels, value] : family.samples) {
      page.append(name).append(labels).append(" ").append(value) += '\n';
    }
  }
  return page;
}

}  // namespace gpulet::web
