#include "runtimes/json_text.h"

#include <algorithm>
#include <set>

#include "base/text.h"

namespace gpulet::runtimes::json {
namespace {

class Parser {
 public:
  Parser(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  Result<Value> run() {
    skip_blanks();
    GPULET_TRY_ASSIGN(Value root, value(0));
    skip_blanks();
    if (at_ != text_.size()) return wrong("more stands behind the document");
    return root;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  std::size_t line() {
    line_ += static_cast<std::size_t>(std::ranges::count(text_.substr(counted_, at_ - counted_), '\n'));
    counted_ = at_;
    return line_;
  }
  tl::unexpected<Error> wrong(std::string message) {
    return fail(Code::kInvalidArgument, std::move(message),
                std::string(file_) + ":" + std::to_string(line()));
  }
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }

  Result<Value> value(int depth) {
    if (depth > kMaxDepth) return wrong("nested deeper than " + std::to_string(kMaxDepth));
    Value result;
    result.begin = result.key_begin = at_;
    result.line = line();
    if (peek() == '{' || peek() == '[') {
      result.kind = peek() == '{' ? Kind::kObject : Kind::kArray;
      GPULET_TRY(children(result, depth));
    } else if (peek() == '"') {
      result.kind = Kind::kString;
      GPULET_TRY_ASSIGN(result.text, string());
    } else if (peek() == '-' || text::is_digit(peek())) {
      result.kind = Kind::kNumber;
      GPULET_TRY(number());
    } else {
      GPULET_TRY(word(result));
    }
    result.end = at_;
    return result;
  }

  Status word(Value& result) {
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      result.kind = word == "null" ? Kind::kNull : Kind::kBool;
      result.flag = word == "true";
      return {};
    }
    return wrong("a value is expected here");
  }

  Status number() {
    if (peek() == '-') ++at_;
    const auto digits = [&] {
      const std::size_t begin = at_;
      while (text::is_digit(peek())) ++at_;
      return at_ != begin;
    };
    const std::size_t begin = at_;
    if (!digits()) return wrong("a number without digits");
    if (text_[begin] == '0' && at_ - begin > 1) return wrong("a number that begins with 0");
    if (peek() == '.') {
      ++at_;
      if (!digits()) return wrong("a number without digits behind the point");
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!digits()) return wrong("a number without an exponent's digits");
    }
    return {};
  }

  Status children(Value& result, int depth) {
    const bool object = result.kind == Kind::kObject;
    const char close = object ? '}' : ']';
    std::set<std::string> keys;
    ++at_;
    skip_blanks();
    if (peek() == close) return ++at_, Status{};
    for (;;) {
      skip_blanks();
      const std::size_t begin = at_;
      const std::size_t at_line = line();
      std::string key;
      if (object) {
        if (peek() != '"') return wrong("a name in quotes is expected here");
        GPULET_TRY_ASSIGN(key, string());
        if (!keys.insert(key).second) return wrong("\"" + key + "\" is there twice");
        skip_blanks();
        if (peek() != ':') return wrong("`:` is missing behind \"" + key + "\"");
        ++at_;
        skip_blanks();
      }
      GPULET_TRY_ASSIGN(Value child, value(depth + 1));
      child.key = std::move(key);
      child.key_begin = begin;
      child.line = at_line;
      result.children.push_back(std::move(child));
      skip_blanks();
      if (peek() == close) return ++at_, Status{};
      if (peek() != ',') return wrong(std::string("`,` or `") + close + "` is expected here");
      ++at_;
    }
  }

  // Escapes of one character are resolved; \u stays as it is written: no name that is looked for needs it.
  Result<std::string> string() {
    std::string result;
    for (++at_;;) {
      const char c = peek();
      if (at_ >= text_.size() || static_cast<unsigned char>(c) < 0x20) return wrong("a string is not closed");
      ++at_;
      if (c == '"') return result;
      if (c != '\\') {
        result += c;
        continue;
      }
      constexpr std::string_view kNames = "\"\\/bfnrt";
      constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
      const char name = peek();
      const auto found = name == '\0' ? std::string_view::npos : kNames.find(name);
      if (found == std::string_view::npos && name != 'u') return wrong("an escape that JSON does not have");
      ++at_;
      if (name != 'u') {
        result += kMeant[found];
        continue;
      }
      result += "\\u";
      for (int i = 0; i < 4; ++i, ++at_) {
        if (std::string_view("0123456789abcdefABCDEF").find(peek()) == std::string_view::npos ||
            peek() == '\0') {
          return wrong("a \\u escape with too few hexadecimal digits");
        }
        result += peek();
      }
    }
  }

  std::string_view text_, file_;
  std::size_t at_ = 0, counted_ = 0, line_ = 1;
};

}  // namespace

const Value* Value::find(std::string_view member) const {
  const auto found = std::ranges::find(children, member, &Value::key);
  return kind == Kind::kObject && found != children.end() ? &*found : nullptr;
}

Result<Value> parse(std::string_view text, std::string_view file) { return Parser(text, file).run(); }

std::string with_child(const std::string& text, const Value& parent, const std::string& child) {
  std::string result = text;
  if (parent.children.empty()) return result.insert(parent.begin + 1, child);
  const auto& last = parent.children.back();
  const std::size_t before = text.find_last_not_of(" \t\r\n", last.key_begin - 1) + 1;
  const std::string_view gap(text.data() + before, last.key_begin - before);
  const bool own_line = gap.find('\n') != std::string_view::npos;
  const bool spaced = parent.children.size() == 1 || !gap.empty();
  return result.insert(last.end,
                       "," + (own_line ? std::string(gap) : std::string(spaced ? " " : "")) + child);
}

std::string without_child(const std::string& text, const Value& parent, std::size_t index) {
  const auto& child = parent.children[index];
  std::size_t begin = child.key_begin, end = child.end;
  if (index > 0) {
    begin = parent.children[index - 1].end;
  } else if (parent.children.size() > 1) {
    end = parent.children[1].key_begin;
  }
  std::string result = text;
  return result.erase(begin, end - begin);
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

}  // namespace gpulet::runtimes::json
