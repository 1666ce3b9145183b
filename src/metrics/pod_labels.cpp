#include "metrics/pod_labels.h"

#include <algorithm>
#include <regex>

#include "base/text.h"

namespace gpulet::metrics {
namespace {

// A key has at most 253 + 1 + 63 characters; a longer one is none, and would cost the matcher its stack.
constexpr std::size_t kLongestKey = 317;
constexpr std::size_t kLongestPattern = 1024;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

std::string to_name(const std::string& key) {
  std::string name;
  for (const char c : key) name += is_letter(c) || text::is_digit(c) ? c : '_';
  if (name.empty() || text::is_digit(name.front())) name.insert(name.begin(), '_');
  // Two underscores at the beginning are Prometheus' own.
  while (name.starts_with("__")) name.erase(name.begin());
  return name;
}

}  // namespace

struct LabelPatterns::Compiled {
  std::vector<std::regex> all;
};

Result<LabelPatterns> LabelPatterns::parse(const std::vector<std::string>& patterns,
                                           const std::string& about) {
  auto compiled = std::make_shared<Compiled>();
  for (const auto& pattern : patterns) {
    if (pattern.size() > kLongestPattern) {
      return fail(Code::kInvalidArgument,
                  "a pattern of more than " + std::to_string(kLongestPattern) + " characters", about);
    }
    try {
      compiled->all.emplace_back(pattern, std::regex::ECMAScript | std::regex::optimize);
    } catch (const std::regex_error& error) {
      return fail(Code::kInvalidArgument,
                  "\"" + pattern + "\" is no regular expression (" + error.what() + "): ^app$ would do",
                  about);
    }
  }
  LabelPatterns result;
  if (!patterns.empty()) result.compiled_ = std::move(compiled);
  return result;
}

bool LabelPatterns::allow(const std::string& key) const {
  if (key.size() > kLongestKey) return false;
  if (!compiled_) return true;
  return std::any_of(compiled_->all.begin(), compiled_->all.end(), [&](const std::regex& pattern) {
    try {
      return std::regex_search(key, pattern);
    } catch (const std::regex_error&) {
      return false;  // too costly for this key
    }
  });
}

std::vector<std::pair<std::string, std::string>> to_labels(const std::map<std::string, std::string>& labels,
                                                           const LabelPatterns& patterns) {
  std::map<std::string, std::string> named;
  for (const auto& [key, value] : labels) {
    if (patterns.allow(key)) named.emplace(to_name(key), value);
  }
  return {named.begin(), named.end()};
}

}  // namespace gpulet::metrics
