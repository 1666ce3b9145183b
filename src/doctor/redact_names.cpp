// Which names belong to secrets, and which values behind them are none.
#include <algorithm>
#include <array>
#include <cctype>
#include <vector>

#include "base/text.h"
#include "doctor/redact.h"

namespace gpulet::doctor {
namespace {

using Words = std::vector<std::string>;

bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// "dbAPIKey_2" is {"db", "api", "key"}: digits at the end of a word do not count.
Words name_words(std::string_view name) {
  Words words(1);
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    if (!is_alnum(c)) {
      words.emplace_back();
      continue;
    }
    const bool hump = is_upper(c) && i > 0 &&
                      (!is_upper(name[i - 1]) || (i + 1 < name.size() && is_alnum(name[i + 1]) &&
                                                  !is_upper(name[i + 1]) && !text::is_digit(name[i + 1])));
    if (hump) words.emplace_back();
    words.back() += c;
  }
  for (std::string& word : words) {
    word = text::lower(word);
    while (!word.empty() && text::is_digit(word.back())) word.pop_back();
  }
  std::erase(words, std::string());
  return words;
}

template <std::size_t N>
bool is_one_of(const std::string& word, const std::array<std::string_view, N>& words) {
  return std::ranges::find(words, word) != words.end();
}

// Parts of names, in lower case without '-', '_' and '.'.
constexpr std::array<std::string_view, 20> kSecretParts{
    "token",     "secret",        "passw",      "passphrase", "passcode",
    "apikey",    "accesskey",     "privatekey", "clientkey",  "accountkey",
    "sharedkey", "encryptionkey", "signingkey", "credential", "connectionstring",
    "cookie",    "signature",     "license",    "authkey",    "basicauth"};
// Last words of names.
constexpr std::array<std::string_view, 17> kSecretWords{
    "pass", "pwd", "pw",  "psk", "auth", "oauth", "authorization", "creds", "cred",
    "dsn",  "sas", "sig", "kek", "dek",  "jwt",   "otp",           "bearer"};
// Ends of last words: "dbpass", "basicauth".
constexpr std::array<std::string_view, 4> kSecretEnds{"pass", "auth", "authorization", "pwd"};
constexpr std::array<std::string_view, 4> kNoSecretWords{"bypass", "compass", "encompass", "trespass"};
// Words before "key" that make it a name: topologyKey.
constexpr std::array<std::string_view, 12> kNamedKeys{"public",     "topology", "label",     "taint",
                                                      "annotation", "group",    "primary",   "sort",
                                                      "node",       "object",   "partition", "json"};

constexpr std::array<std::string_view, 10> kPathWords{"file", "files",     "path", "paths",  "dir",
                                                      "dirs", "directory", "bin",  "socket", "root"};
constexpr std::array<std::string_view, 22> kNumberWords{
    "max",      "min",     "num",    "count",      "total",    "limit",    "size",   "length",
    "ttl",      "timeout", "expiry", "expiration", "seconds",  "duration", "period", "interval",
    "rotation", "rate",    "age",    "tokens",     "lifetime", "burst"};
constexpr std::array<std::string_view, 15> kIdentifierWords{
    "name",   "names",  "ref",   "policy",    "type",    "kind",      "mode",  "provider",
    "issuer", "method", "model", "algorithm", "version", "namespace", "format"};

bool looks_like_path(std::string_view value) {
  constexpr std::string_view kOther = "._-/+:@*%";
  const bool rooted = value.starts_with('/') || value.starts_with("./") || value.starts_with("../") ||
                      value.starts_with("~/") || value.starts_with("unix:/");
  return rooted &&
         std::ranges::all_of(value, [&](char c) { return is_alnum(c) || kOther.find(c) != kOther.npos; });
}

// "300", "1.5", "10m", "24h0m0s".
bool looks_like_number(std::string_view value) {
  constexpr std::size_t kMost = 12;
  if (value.empty() || value.size() > kMost || !text::is_digit(value.front())) return false;
  return std::ranges::all_of(value, [](char c) {
    return text::is_digit(c) || std::string_view(".smhdKMGi").find(c) != std::string_view::npos;
  });
}

bool looks_like_identifier(std::string_view value) {
  constexpr std::size_t kMost = 63;
  return value.size() <= kMost && is_alnum(value.front()) && std::ranges::all_of(value, [](char c) {
           return is_alnum(c) || std::string_view("._/:-").find(c) != std::string_view::npos;
         });
}

}  // namespace

bool is_secret_name(std::string_view name) {
  const Words words = name_words(name);
  if (words.empty()) return false;
  std::string plain;
  for (const std::string& word : words) plain += word;
  if (std::ranges::any_of(kSecretParts,
                          [&](std::string_view part) { return plain.find(part) != std::string::npos; }))
    return true;
  const std::string& last = words.back();
  // A key alone is a name in selectors and tolerations; the reader of a structure decides.
  if ((last == "key" || last == "keys") && words.size() > 1)
    return !is_one_of(words[words.size() - 2], kNamedKeys);
  if (is_one_of(last, kNoSecretWords)) return false;
  return is_one_of(last, kSecretWords) ||
         std::ranges::any_of(kSecretEnds, [&](std::string_view end) { return last.ends_with(end); });
}

bool is_secret_value(std::string_view name, std::string_view value) {
  if (!is_secret_name(name)) return false;
  if (value.empty() || value == "true" || value == "false" || value == "null" || value == "~" ||
      value == kRedacted)
    return false;
  const Words words = name_words(name);
  const std::string& last = words.back();
  // A key's file has an extension; a key in base64 that begins with '/' has no dot.
  const bool key_file =
      (last == "key" || last == "keys") && text::base_name(value).find('.') != std::string::npos;
  if ((key_file || is_one_of(last, kPathWords)) && looks_like_path(value)) return false;
  if (is_one_of(last, kIdentifierWords) && looks_like_identifier(value)) return redact_text(value) != value;
  const auto counts = [](const std::string& word) { return is_one_of(word, kNumberWords); };
  // "tokens" alone may be a list of them.
  const bool number = words.size() > 1 && std::ranges::any_of(words, counts) && looks_like_number(value);
  return !number;
}

}  // namespace gpulet::doctor
