#include "web/accept.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/text.h"

namespace gpulet::web {
namespace {

constexpr std::size_t kMostChoices = 64;  // of a field; a browser sends eight

// q as thousandths: "0.5" is 500. nullopt for what is no weight.
std::optional<int> weight(std::string_view text) {
  if (text.empty() || text.size() > 5 || (text[0] != '0' && text[0] != '1')) return std::nullopt;
  if (text.size() > 1 && text[1] != '.') return std::nullopt;
  int value = text[0] - '0', digits = 0;
  for (std::size_t i = 2; i < text.size(); ++i, ++digits) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
    value = value * 10 + (text[i] - '0');
  }
  for (; digits < 3; ++digits) value *= 10;
  return std::min(value, 1000);
}

struct Choice {
  std::string name;     // lower case, without parameters
  std::string version;  // its parameter of that name
  int weight = 1000;
};

// Calls `each(choice)`; one whose weight is none counts as not wanted.
template <class Each>
void each_choice(std::string_view field, Each each) {
  std::size_t count = 0;
  for (const auto& entry : text::split(field, ',')) {
    if (++count > kMostChoices) return;
    const auto parts = text::split(entry, ';');
    if (parts.empty()) continue;
    Choice choice{.name = text::lower(text::trim(parts[0])), .version = {}};
    for (std::size_t i = 1; i < parts.size(); ++i) {
      const std::string parameter(text::trim(parts[i]));
      const auto equals = parameter.find('=');
      if (equals == std::string::npos) continue;
      const std::string key = text::lower(text::trim(std::string_view(parameter).substr(0, equals)));
      std::string value(text::trim(std::string_view(parameter).substr(equals + 1)));
      if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
        value = value.substr(1, value.size() - 2);
      if (key == "version") choice.version = value;
      if (key == "q") choice.weight = weight(value).value_or(0);
    }
    each(choice);
  }
}

}  // namespace

bool prefers_open_metrics(std::string_view accept) {
  int open = 0;
  std::optional<int> plain, any_text, anything;
  each_choice(accept, [&](const Choice& choice) {
    auto raise = [&](std::optional<int>& best) { best = std::max(best.value_or(0), choice.weight); };
    if (choice.name == "application/openmetrics-text") {
      if (choice.version.empty() || choice.version == "1.0.0") open = std::max(open, choice.weight);
    } else if (choice.name == "text/plain") {
      if (choice.version.empty() || choice.version == "0.0.4") raise(plain);
    } else if (choice.name == "text/*") {
      raise(any_text);
    } else if (choice.name == "*/*") {
      raise(anything);
    }
  });
  const int text = plain ? *plain : any_text ? *any_text : anything.value_or(0);
  return open > 0 && open >= text;
}

bool takes_gzip(std::string_view accept_encoding) {
  std::optional<int> gzip, anything;
  each_choice(accept_encoding, [&](const Choice& choice) {
    if (choice.name == "gzip" || choice.name == "x-gzip") gzip = choice.weight;
    if (choice.name == "*") anything = choice.weight;
  });
  return (gzip ? *gzip : anything.value_or(0)) > 0;
}

}  // namespace gpulet::web
