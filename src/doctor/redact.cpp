#include "doctor/redact.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "base/text.h"

namespace gpulet::doctor {
namespace {

// Parts of names, in lower case without '-', '_' and '.'.
constexpr std::array<std::string_view, 13> kSecretParts{
    "token",     "secret",     "passw",     "passphrase", "apikey",
    "accesskey", "privatekey", "clientkey", "credential", "connectionstring",
    "cookie",    "signature",  "license"};
// Names that are a secret's as a whole, or by their end.
constexpr std::array<std::string_view, 4> kSecretEnds{"auth", "authorization", "pwd", "dsn"};

// How tokens of well-known issuers begin, and how long what follows is at least.
struct Form {
  std::string_view begins;
  std::size_t more;
};
constexpr Form kForms[] = {{"eyJ", 17},   {"AKIA", 16},        {"ghp_", 16},   {"gho_", 16},
                           {"ghs_", 16},  {"github_pat_", 16}, {"glpat-", 16}, {"xoxb-", 16},
                           {"xoxp-", 16}, {"hvs.", 16},        {"nvapi-", 16}, {"sk-", 20}};
constexpr std::size_t kLongToken = 40;

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' || c == '+';
}
bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_quote(char c) { return c == '"' || c == '\''; }

bool is_token(std::string_view word) {
  for (const auto& form : kForms) {
    if (word.starts_with(form.begins) && word.size() >= form.begins.size() + form.more) return true;
  }
  const auto parts = text::split(word, '-');  // a UUID has none so long
  return std::ranges::any_of(parts, [](const std::string& part) {
    const auto has = [&](int (*kind)(int)) {
      return std::ranges::any_of(part, [&](char c) { return kind(static_cast<unsigned char>(c)) != 0; });
    };
    return part.size() >= kLongToken && part.find('.') == std::string::npos && has(std::isupper) &&
           has(std::islower) && has(std::isdigit);
  });
}

class Redactor {
 public:
  explicit Redactor(std::string_view text) : text_(text) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (!private_key() && !url_user() && !word()) out_ += text_[at_++];
    }
    return std::move(out_);
  }

 private:
  bool starts(std::string_view with) const { return text_.substr(at_).starts_with(with); }
  char peek(std::size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  void leave_out(std::size_t until) {
    out_ += kLeftOut;
    at_ = until;
  }

  bool private_key() {
    constexpr std::string_view kBegin = "-----BEGIN ", kEnd = "-----END ";
    if (!starts(kBegin)) return false;
    const auto head = text_.substr(at_, text_.find("-----", at_ + kBegin.size()) - at_);
    if (head.find("PRIVATE KEY") == std::string_view::npos) return false;
    const auto end = text_.find(kEnd, at_);
    const auto close = end == std::string_view::npos ? end : text_.find("-----", end + kEnd.size());
    leave_out(close == std::string_view::npos ? text_.size() : close + 5);
    return true;
  }

  bool url_user() {
    if (!starts("://")) return false;
    const auto end = text_.find_first_of("/?# \t\"'\n", at_ + 3);
    const auto at = text_.substr(at_, end - std::min(at_, end)).rfind('@');
    if (at == std::string_view::npos) return false;
    out_ += "://";
    leave_out(at_ + at);
    return true;
  }

  // A word, and what stands behind it where that is a secret.
  bool word() {
    if (!is_word(text_[at_])) return false;
    std::size_t end = at_;
    while (end < text_.size() && is_word(text_[end])) ++end;
    const auto word = text_.substr(at_, end - at_);
    if (const auto colon = separator(end)) {
      out_ += text_.substr(at_, *colon + 1 - at_);
      value(word, at_, *colon);
      return true;
    }
    if (is_token(word)) {
      leave_out(end);
      return true;
    }
    out_ += word;
    at_ = end;
    const bool option = word.starts_with("--") && names_a_secret(word);
    if ((option || text::lower(word) == "bearer") && peek(at_) == ' ' && peek(at_ + 1) != '-' &&
        peek(at_ + 1) != '[') {
      out_ += ' ';
      ++at_;
      leave_out(std::min(text_.find_first_of(" \t\n\"',", at_), text_.size()));
    }
    return true;
  }

  // Where the ':' or '=' is that makes the word before `end` a key.
  std::optional<std::size_t> separator(std::size_t end) const {
    std::size_t at = end;
    while (is_quote(peek(at)) || peek(at) == '\\') ++at;
    while (is_blank(peek(at))) ++at;
    const char c = peek(at);
    if (c == '=' || (c == ':' && peek(at + 1) != '/')) return at;
    return std::nullopt;
  }

  void value(std::string_view key, std::size_t key_at, std::size_t separator) {
    at_ = separator + 1;
    while (is_blank(peek(at_))) out_ += text_[at_++];
    const bool quoted_key = key_at > 0 && is_quote(text_[key_at - 1]);
    const auto end = end_of_value(quoted_key || text_[separator] == '=');
    const auto given = text_.substr(at_, end - at_);
    const auto plain = text::lower(key);
    const bool of_variable = plain == "value" && variable_is_secret_;
    if (plain == "name") variable_is_secret_ = names_a_secret(given);
    if (!names_a_secret(key) && !of_variable) return;  // what it is goes on to be looked at
    const bool structure = given.starts_with('{') || given.empty();
    if (structure) return;
    if (given.starts_with('|') || given.starts_with('>')) return leave_out(end_of_block(key_at, end));
    // What was a text remains one, so that the whole is still JSON.
    const auto quotes = given.substr(0, given.find_first_not_of("\\\"'"));
    out_ += quotes;
    leave_out(end);
    out_ += quotes;
  }

  // Behind the last byte of the value that begins here. `inside`: of JSON or NAME=value, where a comma ends
  // it too.
  std::size_t end_of_value(bool inside) const {
    std::size_t at = at_;
    while (peek(at) == '\\') ++at;  // a text in a text
    if (is_quote(peek(at))) {
      const char quote = text_[at];
      for (++at; at < text_.size() && text_[at] != quote; ++at) {
        if (text_[at] == '\\' && peek(at + 1) != quote) ++at;
      }
      return std::min(at + 1, text_.size());
    }
    if (peek(at) == '[') return std::min(text_.find(']', at), text_.size() - 1) + 1;
    const auto end = text_.find_first_of(inside ? " \t\n,;\"'}]&" : "\n", at);
    return std::min(end, text_.size());
  }

  // Behind the lines after `from` that stand deeper than the one with the key.
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
  bool variable_is_secret_ = false;
};

}  // namespace

bool names_a_secret(std::string_view name) {
  std::string plain = text::lower(name);
  std::erase_if(plain, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  const auto in_it = [&](std::string_view part) { return plain.find(part) != std::string::npos; };
  const auto ends_it = [&](std::string_view end) { return plain.ends_with(end); };
  return std::ranges::any_of(kSecretParts, in_it) || std::ranges::any_of(kSecretEnds, ends_it);
}

std::string without_secrets(std::string_view text) { return Redactor(text).run(); }

}  // namespace gpulet::doctor
