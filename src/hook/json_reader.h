// A strict forward-only reader of untrusted JSON (RFC 8259) with a depth limit. It stores only what the
// caller reads. It is small because it is part of a static program: a full JSON library would be as large as
// the rest of the hook.
//
//   JsonReader json(text);
//   GPULET_TRY(json.object([&](std::string_view key) -> Status {
//     if (key == "id") return json.read_string_into(id);
//     return json.skip();
//   }));
//   GPULET_TRY(json.end());
//
// A member callback must read or skip its value. Bytes above 127 are passed through. Errors: kInvalidArgument
// with the offset.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::hook {

class JsonReader {
 public:
  static constexpr int kMaxDepth = 64;

  explicit JsonReader(std::string_view text) : text_(text) {}

  Status read_object(const std::function<Status(std::string_view key)>& member);
  Status read_array(const std::function<Status()>& element);
  Result<std::string> read_string();
  // Reads a string without NUL. A null leaves `out` unchanged.
  Status read_string_into(std::string& out);
  Result<bool> read_boolean();
  // Reads a non-negative integer.
  Result<std::uint64_t> read_unsigned();
  // Skips any value.
  Status skip_value();
  // Fails unless only whitespace follows.
  Status expect_end();
  // Consumes the next value if it is null.
  bool consume_null();

 private:
  tl::unexpected<Error> syntax_error(std::string_view what) const;
  void skip_whitespace();
  bool consume_char(char expected);
  bool consume_literal(std::string_view word);
  char peek_char() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  Status scan_number(std::string_view& digits);
  Status read_escape(std::string& out);
  Result<unsigned> read_hex4();
  Status enter_nested();

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace gpulet::hook
