#include "runtimes/toml.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/text.h"

namespace gpulet::runtimes::toml {
namespace {

bool is_bare(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
// TOML allows no control character but the tab in comments and strings of one line.
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

// What has been defined, so that a second definition is seen. Each [[...]] begins a new scope.
class Defined {
 public:
  std::string scoped(const Path& path) const {
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
  bool value(const Path& path) {
    const auto name = scoped(path);
    return !tables_.contains(name) && values_.insert(name).second;
  }
  bool table(const Path& path) {
    const auto name = scoped(path);
    return !values_.contains(name) && tables_.insert(name).second;
  }
  bool array(const Path& path) {
    Path parent(path.begin(), path.end() - 1);
    const std::string name = scoped(parent) + path.back() + '\0';
    if (values_.contains(name) || tables_.contains(name)) return false;
    ++arrays_[name];
    return true;
  }

 private:
  std::set<std::string> values_, tables_;
  std::map<std::string, int> arrays_;
};

class Parser {
 public:
  Parser(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  Result<Document> run() {
    document_.tables.push_back({});
    while (skip_blank_lines(), !at_end()) {
      const Status line = peek() == '[' ? header() : entry();
      if (!line) return fail(line.error());
      GPULET_TRY(end_of_line());
    }
    if (comment_error_) return fail(*comment_error_);
    document_.tables.back().end = text_.size();
    return std::move(document_);
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool looking_at(std::string_view what) const { return text_.substr(at_, what.size()) == what; }
  std::size_t line() const {
    const auto counted = text_.substr(counted_, at_ - counted_);
    line_ += static_cast<std::size_t>(std::ranges::count(counted, '\n'));
    counted_ = at_;
    return line_;
  }
  tl::unexpected<Error> wrong(std::string message) const {
    return fail(Code::kInvalidArgument, std::move(message),
                std::string(file_) + ":" + std::to_string(line()));
  }

  void skip_spaces() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }
  bool skip_newline() {
    if (looking_at("\r\n")) return at_ += 2, true;
    if (peek() == '\n') return ++at_, true;
    return false;
  }
  void skip_comment() {
    if (peek() != '#') return;
    while (!at_end() && peek() != '\n' && !looking_at("\r\n")) {
      if (is_control(peek()) && !comment_error_) {
        comment_error_ = wrong("a control character in a comment").value();
      }
      ++at_;
    }
  }
  // Blanks, comments and line ends.
  void skip_blank_lines() {
    do {
      skip_spaces();
      skip_comment();
    } while (skip_newline());
  }
  Status end_of_line() {
    skip_spaces();
    skip_comment();
    if (comment_error_) return fail(*comment_error_);
    if (at_end() || skip_newline()) return {};
    return wrong("more stands behind the value or the header; a new line would do");
  }

  Status header() {
    const std::size_t begin = line_begin(text_, at_);
    const std::size_t at_line = line();
    const bool array = looking_at("[[");
    at_ += array ? 2 : 1;
    GPULET_TRY_ASSIGN(const Path path, key());
    if (!looking_at(array ? "]]" : "]")) return wrong(array ? "`]]` is missing" : "`]` is missing");
    at_ += array ? 2 : 1;
    if (!(array ? defined_.array(path) : defined_.table(path))) {
      return wrong("[" + text::join(path, ".") + "] is there twice");
    }
    document_.tables.back().end = begin;
    document_.tables.push_back({.path = path, .array = array, .begin = begin, .end = 0, .line = at_line});
    return {};
  }

  Status entry() { return key_and_value(document_.tables.back().path, false, 0); }

  Status key_and_value(Path path, bool in_line, int depth) {
    const std::size_t begin = at_;
    const std::size_t at_line = line();
    GPULET_TRY_ASSIGN(const Path own, key());
    path.insert(path.end(), own.begin(), own.end());
    if (peek() != '=') return wrong("`=` is missing behind the key " + text::join(own, "."));
    ++at_;
    skip_spaces();
    if (!defined_.value(path)) return wrong(text::join(path, ".") + " is there twice");
    const std::size_t index = document_.entries.size();
    document_.entries.push_back({.path = path,
                                 .table = document_.tables.size() - 1,
                                 .in_line = in_line,
                                 .begin = begin,
                                 .line = at_line});
    GPULET_TRY_ASSIGN(document_.entries[index].value, value(path, depth));
    return {};
  }

  Result<Path> key() {
    Path path;
    for (;;) {
      skip_spaces();
      if (peek() == '"' || peek() == '\'') {
        if (looking_at("\"\"\"") || looking_at("'''")) return wrong("a key of many lines");
        GPULET_TRY_ASSIGN(std::string part, string());
        path.push_back(std::move(part));
      } else {
        const std::size_t begin = at_;
        while (is_bare(peek())) ++at_;
        if (begin == at_) return wrong("a key is expected here");
        path.emplace_back(text_.substr(begin, at_ - begin));
      }
      skip_spaces();
      if (peek() != '.') return path;
      ++at_;
    }
  }

  Result<Value> value(const Path& path, int depth) {
    if (depth > kMaxDepth) return wrong("nested deeper than " + std::to_string(kMaxDepth));
    Value result;
    result.begin = at_;
    if (peek() == '"' || peek() == '\'') {
      result.kind = Kind::kString;
      GPULET_TRY_ASSIGN(result.text, string());
    } else if (peek() == '[') {
      result.kind = Kind::kArray;
      GPULET_TRY(array(result, path, depth));
    } else if (peek() == '{') {
      result.kind = Kind::kTable;
      GPULET_TRY(inline_table(path, depth));
    } else {
      GPULET_TRY(scalar(result));
    }
    result.end = at_;
    return result;
  }

  Status array(Value& result, const Path& path, int depth) {
    ++at_;
    for (;;) {
      skip_blank_lines();
      if (peek() == ']') return ++at_, Status{};
      if (at_end()) return wrong("`]` is missing");
      // Inline tables in an array have no path of their own: each is its own scope.
      Path scope = path;
      scope.push_back("[" + std::to_string(result.items.size()) + "]");
      GPULET_TRY_ASSIGN(Value item, value(scope, depth + 1));
      result.items.push_back(std::move(item));
      skip_blank_lines();
      if (peek() == ',') {
        ++at_;
      } else if (peek() != ']') {
        return wrong("`,` or `]` is expected in an array");
      }
    }
  }

  Status inline_table(const Path& path, int depth) {
    ++at_;
    skip_spaces();
    if (peek() == '}') return ++at_, Status{};
    for (;;) {
      skip_spaces();
      GPULET_TRY(key_and_value(path, true, depth + 1));
      skip_spaces();
      if (peek() == '}') return ++at_, Status{};
      if (peek() != ',') return wrong("`,` or `}` is expected in an inline table");
      ++at_;
    }
  }

  Status scalar(Value& result) {
    const std::size_t begin = at_;
    while (is_bare(peek()) || peek() == '+' || peek() == '.' || peek() == ':') ++at_;
    // "1979-05-27 07:32:00" has a blank inside.
    if (at_ - begin == 10 && text_[begin + 4] == '-' && peek() == ' ' && text::is_digit(peek(1))) {
      ++at_;
      while (is_bare(peek()) || peek() == '+' || peek() == '.' || peek() == ':') ++at_;
    }
    const std::string_view token = text_.substr(begin, at_ - begin);
    if (token.empty()) return wrong("a value is expected here");
    if (token == "true" || token == "false") {
      result.kind = Kind::kBool;
      result.flag = token == "true";
      return {};
    }
    std::string_view digits = token;
    if (digits[0] == '+' || digits[0] == '-') digits.remove_prefix(1);
    if (digits == "inf" || digits == "nan") return {};
    if (digits.empty() || !text::is_digit(digits[0])) {
      return wrong("`" + std::string(token) + "` is no value; text goes in quotes");
    }
    std::string plain(digits);
    std::erase(plain, '_');
    if (const auto number = text::parse_unsigned(plain); number && *number <= 1'000'000'000) {
      result.kind = Kind::kInteger;
      result.number = static_cast<long long>(*number) * (token[0] == '-' ? -1 : 1);
    }
    return {};
  }

  Result<std::string> string() {
    const char quote = peek();
    const std::string three(3, quote);
    const bool many_lines = looking_at(three);
    at_ += many_lines ? 3 : 1;
    if (many_lines) skip_newline();
    std::string result;
    for (;;) {
      if (at_end()) return wrong("a string is not closed");
      if (many_lines ? looking_at(three) : peek() == quote) {
        at_ += many_lines ? 3 : 1;
        // Up to two quotes may stand before the closing three.
        for (int more = 0; many_lines && more < 2 && peek() == quote; ++more) result += text_[at_++];
        return result;
      }
      if (many_lines && (peek() == '\n' || looking_at("\r\n"))) {
        result += '\n';
        skip_newline();
      } else if (quote == '"' && peek() == '\\') {
        GPULET_TRY(escape(result, many_lines));
      } else if (is_control(peek())) {
        return wrong(peek() == '\n' || peek() == '\r' ? "a string is not closed"
                                                      : "a control character in a string");
      } else {
        result += text_[at_++];
      }
    }
  }

  Status escape(std::string& out, bool many_lines) {
    constexpr std::string_view kNames = "btnfr\"\\e";
    constexpr std::string_view kMeant = "\b\t\n\f\r\"\\\x1b";
    ++at_;
    const char name = peek();
    if (const auto found = kNames.find(name); name != '\0' && found != std::string_view::npos) {
      out += kMeant[found];
      ++at_;
      return {};
    }
    if (name == 'u' || name == 'U') return unicode(out, name == 'u' ? 4 : 8);
    if (many_lines) {  // a line's end that is taken out, with the blanks behind it
      skip_spaces();
      if (skip_newline()) {
        while (peek() == ' ' || peek() == '\t' || peek() == '\n' || looking_at("\r\n")) ++at_;
        return {};
      }
    }
    return wrong("an escape that TOML does not have");
  }

  Status unicode(std::string& out, std::size_t digits) {
    ++at_;
    std::uint32_t code = 0;
    for (std::size_t i = 0; i < digits; ++i, ++at_) {
      const char c = peek();
      constexpr std::string_view kDigits = "0123456789abcdef";
      const auto value = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c | 0x20) : c);
      if (value == std::string_view::npos) return wrong("a \\u escape with too few hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(value);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      return wrong("a \\u escape that is no character");
    append_utf8(out, code);
    return {};
  }

  std::string_view text_, file_;
  std::size_t at_ = 0;
  mutable std::size_t counted_ = 0, line_ = 1;  // line_ is the line of counted_, which never goes back
  Document document_;
  Defined defined_;
  std::optional<Error> comment_error_;  // the first, told when the line is read
};

}  // namespace

const Entry* Document::find(const Path& path) const {
  const auto found =
      std::find_if(entries.rbegin(), entries.rend(), [&](const Entry& e) { return e.path == path; });
  return found == entries.rend() ? nullptr : &*found;
}

Result<Document> parse(std::string_view text, std::string_view file) { return Parser(text, file).run(); }

bool under(const Path& path, const Path& prefix) {
  return path.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

std::string quoted(std::string_view text) {
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
  for (const auto& item : items) texts.push_back(quoted(item));
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
