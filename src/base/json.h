// JSON from outside: the limit of nesting for every reader of JSON and YAML, and a reader without recursion
// for texts that are too large to be held as values.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/result.h"

namespace gpulet {

// Arrays and objects inside each other, the outermost included. Libraries copy, compare and write values by
// recursion, so a text of 200 KiB could otherwise exhaust the stack. Kubernetes' own objects reach 20 levels.
inline constexpr std::size_t kMaxNesting = 64;

// Whether brackets outside of strings are nested deeper than kMaxNesting. The text need not be valid. Linear.
bool exceeds_nesting(std::string_view json);

// The value of a JSON text; discarded (nlohmann::json::is_discarded) where it is invalid or nested too deep.
// A NUL byte is invalid everywhere, and ends the text for the library.
template <class Value = nlohmann::json>
Value parse_json(std::string_view text) {
  const bool refused = exceeds_nesting(text) || text.find('\0') != std::string_view::npos;
  return refused ? Value(Value::value_t::discarded) : Value::parse(text, nullptr, false);
}

// The member of an object; null where there is none, or `object` is no object.
const nlohmann::json& json_member(const nlohmann::json& object, const char* name);

// The text of a JSON string; empty for any other value.
std::string json_text(const nlohmann::json& value);

// Appends `text` as a JSON string with its quotes. UTF-8 is not checked.
void append_json_string(std::string& out, std::string_view text);

// The text of a JSON string as written, with its quotes and escapes.
std::string unescape_json_string(std::string_view quoted);

// Whether Go's JSON decoder takes the member `key` for the field `name`, which is given in lower case: the
// case of letters does not matter.
bool is_go_field(std::string_view key, std::string_view name);

// Walks through a JSON text once, in order, without recursion, copies and allocations. It validates what it
// passes, except UTF-8. The text must live as long as the views that are returned.
//
//   JsonReader reader(text);
//   if (reader.enter_object()) {
//     for (std::string_view key; reader.next_member(key);) reader.skip_value();
//   }
//   GPULET_TRY(reader.finish());
//
// Each value must be entered or skipped. After an error, every call returns false or nothing.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  // Enters the next value. False where it is no object or array; it has not been passed then.
  bool enter_object() { return enter_container('{'); }
  bool enter_array() { return enter_container('['); }
  // Moves to the next value of the object or array that was entered last. False at its end, which leaves it.
  // `key`: as written between its quotes.
  bool next_member(std::string_view& key);
  bool next_item();
  // Passes the next value, and returns its text.
  std::string_view skip_value();
  // Passes the next value if it is null.
  bool skip_null();

  // Bytes passed so far.
  std::size_t position() const { return at_; }
  // Errors: kInvalidArgument for a text that is not one JSON value, with the position of the mistake, or that
  // is nested too deep.
  Status finish();

 private:
  bool enter_container(char bracket);
  bool skip_separator(char end);
  bool skip_string();
  bool skip_scalar();
  bool skip_digits();
  void skip_space();
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool fail_at(const char* what);

  std::string_view text_;
  std::size_t at_ = 0;
  std::array<char, kMaxNesting> open_{};  // the opening bracket of each container that was entered
  std::size_t depth_ = 0;
  bool first_ = false;  // nothing of the innermost container has been passed
  const char* error_ = nullptr;
};

}  // namespace gpulet
