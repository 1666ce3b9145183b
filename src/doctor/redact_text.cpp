// Secrets in free text: log lines, messages, command lines.
#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "base/text.h"
#include "doctor/redact.h"

namespace gpulet::doctor {
namespace {

// Prefixes of well-known tokens, and the minimum length of the rest.
struct Form {
  std::string_view begins;
  std::size_t more;
};
constexpr Form kForms[] = {{"eyJ", 17},       {"AKIA", 16},        {"ghp_", 16},   {"gho_", 16},
                           {"ghs_", 16},      {"github_pat_", 16}, {"glpat-", 16}, {"xoxb-", 16},
                           {"xoxp-", 16},     {"hvs.", 16},        {"nvapi-", 16}, {"sk-", 20},
                           {"ASIA", 16},      {"AIza", 30},        {"ya29.", 16},  {"npm_", 16},
                           {"dckr_pat_", 16}, {"hf_", 16},         {"glsa_", 16},  {"SG.", 20}};
constexpr std::size_t kLongToken = 40;
constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";

bool is_word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' || c == '+';
}
bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_quote(char c) { return c == '"' || c == '\''; }

bool is_base64_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '/';
}

bool has_mixed_characters(std::string_view text) {
  const auto has = [&](int (*kind)(int)) {
    return std::ranges::any_of(text, [&](char c) { return kind(static_cast<unsigned char>(c)) != 0; });
  };
  return has(std::isupper) && has(std::islower) && has(std::isdigit);
}

bool is_known_token(std::string_view word) {
  for (const auto& form : kForms) {
    if (word.starts_with(form.begins) && word.size() >= form.begins.size() + form.more) return true;
  }
  const auto parts = text::split(word, '-');  // no part of a UUID is that long
  return std::ranges::any_of(parts, [](const std::string& part) {
    return part.size() >= kLongToken && part.find('.') == std::string::npos && has_mixed_characters(part);
  });
}

class TextRedactor {
 public:
  explicit TextRedactor(std::string_view text) : text_(text) {}

  std::string redact() {
    while (at_ < text_.size()) {
      if (!redact_private_key() && !redact_url_user() && !redact_base64() && !redact_word())
        out_ += text_[at_++];
    }
    return std::move(out_);
  }

