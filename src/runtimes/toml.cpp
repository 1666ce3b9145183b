#include "runtimes/toml.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/json.h"
#include "base/text.h"

namespace gpulet::runtimes::toml {
namespace {

bool is_bare(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
// TOML allows no control character except tab in comments and single-line strings.
bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

// Records definitions to detect duplicates. Each [[...]] begins a new scope.
class DefinedKeys {
 public:
  std::string scoped_path(const Path& path) const {
    std::string name;
    for (const auto& part : path) {
      name += part;
      name += '\0';
      if (const auto found = arrays_.find(name); found != arrays_.end()) {
        name += std::to_string(found->second);
        name += '\0';
      }
    }
    return name;
  }
  bool define_value(const Path& path) {
    const auto name = scoped_path(path);
    return !tables_.contains(name) && values_.insert(name).second;
  }
  bool define_table(const Path& path) {
    const auto name = scoped_path(path);
    return !values_.contains(name) && tables_.insert(name).second;
  }
  bool define_array_table(const Path& path) {
    Path parent(path.begin(), path.end() - 1);
    const std::string name = scoped_path(parent) + path.back() + '\0';
    if (values_.contains(name) || tables_.contains(name)) return false;
    ++arrays_[name];
    return true;
  }

 private:
  std::set<std::string> values_, tables_;
  std::map<std::string, int> arrays_;
};

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

class TomlParser {
 public:
  TomlParser(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  Result<Document> parse_document() {
    document_.has_byte_order_mark = is_next(kByteOrderMark);
    if (document_.has_byte_order_mark) at_ = kByteOrderMark.size();
    document_.tables.push_back({.begin = at_});
    while (skip_blank_lines(), !at_end()) {
      const Status line = peek_char() == '[' ? parse_header() : parse_entry();
      if (!line) return fail(line.error());
      GPULET_TRY(expect_end_of_line());
    }
    if (comment_error_) return fail(*comment_error_);
    document_.tables.back().end = text_.size();
    return std::move(document_);
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek_char(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool is_next(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  std::size_t line_number() const {
    const auto counted = text_.substr(counted_, at_ - counted_);
    line_ += static_cast<std::size_t>(std::ranges::count(counted, '\n'));
    counted_ = at_;
    return line_;
  }
  tl::unexpected<Error> syntax_error(std::string message) const {
    return fail(Code::kInvalidArgument, std::move(message),
                std::string(file_) + ":" + std::to_string(line_number()));
  }

  void skip_spaces() {
    while (peek_char() == ' ' || peek_char() == '\t') ++at_;
  }
  bool skip_newline() {
    if (is_next("\r\n")) return at_ += 2, true;
    if (peek_char() == '\n') return ++at_, true;
    return false;
  }
  void skip_comment() {
    if (peek_char() != '#') return;
    while (!at_end() && peek_char() != '\n' && !is_next("\r\n")) {
      if (is_control(peek_char()) && !comment_error_) {
        comment_error_ = syntax_error("control character in a comment").value();
      }
      ++at_;
    }
  }
  // Skips whitespace, comments and line ends.
  void skip_blank_lines() {
    do {
      skip_spaces();
      skip_comment();
    } while (skip_newline());
  }
  Status expect_end_of_line() {
    skip_spaces();
    skip_comment();
    if (comment_error_) return fail(*comment_error_);
    if (at_end() || skip_newline()) return {};
    return syntax_error("expected a new line after the value or header");
  }

  Status parse_header() {
    const std::size_t begin = line_begin(text_, at_);
    const std::size_t at_line = line_number();
    const bool array = is_next("[[");
    at_ += array ? 2 : 1;
    GPULET_TRY_ASSIGN(const Path path, parse_key());
    if (!is_next(array ? "]]" : "]")) return syntax_error(array ? "expected `]]`" : "expected `]`");
    at_ += array ? 2 : 1;
    if (!(array ? defined_.define_array_table(path) : defined_.define_table(path))) {
      return syntax_error("[" + text::join(path, ".") + "] is duplicated");
    }
    document_.tables.back().end = begin;
    document_.tables.push_back({.path = path, .array = array, .begin = begin, .end = 0, .line = at_line});
    return {};
  }

  Status parse_entry() { return parse_key_and_value(document_.tables.back().path, false, 0); }

  Status parse_key_and_value(Path path, bool in_line, std::size_t depth) {
    const std::size_t begin = at_;
    const std::size_t at_line = line_number();
    GPULET_TRY_ASSIGN(const Path own, parse_key());
    path.insert(path.end(), own.begin(), own.end());
    if (peek_char() != '=') return syntax_error("expected `=` after the key " + text::join(own, "."));
    ++at_;
    skip_spaces();
    if (!defined_.define_value(path)) return syntax_error(text::join(path, ".") + " is duplicated");
    const std::size_t index = document_.entries.size();
    document_.entries.push_back({.path = path,
                                 .table = document_.tables.size() - 1,
                                 .is_inline = in_line,
                                 .begin = begin,
                                 .line = at_line});
    GPULET_TRY_ASSIGN(document_.entries[index].value, parse_value(path, depth));
    return {};
  }

  Result<Path> parse_key() {
    Path path;
    for (;;) {
      skip_spaces();
      if (peek_char() == '"' || peek_char() == '\'') {
        if (is_next("\"\"\"") || is_next("'''")) return syntax_error("multi-line string as a key");
        GPULET_TRY_ASSIGN(std::string part, parse_string());
        path.push_back(std::move(part));
      } else {
        const std::size_t begin = at_;
        while (is_bare(peek_char())) ++at_;
        if (begin == at_) return syntax_error("expected a key");
        path.emplace_back(text_.substr(begin, at_ - begin));
      }
      skip_spaces();
      if (peek_char() != '.') return path;
      ++at_;
    }
  }

  Result<Value> parse_value(const Path& path, std::size_t depth) {
    if (depth > kMaxNesting) return syntax_error("nested deeper than " + std::to_string(kMaxNesting));
    Value result;
    result.begin = at_;
    if (peek_char() == '"' || peek_char() == '\'') {
      result.kind = Kind::kString;
      GPULET_TRY_ASSIGN(result.text, parse_string());
    } else if (peek_char() == '[') {
      result.kind = Kind::kArray;
      GPULET_TRY(parse_array(result, path, depth));
    } else if (peek_char() == '{') {
      result.kind = Kind::kTable;
      GPULET_TRY(parse_inline_table(path, depth));
    } else {
      GPULET_TRY(parse_scalar(result));
    }
    result.end = at_;
    return result;
  }

  Status parse_array(Value& result, const Path& path, std::size_t depth) {
    ++at_;
    for (;;) {
      skip_blank_lines();
      if (peek_char() == ']') return ++at_, Status{};
      if (at_end()) return syntax_error("expected `]`");
      // Inline tables in an array have no path: each is its own scope.
      Path scope = path;
      scope.push_back("[" + std::to_string(result.items.size()) + "]");
      GPULET_TRY_ASSIGN(Value item, parse_value(scope, depth + 1));
      result.items.push_back(std::move(item));
      skip_blank_lines();
      if (peek_char() == ',') {
        ++at_;
      } else if (peek_char() != ']') {
        return syntax_error("expected `,` or `]` in an array");
      }
    }
  }

  Status parse_inline_table(const Path& path, std::size_t depth) {
    ++at_;
    skip_spaces();
    if (peek_char() == '}') return ++at_, Status{};
    for (;;) {
      skip_spaces();
      GPULET_TRY(parse_key_and_value(path, true, depth + 1));
      skip_spaces();
      if (peek_char() == '}') return ++at_, Status{};
      if (peek_char() != ',') return syntax_error("expected `,` or `}` in an inline table");
      ++at_;
    }
  }

  Status parse_scalar(Value& result) {
    const std::size_t begin = at_;
    while (is_bare(peek_char()) || peek_char() == '+' || peek_char() == '.' || peek_char() == ':') ++at_;
    // "1979-05-27 07:32:00" contains a space.
    if (at_ - begin == 10 && text_[begin + 4] == '-' && peek_char() == ' ' && text::is_digit(peek_char(1))) {
      ++at_;
      while (is_bare(peek_char()) || peek_char() == '+' || peek_char() == '.' || peek_char() == ':') ++at_;
    }
    const std::string_view token = text_.substr(begin, at_ - begin);
    if (token.empty()) return syntax_error("expected a value");
    if (token == "true" || token == "false") {
      result.kind = Kind::kBool;
      result.flag = token == "true";
      return {};
    }
    std::string_view digits = token;
    if (digits[0] == '+' || digits[0] == '-') digits.remove_prefix(1);
    if (digits == "inf" || digits == "nan") return {};
    if (digits.empty() || !text::is_digit(digits[0])) {
      return syntax_error("`" + std::string(token) + "` is not a value; strings need quotes");
    }
    std::string plain(digits);
    std::erase(plain, '_');
    if (const auto number = text::parse_unsigned(plain); number && *number <= 1'000'000'000) {
      result.kind = Kind::kInteger;
      result.number = static_cast<long long>(*number) * (token[0] == '-' ? -1 : 1);
    }
    return {};
  }

  Result<std::string> parse_string() {
    const char quote = peek_char();
    const std::string three(3, quote);
    const bool many_lines = is_next(three);
    at_ += many_lines ? 3 : 1;
    if (many_lines) skip_newline();
    std::string result;
    for (;;) {
      if (at_end()) return syntax_error("unterminated string");
      if (many_lines ? is_next(three) : peek_char() == quote) {
        at_ += many_lines ? 3 : 1;
        // Up to two quotes may precede the closing three.
        for (int more = 0; many_lines && more < 2 && peek_char() == quote; ++more) result += text_[at_++];
        return result;
      }
      if (many_lines && (peek_char() == '\n' || is_next("\r\n"))) {
        result += '\n';
        skip_newline();
      } else if (quote == '"' && peek_char() == '\\') {
        GPULET_TRY(parse_escape(result, many_lines));
      } else if (is_control(peek_char())) {
        return syntax_error(peek_char() == '\n' || peek_char() == '\r' ? "unterminated string"
                                                                       : "control character in a string");
      } else {
        result += text_[at_++];
      }
    }
  }

  Status parse_escape(std::string& out, bool many_lines) {
    constexpr std::string_view kNames = "btnfr\"\\e";
    constexpr std::string_view kMeant = "\b\t\n\f\r\"\\\x1b";
    ++at_;
    const char name = peek_char();
    if (const auto found = kNames.find(name); name != '\0' && found != std::string_view::npos) {
      out += kMeant[found];
      ++at_;
      return {};
    }
    if (name == 'u' || name == 'U') return parse_unicode_escape(out, name == 'u' ? 4 : 8);
    if (many_lines) {  // a line continuation: skip the line end and following whitespace
      skip_spaces();
      if (skip_newline()) {
        while (peek_char() == ' ' || peek_char() == '\t' || peek_char() == '\n' || is_next("\r\n")) ++at_;
        return {};
      }
    }
    return syntax_error("invalid escape");
  }

  Status parse_unicode_escape(std::string& out, std::size_t digits) {
    ++at_;
    std::uint32_t code = 0;
    for (std::size_t i = 0; i < digits; ++i, ++at_) {
      const char c = peek_char();
      constexpr std::string_view kDigits = "0123456789abcdef";
      const auto value = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c | 0x20) : c);
      if (value == std::string_view::npos) return syntax_error("\\u escape with too few hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(value);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      return syntax_error("\\u escape of an invalid character");
    append_utf8(out, code);
    return {};
  }

  std::string_view text_, file_;
  std::size_t at_ = 0;
  mutable std::size_t counted_ = 0, line_ = 1;  // line_ is the line at counted_, which only grows
  Document document_;
  DefinedKeys defined_;
  std::optional<Error> comment_error_;  // the first error, reported when the line is parsed
};

}  // namespace

const Entry* Document::find(const Path& path) const {
  const auto found =
      std::find_if(entries.rbegin(), entries.rend(), [&](const Entry& e) { return e.path == path; });
  return found == entries.rend() ? nullptr : &*found;
}

Result<Document> parse_toml(std::string_view text, std::string_view file) {
  return TomlParser(text, file).parse_document();
}

bool has_prefix(const Path& path, const Path& prefix) {
  return path.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

std::string quote_toml(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (is_control(c) || c == '\t') {
      constexpr std::string_view kHex = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(c);
      result += std::string("\\u00") + kHex[byte >> 4] + kHex[byte & 15];
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string string_array(const std::vector<std::string>& items) {
  std::vector<std::string> texts;
  for (const auto& item : items) texts.push_back(quote_toml(item));
  return "[" + text::join(texts, ", ") + "]";
}

std::size_t line_begin(std::string_view text, std::size_t offset) {
  const auto before = offset == 0 ? std::string_view::npos : text.rfind('\n', offset - 1);
  return before == std::string_view::npos ? 0 : before + 1;
}

std::size_t line_end(std::string_view text, std::size_t offset) {
  const auto newline = text.find('\n', offset);
  return newline == std::string_view::npos ? text.size() : newline + 1;
}

}  // namespace gpulet::runtimes::toml
