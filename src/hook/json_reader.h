// A strict reader of one JSON text (RFC 8259) that somebody hostile may have written: it goes forward only,
// keeps nothing but what its caller asks for, and has a limit of depth. Small, because it is part of a static
// program; it stands where nlohmann-json would cost as much as the whole hook.
//
//   JsonReader json(text);
//   GPULET_TRY(json.object([&](std::string_view key) -> Status {
//     if (key == "id") return json.string_into(id);
//     return json.skip();
//   }));
//   GPULET_TRY(json.end());
//
// A member's function must read or skip its value. Bytes above 127 are taken as they are. Errors:
// kInvalidArgument, with the offset of what is wrong.
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

  Status object(const std::function<Status(std::string_view key)>& member);
  Status array(const std::function<Status()>& element);
  Result<std::string> string();
  // For a member that must be a string without NUL; a null leaves `out` as it is.
  Status string_into(std::string& out);
  Result<bool> boolean();
  // A whole number that is not negative.
  Result<std::uint64_t> unsigned_number();
  // Any value.
  Status skip();
  // Nothing but blanks may follow.
  Status end();
  // If the next value is null, takes it.
  bool take_null();

 private:
  tl::unexpected<Error> wrong(std::string_view what) const;
  void blanks();
  bool take(char expected);
  bool take_word(std::string_view word);
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  Status number(std::string_view& digits);
  Status escape(std::string& out);
  Result<unsigned> hex4();
  Status enter();

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace gpulet::hook
