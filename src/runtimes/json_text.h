// JSON as text: where the members and items of a document stand, so that one can be changed and every other
// byte kept. Strict JSON (RFC 8259), as Go reads it; a member that is there twice is refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::runtimes::json {

enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

struct Value;

struct Value {
  Kind kind = Kind::kNull;
  std::size_t begin = 0, end = 0;  // offsets of its text; end is the first byte behind
  std::string key{};               // of a member
  std::size_t key_begin = 0;       // where a member begins
  std::size_t line = 0;            // where the member or item begins, from 1
  bool flag = false;               // of a bool
  std::string text{};              // of a string, its escapes resolved
  std::vector<Value> children{};   // of an array or an object, in the order of the text

  const Value* find(std::string_view member) const;
};

inline constexpr int kMaxDepth = 64;

// Errors: kInvalidArgument about "FILE:LINE".
Result<Value> parse(std::string_view text, std::string_view file);

// `text` with a member or item put at the end of `parent`, an array or an object of its document: written as
// its siblings are, on a line of its own where they have one.
std::string with_child(const std::string& text, const Value& parent, const std::string& child);
// The inverse for the last child: with its comma and the blanks before it.
std::string without_child(const std::string& text, const Value& parent, std::size_t index);

std::string quoted(std::string_view text);

}  // namespace gpulet::runtimes::json
