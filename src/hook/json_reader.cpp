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

tl::unexpected<Error> JsonReader::wrong(std::string_view what) const {
  return fail(Code::kInvalidArgument, std::string(what) + " at byte " + std::to_string(at_));
}

void JsonReader::blanks() {
  while (at_ < text_.size() && (next() == ' ' || next() == '\t' || next() == '\n' || next() == '\r')) ++at_;
}

bool JsonReader::take(char expected) {
  blanks();
  if (at_ >= text_.size() || text_[at_] != expected) return false;
  ++at_;
  return true;
}

bool JsonReader::take_word(std::string_view word) {
  blanks();
  if (text_.substr(at_, word.size()) != word) return false;
  at_ += word.size();
  return true;
}

bool JsonReader::take_null() { return take_word("null"); }

Status JsonReader::enter() {
  if (depth_ >= kMaxDepth) return wrong("deeper than the limit of 64");
  ++depth_;
  return {};
}

Status JsonReader::object(const std::function<Status(std::string_view)>& member) {
  if (!take('{')) return wrong("an object is missing");
  GPULET_TRY(enter());
  if (!take('}')) {
    do {
      GPULET_TRY_ASSIGN(const std::string key, string());
      if (!take(':')) return wrong("':' is missing");
      GPULET_TRY(member(key));
    } while (take(','));
    if (!take('}')) return wrong("'}' is missing");
  }
  --depth_;
  return {};
}

Status JsonReader::array(const std::function<Status()>& element) {
  if (!take('[')) return wrong("an array is missing");
  GPULET_TRY(enter());
  if (!take(']')) {
    do {
      GPULET_TRY(element());
    } while (take(','));
    if (!take(']')) return wrong("']' is missing");
  }
  --depth_;
  return {};
}

Result<std::string> JsonReader::string() {
  if (!take('"')) return wrong("a string is missing");
  std::string out;
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') return out;
    if (static_cast<unsigned char>(c) < 0x20) return wrong("a control character in a string");
    if (c == '\\') {
      GPULET_TRY(escape(out));
    } else {
      out += c;
    }
  }
  return wrong("a string does not end");
}

Status JsonReader::escape(std::string& out) {
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  const char c = next();
  ++at_;
  if (const auto known = kNames.find(c); c != '\0' && known != std::string_view::npos) {
    out += kValues[known];
    return {};
  }
  if (c != 'u') return wrong("an unknown escape");
  GPULET_TRY_ASSIGN(unsigned code, hex4());
  if (code >= 0xDC00 && code < 0xE000) return wrong("half a surrogate pair");
  if (code >= 0xD800 && code < 0xDC00) {
    if (text_.substr(at_, 2) != "\\u") return wrong("half a surrogate pair");
    at_ += 2;
    GPULET_TRY_ASSIGN(const unsigned low, hex4());
    if (low < 0xDC00 || low >= 0xE000) return wrong("half a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, code);
  return {};
}

Result<unsigned> JsonReader::hex4() {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = next();
    unsigned digit = 0;
    if (text::is_digit(c)) {
      digit = static_cast<unsigned>(c - '0');
    } else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') {
      digit = static_cast<unsigned>((c | 0x20) - 'a') + 10;
    } else {
      return wrong("four hex digits are missing");
    }
    code = code << 4 | digit;
  }
  return code;
}

Status JsonReader::string_into(std::string& out) {
  if (take_null()) return {};
  GPULET_TRY_ASSIGN(out, string());
  if (out.find('\0') != std::string::npos) return wrong("a NUL in a string");
  return {};
}

Result<bool> JsonReader::boolean() {
  if (take_word("true")) return true;
  if (take_word("false")) return false;
  return wrong("true or false is missing");
}

Status JsonReader::number(std::string_view& digits) {
  blanks();
  const std::size_t start = at_;
  const auto run = [this] {
    const std::size_t from = at_;
    while (text::is_digit(next())) ++at_;
    return at_ != from;
  };
  if (next() == '-') ++at_;
  if (next() == '0') {
    ++at_;
  } else if (!run()) {
    return wrong("a value is missing");
  }
  if (next() == '.') {
    ++at_;
    if (!run()) return wrong("a digit is missing");
  }
  if ((next() | 0x20) == 'e') {
    ++at_;
    if (next() == '+' || next() == '-') ++at_;
    if (!run()) return wrong("a digit is missing");
  }
  digits = text_.substr(start, at_ - start);
  return {};
}

Result<std::uint64_t> JsonReader::unsigned_number() {
  std::string_view digits;
  GPULET_TRY(number(digits));
  const auto value = text::parse_unsigned(digits);
  if (!value) return wrong("not a whole number");
  return *value;
}

Status JsonReader::skip() {
  blanks();
  if (next() == '{') return object([this](std::string_view) { return skip(); });
  if (next() == '[') return array([this] { return skip(); });
  if (next() == '"') {
    GPULET_TRY(string());
    return {};
  }
  if (take_word("true") || take_word("false") || take_null()) return {};
  std::string_view digits;
  return number(digits);
}

Status JsonReader::end() {
  blanks();
  if (at_ != text_.size()) return wrong("more follows the value");
  return {};
}

}  // namespace gpulet::hook
