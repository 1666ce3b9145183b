#include "base/json.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace gpulet {
namespace {

constexpr const char* kNotJson = "not valid JSON";
constexpr const char* kTooDeep = "nested deeper than 64 levels";
static_assert(kMaxNesting == 64);

constexpr bool is_plain(char c) { return c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20; }

}  // namespace

const nlohmann::json& json_member(const nlohmann::json& object, const char* name) {
  static const nlohmann::json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::string json_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool is_go_field(std::string_view key, std::string_view name) {
  return key.size() == name.size() && text::lower(key) == name;
}

bool exceeds_nesting(std::string_view json) {
  std::size_t depth = 0;
  for (std::size_t at = 0; at < json.size(); ++at) {
    switch (json[at]) {
      case '"':
        for (++at; at < json.size() && json[at] != '"'; ++at) {
          if (json[at] == '\\') ++at;
        }
        break;
      case '[':
      case '{':
        if (++depth > kMaxNesting) return true;
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      default:
        break;
    }
  }
  return false;
}

void append_json_string(std::string& out, std::string_view text) {
  constexpr const char* kHex = "0123456789abcdef";
  out += '"';
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto end = std::find_if_not(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(), is_plain);
    out.append(text.substr(at, static_cast<std::size_t>(end - text.begin()) - at));
    at = static_cast<std::size_t>(end - text.begin());
    if (at == text.size()) break;
    const char c = text[at];
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else {
      out.append("\\u00").append({kHex[static_cast<unsigned char>(c) >> 4], kHex[c & 15]});
    }
  }
  out += '"';
}

std::string unescape_json_string(std::string_view quoted) {
  if (quoted.find('\\') == std::string_view::npos)
    return std::string(quoted.size() < 2 ? quoted : quoted.substr(1, quoted.size() - 2));
  const auto value = parse_json(quoted);
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool JsonReader::fail_at(const char* what) {
  if (error_ == nullptr) error_ = what;
  return false;
}

void JsonReader::skip_space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

bool JsonReader::enter_container(char bracket) {
  skip_space();
  if (error_ != nullptr || peek() != bracket) return false;
  if (depth_ == kMaxNesting) return fail_at(kTooDeep);
  open_[depth_++] = bracket;
  ++at_;
  first_ = true;
  return true;
}

// To the next value of the innermost container. False at its end.
bool JsonReader::skip_separator(char end) {
  if (error_ != nullptr || depth_ == 0) return false;
  skip_space();
  if (peek() == end) {
    ++at_;
    --depth_;
    first_ = false;
    return false;
  }
  if (!std::exchange(first_, false)) {
    if (peek() != ',') return fail_at(kNotJson);
    ++at_;
    skip_space();
  }
  return true;
}

bool JsonReader::next_member(std::string_view& key) {
  if (!skip_separator('}')) return false;
  const std::size_t begin = at_ + 1;
  if (peek() != '"' || !skip_string()) return fail_at(kNotJson);
  key = text_.substr(begin, at_ - 1 - begin);
  skip_space();
  if (peek() != ':') return fail_at(kNotJson);
  ++at_;
  skip_space();
  return true;
}

bool JsonReader::next_item() { return skip_separator(']'); }

std::string_view JsonReader::skip_value() {
  skip_space();
  const std::size_t begin = at_, outside = depth_;
  do {
    const bool entered = enter_object() || enter_array();
    if (!entered && (error_ != nullptr || !skip_scalar())) {
      fail_at(kNotJson);
      return {};
    }
    // Leaves what has ended, up to the next value.
    for (std::string_view key; depth_ > outside;) {
      if (open_[depth_ - 1] == '{' ? next_member(key) : next_item()) break;
      if (error_ != nullptr) return {};
    }
  } while (depth_ > outside);
  return text_.substr(begin, at_ - begin);
}

bool JsonReader::skip_null() {
  skip_space();
  return error_ == nullptr && text_.substr(at_).starts_with("null") && !skip_value().empty();
}

bool JsonReader::skip_string() {
  for (++at_; at_ < text_.size();) {
    const char c = text_[at_++];
    if (c == '"') return true;
    if (static_cast<unsigned char>(c) < 0x20) break;
    if (c != '\\') continue;
    const char escape = peek();
    ++at_;
    if (escape == 'u') {
      for (int digits = 0; digits < 4; ++digits, ++at_) {
        if (std::string_view("0123456789abcdefABCDEF").find(peek()) == std::string_view::npos) return false;
      }
    } else if (escape == '\0' || std::string_view("\"\\/bfnrt").find(escape) == std::string_view::npos) {
      return false;
    }
  }
  return false;
}

bool JsonReader::skip_digits() {
  const std::size_t begin = at_;
  while (text::is_digit(peek())) ++at_;
  return at_ > begin;
}

bool JsonReader::skip_scalar() {
  skip_space();
  if (peek() == '"') return skip_string();
  for (const std::string_view literal : {"true", "false", "null"}) {
    if (text_.substr(at_).starts_with(literal)) {
      at_ += literal.size();
      return true;
    }
  }
  if (peek() == '-') ++at_;
  if (peek() == '0') {
    ++at_;
  } else if (!skip_digits()) {
    return false;
  }
  if (peek() == '.') {
    ++at_;
    if (!skip_digits()) return false;
  }
  if (peek() == 'e' || peek() == 'E') {
    ++at_;
    if (peek() == '+' || peek() == '-') ++at_;
    if (!skip_digits()) return false;
  }
  return true;
}

Status JsonReader::finish() {
  skip_space();
  if (error_ == nullptr && (depth_ != 0 || at_ == 0 || at_ != text_.size())) error_ = kNotJson;
  if (error_ == nullptr) return {};
  return fail(Code::kInvalidArgument, std::string(error_) + ", at byte " + std::to_string(at_));
}

}  // namespace gpulet