 private:
  bool starts_here(std::string_view with) const { return text_.substr(at_).starts_with(with); }
  char peek(std::size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  void redact_until(std::size_t until) {
    out_ += kRedacted;
    at_ = until;
  }

  bool redact_private_key() {
    constexpr std::string_view kBegin = "-----BEGIN ", kEnd = "-----END ";
    if (!starts_here(kBegin)) return false;
    const auto head = text_.substr(at_, text_.find("-----", at_ + kBegin.size()) - at_);
    if (head.find("PRIVATE KEY") == std::string_view::npos) return false;
    const auto end = text_.find(kEnd, at_);
    const auto close = end == std::string_view::npos ? end : text_.find("-----", end + kEnd.size());
    redact_until(close == std::string_view::npos ? text_.size() : close + 5);
    return true;
  }

  bool redact_url_user() {
    if (!starts_here("://")) return false;
    const auto rest = text_.substr(at_ + 3, text_.find_first_of(" \t\"'\n", at_ + 3) - at_ - 3);
    const auto authority = rest.substr(0, rest.find_first_of("/?#"));
    auto at = authority.rfind('@');
    // A password may contain '/', '?' or '#'; a port consists of digits.
    const auto colon = authority.rfind(':');
    if (at == std::string_view::npos && colon != std::string_view::npos &&
        !std::ranges::all_of(authority.substr(colon + 1), text::is_digit) && !authority.starts_with('['))
      at = rest.rfind('@');
    if (at == std::string_view::npos) return false;
    out_ += "://";
    redact_until(at_ + 3 + at);
    return true;
  }

  // 40 or more characters of base64 in a row, also a key of AWS. A path begins with '/'.
  bool redact_base64() {
    if (!is_base64_char(text_[at_]) || text_[at_] == '/' || (at_ > 0 && is_base64_char(text_[at_ - 1])))
      return false;
    std::size_t end = at_;
    while (end < text_.size() && is_base64_char(text_[end])) ++end;
    if (end - at_ < kLongToken || !has_mixed_characters(text_.substr(at_, end - at_))) return false;
    while (peek(end) == '=') ++end;
    redact_until(end);
    return true;
  }

  // A word, and the secret value behind it, if any.
  bool redact_word() {
    if (!is_word_char(text_[at_])) return false;
    std::size_t end = at_;
    while (end < text_.size() && is_word_char(text_[end])) ++end;
    const auto word = text_.substr(at_, end - at_);
    if (const auto colon = find_separator(end)) {
      out_ += text_.substr(at_, *colon + 1 - at_);
      redact_value(word, at_, *colon);
      return true;
    }
    if (is_known_token(word)) {
      redact_until(end);
      return true;
    }
    out_ += word;
    at_ = end;
    if (peek(at_) != ' ' || !is_secret_next(word)) return true;
    out_ += text_[at_++];
    redact_until(end_of_next());
    return true;
  }

  // The end of a word, or of a quoted text.
  std::size_t end_of_next() const {
    if (is_quote(peek(at_))) return end_of_quoted(at_, 0);
    return std::min(text_.find_first_of(" \t\n\"'", at_), text_.size());
  }

  // Whether the word announces that the next one is a secret.
  bool is_secret_next(std::string_view word) const {
    const std::size_t begin = at_ + (is_quote(peek(at_ + 1)) ? 2 : 1);
    const auto next =
        text_.substr(std::min(begin, text_.size()), text_.find_first_of(" \t\n\"'", begin) - begin);
    if (next.empty() || next.starts_with('-') || next.starts_with('[')) return false;
    if (text::lower(word) == "bearer") return true;
    if (text::lower(word) == "basic")
      return next.size() >= 8 && next.find_first_not_of(kBase64) == std::string_view::npos &&
             (next.ends_with('=') ||
              next.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/") != std::string_view::npos);
    if (word == "-u" || word == "--user" || word == "--proxy-user")
      return next.find(':') != std::string_view::npos;
    return word.starts_with("--") && is_secret_value(word, next);
  }

  // The position of the ':' or '=' that makes the word before `end` a key.
  std::optional<std::size_t> find_separator(std::size_t end) const {
    std::size_t at = end;
    while (is_quote(peek(at)) || peek(at) == '\\') ++at;
    while (is_blank(peek(at))) ++at;
    const char c = peek(at);
    if (c == '=' || (c == ':' && peek(at + 1) != '/')) return at;
    return std::nullopt;
  }

  void redact_value(std::string_view key, std::size_t key_at, std::size_t separator) {
    at_ = separator + 1;
    while (is_blank(peek(at_))) out_ += text_[at_++];
    const bool quoted_key = key_at > 0 && is_quote(text_[key_at - 1]);
    const bool assigned = text_[separator] == '=';
    const auto end = end_of_value(quoted_key, assigned);
    const auto given = text_.substr(at_, end - at_);
    // A quoted value stays quoted, so that the whole remains valid JSON.
    const auto quotes = given.substr(0, given.find_first_not_of("\\\"'"));
    const auto inner = given.substr(quotes.size(), given.size() - std::min(given.size(), 2 * quotes.size()));
    const auto plain = text::lower(key);
    const bool of_variable = plain == "value" && secret_variable_;
    if (plain == "name") secret_variable_ = is_secret_name(inner.empty() ? given : inner);
    if (!is_secret_name(key) && !of_variable) return;  // the value itself is scanned next
    if (given.starts_with('{') || given.empty()) return;
    if (!of_variable && !is_secret_value(key, quotes.empty() ? given : inner)) return;
    if (given.starts_with('|') || given.starts_with('>')) return redact_until(end_of_block(key_at, end));
    out_ += quotes;
    redact_until(end);
    out_ += quotes;
  }

  // The end of the value that starts here: of a quoted one its closing quote, of one in JSON a comma or
  // bracket too, of one behind '=' a blank, else the line's end.
  std::size_t end_of_value(bool in_json, bool assigned) const {
    std::size_t at = at_;
    while (peek(at) == '\\') ++at;  // a string in a string
    if (is_quote(peek(at))) return end_of_quoted(at, at - at_);
    if (peek(at) == '[') return end_of_list(at);
    const auto end = text_.find_first_of(in_json ? " \t\n,;\"'}]&" : assigned ? " \t\n\"'" : "\n", at_);
    return std::min(end, text_.size());
  }

  // `at`: the opening quote, with `level` backslashes in front of it. The closing one has as many.
  std::size_t end_of_quoted(std::size_t at, std::size_t level) const {
    const char quote = text_[at];
    std::size_t backslashes = 0;
    for (++at; at < text_.size(); ++at) {
      if (text_[at] == quote && (level == 0 ? backslashes % 2 == 0 : backslashes <= level)) return at + 1;
      backslashes = text_[at] == '\\' ? backslashes + 1 : 0;
    }
    return text_.size();
  }

  std::size_t end_of_list(std::size_t at) const {
    int depth = 0;
    for (; at < text_.size(); ++at) {
      if (text_[at] == '[') ++depth;
      if (text_[at] == ']' && --depth == 0) return at + 1;
      if (is_quote(text_[at])) at = end_of_quoted(at, 0) - 1;
    }
    return text_.size();
  }

  // The end of the lines after `from` that are indented deeper than the key's line.
  std::size_t end_of_block(std::size_t key_at, std::size_t from) const {
    const auto line = text_.rfind('\n', key_at);
    const auto begin = line == std::string_view::npos ? 0 : line + 1;
    const auto indent = std::min(text_.find_first_not_of(' ', begin), key_at) - begin;
    std::size_t at = from;
    while (at < text_.size()) {
      const auto next = at + 1;
      const auto first = text_.find_first_not_of(' ', next);
      if (first == std::string_view::npos) return text_.size();
      if (text_[first] != '\n' && first - next <= indent) break;
      at = std::min(text_.find('\n', next), text_.size());
    }
    return at;
  }

  std::string_view text_;
  std::string out_;
  std::size_t at_ = 0;
  bool secret_variable_ = false;
};

}  // namespace

std::string redact_text(std::string_view text) { return TextRedactor(text).redact(); }

}  // namespace gpulet::doctor
