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

std::string format_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

}  // namespace

std::string_view Exposition::type_name(Type type) {
  switch (type) {
    case Type::kCounter:
      return "counter";
    case Type::kGauge:
      return "gauge";
    case Type::kHistogram:
      break;
  }
  return "histogram";
}

Exposition::Labels::Labels(std::span<const Label> labels) {
  for (const auto& [name, value] : labels) {
    text_ += text_.empty() ? '{' : ',';
    text_.append(name).append("=\"").append(escaped(value, true)) += '"';
  }
  if (!text_.empty()) text_ += '}';
}

void Exposition::add_sample(std::string_view name, Type type, std::string_view help, const Labels& labels,
                            double value) {
  add_sample_text(name, type, help, labels, format_number(value));
}

void Exposition::add_histogram(std::string_view name, std::string_view help, const Labels& labels,
                               const Histogram& histogram) {
  const std::string& own = labels.label_text();
  const std::string before = own.empty() ? "{" : own.substr(0, own.size() - 1) + ",";
  std::string lines;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i <= histogram.bounds.size(); ++i) {
    if (i < histogram.counts.size()) count += histogram.counts[i];
    const std::string bound = i < histogram.bounds.size() ? format_number(histogram.bounds[i]) : "+Inf";
    lines.append(name).append("_bucket").append(before).append("le=\"").append(bound).append("\"} ");
    lines.append(std::to_string(count)) += '\n';
  }
  lines.append(name).append("_sum").append(own).append(" ").append(format_number(histogram.sum)) += '\n';
  lines.append(name).append("_count").append(own).append(" ").append(std::to_string(count)) += '\n';
  add_sample_text(name, Type::kHistogram, help, labels, std::move(lines));
}

void Exposition::add_sample_text(std::string_view name, Type type, std::string_view help,
                                 const Labels& labels, std::string value) {
  auto family = families_.find(name);
  if (family == families_.end()) {
    family = families_.emplace(std::string(name), Family{type, std::string(help), {}}).first;
  }
  family->second.samples[labels.label_text()] = std::move(value);
}

void Exposition::append_samples(std::string& page, std::string_view name, const Family& family) {
  for (const auto& [labels, value] : family.samples) {
    if (family.type == Type::kHistogram) {
      page += value;
    } else {
      page.append(name).append(labels).append(" ").append(value) += '\n';
    }
  }
}

std::string Exposition::text_format() const {
  std::string page;
  for (const auto& [name, family] : families_) {
    page.append("# HELP ").append(name).append(" ").append(escaped(family.help, false)) += '\n';
    page.append("# TYPE ").append(name).append(" ").append(type_name(family.type)) += '\n';
    append_samples(page, name, family);
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
    page.append("# TYPE ").append(shown).append(" ");
    page.append(counter && !total ? "unknown" : type_name(family.type)) += '\n';
    append_samples(page, name, family);
  }
  return page += "# EOF\n";
}

}  // namespace gpulet::metrics
