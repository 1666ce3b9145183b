#include "hook/json_reader.h"

#include "base/text.h"

namespace gpulet::hook {
namespace {

void append_utf8(std::string& out, unsigned code) {
  const auto put = [&out](unsigned byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

tl::unexpected<Error> JsonReader::syntax_error(std::string_view what) const {
  return fail(Code::kInvalidArgument, std::string(what) + " at byte " + std::to_string(at_));
}

void JsonReader::skip_whitespace() {
  while (at_ < text_.size() &&
         (peek_char() == ' ' || peek_char() == '\t' || peek_char() == '\n' || peek_char() == '\r'))
    ++at_;
}

bool JsonReader::consume_char(char expected) {
  skip_whitespace();
  if (at_ >= text_.size() || text_[at_] != expected) return false;
  ++at_;
  return true;
}

bool JsonReader::consume_literal(std::string_view word) {
  skip_whitespace();
  if (text_.substr(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

bool JsonReader::consume_null() { return consume_literal("null"); }

Status JsonReader::enter_nested() {
  if (depth_ >= kMaxDepth) return syntax_error("nested deeper than 64");
  ++depth_;
  return {};
}

Status JsonReader::read_object(const std::function<Status(std::string_view)>& member) {
  if (!consume_char('{')) return syntax_error("expected an object");
  GPULET_TRY(enter_nested());
  if (!consume_char('}')) {
    do {
      GPULET_TRY_ASSIGN(const std::string key, read_string());
      if (!consume_char(':')) return syntax_error("expected ':'");
      GPULET_TRY(member(key));
    } while (consume_char(','));
    if (!consume_char('}')) return syntax_error("expected '}'");
  }
  --depth_;
  return {};
}

Status JsonReader::read_array(const std::function<Status()>& element) {
  if (!consume_char('[')) return syntax_error("expected an array");
  GPULET_TRY(enter_nested());
  if (!consume_char(']')) {
    do {
      GPULET_TRY(element());
    } while (consume_char(','));
    if (!consume_char(']')) return syntax_error("expected ']'");
  }
  --depth_;
  return {};
}

Result<std::string> JsonReader::read_string() {
  if (!consume_char('"')) return syntax_error("expected a string");
  std::string out;
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') return out;
    if (static_cast<unsigned char>(c) < 0x20) return syntax_error("control character in a string");
    if (c == '\\') {
      GPULET_TRY(read_escape(out));
    } else {
      out += c;
    }
  }
  return syntax_error("unterminated string");
}

Status JsonReader::read_escape(std::string& out) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  const char c = peek_char();
  ++at_;
  if (const auto known = kNames.find(c); c != '\0' && known != std::string_view::npos) {
    out += kValues[known];
    return {};
  }
  if (c != 'u') return syntax_error("unknown escape");
  GPULET_TRY_ASSIGN(unsigned code, read_hex4());
  if (code >= 0xDC00 && code < 0xE000) return syntax_error("unpaired surrogate");
  if (code >= 0xD800 && code < 0xDC00) {
    if (text_.substr(at_, 2) != "\\u") return syntax_error("unpaired surrogate");
    at_ += 2;
    GPULET_TRY_ASSIGN(const unsigned low, read_hex4());
    if (low < 0xDC00 || low >= 0xE000) return syntax_error("unpaired surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, code);
  return {};
}

Result<unsigned> JsonReader::read_hex4() {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = peek_char();
    unsigned digit = 0;
    if (text::is_digit(c)) {
      digit = static_cast<unsigned>(c - '0');
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      digit = static_cast<unsigned>((c | 0x20) - 'a') + 10;
    } else {
      return syntax_error("expected four hex digits");
    }
    code = code << 4 | digit;
  }
  return code;
}

Status JsonReader::read_string_into(std::string& out) {
  if (consume_null()) return {};
  GPULET_TRY_ASSIGN(out, read_string());
  if (out.find('\0') != std::string::npos) return syntax_error("NUL in a string");
  return {};
}

Result<bool> JsonReader::read_boolean() {
  if (consume_literal("true")) return true;
  if (consume_literal("false")) return false;
  return syntax_error("expected true or false");
}

Status JsonReader::scan_number(std::string_view& digits) {
  skip_whitespace();
  const std::size_t start = at_;
  const auto run = [this] {
    const std::size_t from = at_;
    while (text::is_digit(peek_char())) ++at_;
    return at_ != from;
  };
  if (peek_char() == '-') ++at_;
  if (peek_char() == '0') {
    ++at_;
  } else if (!run()) {
    return syntax_error("expected a value");
  }
  if (peek_char() == '.') {
    ++at_;
    if (!run()) return syntax_error("expected a digit");
  }
  if ((peek_char() | 0x20) == 'e') {
    ++at_;
    if (peek_char() == '+' || peek_char() == '-') ++at_;
    if (!run()) return syntax_error("expected a digit");
  }
  digits = text_.substr(start, at_ - start);
  return {};
}

Result<std::uint64_t> JsonReader::read_unsigned() {
  std::string_view digits;
  GPULET_TRY(scan_number(digits));
  const auto value = text::parse_unsigned(digits);
  if (!value) return syntax_error("expected a non-negative integer");
  return *value;
}

Status JsonReader::skip_value() {
  skip_whitespace();
  if (peek_char() == '{') return read_object([this](std::string_view) { return skip_value(); });
  if (peek_char() == '[') return read_array([this] { return skip_value(); });
  if (peek_char() == '"') {
    GPULET_TRY(read_string());
    return {};
  }
  if (consume_literal("true") || consume_literal("false") || consume_null()) return {};
  std::string_view digits;
  return scan_number(digits);
}

Status JsonReader::expect_end() {
  skip_whitespace();
  if (at_ != text_.size()) return syntax_error("unexpected text after the value");
  return {};
}

}  // namespace gpulet::hook
