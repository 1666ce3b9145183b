#include "doctor/support_archive.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <optional>

#include "base/text.h"

namespace gpulet::doctor {
namespace {

constexpr std::size_t kBlock = 512;

// Position and length of the header fields.
struct Field {
  std::size_t at, size;
};
constexpr Field kName{0, 100}, kMode{100, 8}, kUser{108, 8}, kGroup{116, 8}, kSize{124, 12}, kTime{136, 12},
    kChecksum{148, 8}, kType{156, 1}, kMagic{257, 8}, kUserName{265, 32}, kGroupName{297, 32},
    kPrefix{345, 155};

using Header = std::array<char, kBlock>;

void write_field(Header& header, Field field, std::string_view text) {
  text.copy(header.data() + field.at, field.size);
}

// Octal with leading zeroes and a trailing NUL.
void write_octal(Header& header, Field field, unsigned long long value) {
  char text[24];
  std::snprintf(text, sizeof text, "%0*llo", static_cast<int>(field.size) - 1, value);
  write_field(header, field, text);
}

// Length of the prefix part of a name, without the slash behind it; npos if the name does not fit.
std::size_t prefix_length(const std::string& name) {
  if (name.empty()) return std::string::npos;
  if (name.size() <= kName.size) return 0;
  const auto slash = name.find('/', name.size() - kName.size - 1);
  return slash == 0 || slash > kPrefix.size ? std::string::npos : slash;
}

Header make_header(const ArchiveFile& file, std::size_t prefix, long long seconds) {
  Header header{};
  write_field(header, kName, std::string_view(file.name).substr(prefix == 0 ? 0 : prefix + 1));
  write_field(header, kPrefix, std::string_view(file.name).substr(0, prefix));
  write_octal(header, kMode, 0600);
  write_octal(header, kUser, 0);
  write_octal(header, kGroup, 0);
  write_octal(header, kSize, file.content.size());
  write_octal(header, kTime, static_cast<unsigned long long>(seconds > 0 ? seconds : 0));
  write_field(header, kType, "0");
  write_field(header, kMagic,
              std::string_view("ustar\0"
                               "00",
                               8));
  write_field(header, kUserName, "root");
  write_field(header, kGroupName, "root");
  write_field(header, kChecksum, std::string(kChecksum.size, ' '));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char text[9];
  std::snprintf(text, sizeof text, "%06o", sum);
  write_field(header, kChecksum,
              std::string_view(text, 7));  // with its NUL, then the blank that is already there
  return header;
}

}  // namespace

Result<std::string> make_tar(const std::vector<ArchiveFile>& files,
                             std::chrono::system_clock::time_point at) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at.time_since_epoch()).count();
  std::string archive;
  for (const auto& file : files) {
    const auto prefix = prefix_length(file.name);
    if (prefix == std::string::npos)
      return fail(Code::kInvalidArgument, "is not a valid archive name: expected 1 to 100 bytes", file.name);
    const auto header = make_header(file, prefix, seconds);
    archive.append(header.data(), header.size());
    archive += file.content;
    archive.append((kBlock - file.content.size() % kBlock) % kBlock, '\0');
  }
  archive.append(2 * kBlock, '\0');
  return archive;
}

namespace {

// Parts of names, in lower case without '-', '_' and '.'.
constexpr std::array<std::string_view, 13> kSecretParts{
    "token",     "secret",     "passw",     "passphrase", "apikey",
    "accesskey", "privatekey", "clientkey", "credential", "connectionstring",
    "cookie",    "signature",  "license"};
// Whole names, or ends of names.
constexpr std::array<std::string_view, 4> kSecretEnds{"auth", "authorization", "pwd", "dsn"};

// Prefixes of well-known tokens, and the minimum length of the rest.
struct Form {
  std::string_view begins;
  std::size_t more;
};
constexpr Form kForms[] = {{"eyJ", 17},   {"AKIA", 16},        {"ghp_", 16},   {"gho_", 16},
                           {"ghs_", 16},  {"github_pat_", 16}, {"glpat-", 16}, {"xoxb-", 16},
                           {"xoxp-", 16}, {"hvs.", 16},        {"nvapi-", 16}, {"sk-", 20}};
constexpr std::size_t kLongToken = 40;

bool is_word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.' || c == '+';
}
bool is_blank(char c) { return c == ' ' || c == '\t'; }
bool is_quote(char c) { return c == '"' || c == '\''; }

bool is_known_token(std::string_view word) {
  for (const auto& form : kForms) {
    if (word.starts_with(form.begins) && word.size() >= form.begins.size() + form.more) return true;
  }
  const auto parts = text::split(word, '-');  // no part of a UUID is that long
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

  std::string redact() {
    while (at_ < text_.size()) {
      if (!redact_private_key() && !redact_url_user() && !redact_word()) out_ += text_[at_++];
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
    const auto end = text_.find_first_of("/?# \t\"'\n", at_ + 3);
    const auto at = text_.substr(at_, end - std::min(at_, end)).rfind('@');
    if (at == std::string_view::npos) return false;
    out_ += "://";
    redact_until(at_ + at);
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
    const bool option = word.starts_with("--") && is_secret_name(word);
    if ((option || text::lower(word) == "bearer") && peek(at_) == ' ' && peek(at_ + 1) != '-' &&
        peek(at_ + 1) != '[') {
      out_ += ' ';
      ++at_;
      redact_until(std::min(text_.find_first_of(" \t\n\"',", at_), text_.size()));
    }
    return true;
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
    const auto end = end_of_value(quoted_key || text_[separator] == '=');
    const auto given = text_.substr(at_, end - at_);
    const auto plain = text::lower(key);
    const bool of_variable = plain == "value" && secret_variable_;
    if (plain == "name") secret_variable_ = is_secret_name(given);
    if (!is_secret_name(key) && !of_variable) return;  // the value itself is scanned next
    const bool structure = given.starts_with('{') || given.empty();
    if (structure) return;
    if (given.starts_with('|') || given.starts_with('>')) return redact_until(end_of_block(key_at, end));
    // A quoted value stays quoted, so that the whole remains valid JSON.
    const auto quotes = given.substr(0, given.find_first_not_of("\\\"'"));
    out_ += quotes;
    redact_until(end);
    out_ += quotes;
  }

  // The end of the value that starts here. `inside`: in JSON or NAME=value, where a comma ends it too.
  std::size_t end_of_value(bool inside) const {
    std::size_t at = at_;
    while (peek(at) == '\\') ++at;  // a string in a string
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

bool is_secret_name(std::string_view name) {
  std::string plain = text::lower(name);
  std::erase_if(plain, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  const auto in_it = [&](std::string_view part) { return plain.find(part) != std::string::npos; };
  const auto ends_it = [&](std::string_view end) { return plain.ends_with(end); };
  return std::ranges::any_of(kSecretParts, in_it) || std::ranges::any_of(kSecretEnds, ends_it);
}

std::string redact_secrets(std::string_view text) { return Redactor(text).redact(); }

}  // namespace gpulet::doctor
