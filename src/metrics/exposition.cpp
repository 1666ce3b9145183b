#include "metrics/exposition.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/text.h"

namespace gpulet::metrics {
namespace {

constexpr std::string_view kTotal = "_total";
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

std::string escaped(std::string_view text, bool quotes) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = text::utf8_length(text);
    const char c = text.front();
    if (length == 0) {
      result += kReplacement;
    } else if (c == '\\') {
      result += "\\\\";
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '"' && quotes) {
      result += "\\\"";
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

}  // namespace

Exposition::Labels::Labels(std::span<const Label> labels) {
  for (const auto& [name, value] : labels) {
    text_ += text_.empty() ? '{' : ',';
    text_.append(name).append("=\"").append(escaped(value, true)) += '"';
  }
  if (!text_.empty()) text_ += '}';
}

void Exposition::add_sample(std::string_view name, Type type, std::string_view help, const Labels& labels,
                            double value) {
  if (std::isnan(value)) return add_sample_text(name, type, help, labels, "NaN");
  if (std::isinf(value)) return add_sample_text(name, type, help, labels, value > 0 ? "+Inf" : "-Inf");
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  add_sample_text(name, type, help, labels, std::string(digits.data(), end));
}

void Exposition::add_sample_text(std::string_view name, Type type, std::string_view help,
                                 const Labels& labels, std::string value) {
  auto family = families_.find(name);
  if (family == families_.end()) {
    family = families_.emplace(std::string(name), Family{type, std::string(help), {}}).first;
  }
  family->second.samples[labels.label_text()] = std::move(value);
}

std::string Exposition::text_format() const {
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

std::string Exposition::open_metrics_format() const {
  std::string page;
  for (const auto& [name, family] : families_) {
    const bool total = name.ends_with(kTotal);
    const bool counter = family.type == Type::kCounter;
    const auto shown = std::string_view(name).substr(0, name.size() - (counter && total ? kTotal.size() : 0));
    page.append("# HELP ").append(shown).append(" ").append(escaped(family.help, true)) += '\n';
    page.append("# TYPE ").append(shown).append(!counter ? " gauge\n" : total ? " counter\n" : " unknown\n");
    for (const auto& [labels, value] : family.samples) {
      page.append(name).append(labels).append(" ").append(value) += '\n';
    }
  }
  return page += "# EOF\n";
}

}  // namespace gpulet::metrics
