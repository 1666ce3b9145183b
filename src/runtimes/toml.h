// TOML as text: where the tables, keys and values of a document stand, so that one of them can be changed and
// every other byte kept. It reads what containerd, CRI-O and Podman are set up with: TOML 1.0, LF or CRLF,
// all kinds of strings, arrays over many lines, inline tables, dotted keys. It refuses what breaks the syntax
// and what is there twice; it does not judge dates and numbers further than by their characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::runtimes::toml {

using Path = std::vector<std::string>;

enum class Kind { kString, kBool, kInteger, kOther, kArray, kTable };

// Offsets are bytes of the text; `end` is the first behind.
struct Value {
  Kind kind = Kind::kOther;
  std::size_t begin = 0, end = 0;
  std::string text{};          // of a string, its escapes resolved
  bool flag = false;           // of a bool
  long long number = 0;        // of a decimal integer that fits
  std::vector<Value> items{};  // of an array
};

// A key with its value. What an inline table holds is listed too, under its full path.
struct Entry {
  Path path;              // from the root: {"plugins", "io.containerd.grpc.v1.cri", "enable_cdi"}
  std::size_t table = 0;  // in which of `tables` it stands
  bool in_line = false;   // part of an inline table
  std::size_t begin = 0;  // of the key
  std::size_t line = 0;   // of the key, from 1
  Value value{};
};

// tables[0] is the root. A table's text goes from its header's line to the next header's line.
struct Table {
  Path path{};
  bool array = false;  // [[...]]
  std::size_t begin = 0, end = 0;
  std::size_t line = 1;
};

struct Document {
  std::vector<Table> tables;
  std::vector<Entry> entries;  // in the order of the text

  // The last entry of this path, nullptr without one. Not for what [[...]] repeats.
  const Entry* find(const Path& path) const;
};

// Values nest no deeper.
inline constexpr int kMaxDepth = 64;

// Errors: kInvalidArgument about "FILE:LINE".
Result<Document> parse(std::string_view text, std::string_view file);

// Whether `path` begins with all of `prefix`.
bool under(const Path& path, const Path& prefix);

// `text` in double quotes, escaped as a basic string.
std::string quoted(std::string_view text);
// ["a", "b"], in one line.
std::string string_array(const std::vector<std::string>& items);

// The start of the line that `offset` is in, and the first byte behind it with its line end.
std::size_t line_begin(std::string_view text, std::size_t offset);
std::size_t line_end(std::string_view text, std::size_t offset);

}  // namespace gpulet::runtimes::toml
