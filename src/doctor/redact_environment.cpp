// Secrets in lines of NAME=value.
#include <algorithm>
#include <cctype>

#include "base/text.h"
#include "doctor/redact.h"

namespace gpulet::doctor {
namespace {

class EnvironmentRedactor {
 public:
  explicit EnvironmentRedactor(std::string_view text) : rest_(text) {}

  std::optional<std::string> redact() {
    std::string out;
    while (!rest_.empty()) {
      const std::string_view line = text::trim(rest_.substr(0, rest_.find('\n')));
      if (line.empty() || line.front() == '#' || line.front() == ';') {
        skip_line();
        continue;
      }
      if (line.front() == '[' && line.back() == ']' && line.find('=') == std::string_view::npos) {
        out += redact_text(line) + "\n";
        skip_line();
        continue;
      }
      const auto equals = line.find('=');
      std::string name(text::trim(line.substr(0, equals)));
      if (name.starts_with("export ")) name = name.substr(7);
      if (equals == std::string_view::npos || !is_variable_name(name)) return std::nullopt;
      rest_.remove_prefix(rest_.find('=') + 1);
      const std::string value = take_value();
      out += name + "=" + redacted_value(name, value) + "\n";
    }
    return out;
  }

 private:
  static bool is_variable_name(std::string_view name) {
    return !name.empty() && std::ranges::all_of(name, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
             std::string_view("_-. ").find(c) != std::string_view::npos;
    });
  }

  void skip_line() { rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size() - 1) + 1); }

  // The value with its line breaks.
  std::string take_value() {
    char open = '\0';
    std::size_t at = 0;
    for (; at < rest_.size(); ++at) {
      const char c = rest_[at];
      if (c == '\\' && open != '\'') {
        ++at;
      } else if (open != '\0') {
        if (c == open) open = '\0';
      } else if (c == '\n') {
        break;
      } else if (c == '"' || c == '\'') {
        open = c;
      }
    }
    at = std::min(at, rest_.size());
    std::string value(text::trim(rest_.substr(0, at)));
    rest_.remove_prefix(std::min(at + 1, rest_.size()));
    return value;
  }

  static std::string redacted_value(const std::string& name, const std::string& value) {
    std::string_view bare = value;
    const bool quoted =
        bare.size() >= 2 && (bare.front() == '"' || bare.front() == '\'') && bare.back() == bare.front();
    if (quoted) bare = bare.substr(1, bare.size() - 2);
    if (is_secret_value(name, bare) || (text::lower(name) == "key" && is_secret_value("own-key", bare)))
      return std::string(kRedacted);
    // In quotes a whole argument may be NAME=value with blanks: Environment="DB_PASS=a b" "C=d".
    std::string out;
    std::size_t at = 0;
    for (; at < value.size();) {
      const auto open = value.find_first_of("\"'", at);
      if (open == std::string::npos) break;
      auto close = open + 1;
      while (close < value.size() && value[close] != value[open])
        close += value[open] == '"' && value[close] == '\\' ? 2 : 1;
      close = std::min(close, value.size());
      const std::string inside = value.substr(open + 1, close - open - 1);
      const auto equals = inside.find('=');
      const bool secret = equals != std::string::npos && inside.find(' ') > equals &&
                          is_secret_value(inside.substr(0, equals), inside.substr(equals + 1));
      // What stands in front, with an open quote, so that NAME="x y" is seen as one.
      const std::string before = value.substr(at, open - at);
      const auto name_end = before.find_last_not_of("= ");
      const bool assigned = before.ends_with('=') && name_end != std::string::npos &&
                            is_secret_name(before.substr(before.find_last_of(" \t\n", name_end) + 1));
      out += redact_text(before) + value[open];
      out += assigned ? std::string(kRedacted)
             : secret ? inside.substr(0, equals + 1) + std::string(kRedacted)
                      : redact_text(inside);
      if (close < value.size()) out += value[open];
      at = close + 1;
    }
    return out + redact_text(std::string_view(value).substr(std::min(at, value.size())));
  }

  std::string_view rest_;
};

}  // namespace

std::optional<std::string> redact_environment(std::string_view text) {
  return EnvironmentRedactor(text).redact();
}

}  // namespace gpulet::doctor
