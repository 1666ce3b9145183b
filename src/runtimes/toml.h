// TOML as text: the offsets of a document's tables, keys and values, so that one can be changed and every
// other byte kept. It parses the configs of containerd, CRI-O and Podman: TOML 1.0, LF or CRLF, all strings,
// multi-line arrays, inline tables, dotted keys, a UTF-8 byte order mark. It rejects syntax errors and
// duplicates; of dates and numbers it checks only the characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::runtimes::toml {

using Path = std::vector<std::string>;

enum class Kind { kString, kBool, kInteger, kOther, kArray, kTable };

// Offsets are bytes of the text; `end` is the first after the value.
struct Value {
  Kind kind = Kind::kOther;
  std::size_t begin = 0, end = 0;
  std::string text{};          // of a string, its escapes resolved
  bool flag = false;           // of a bool
  long long number = 0;        // of a decimal integer that fits
  std::vector<Value> items{};  // of an array
};

// A key with its value. Members of an inline table are listed too, under their full path.
struct Entry {
  Path path;               // from the root: {"plugins", "io.containerd.grpc.v1.cri", "enable_cdi"}
  std::size_t table = 0;   // index in `tables`
  bool is_inline = false;  // part of an inline table
  std::size_t begin = 0;   // of the key
  std::size_t line = 0;    // of the key, from 1
  Value value{};
};

// tables[0] is the root; it begins after a byte order mark. A table's text goes from its header's line to the
// next header's line.
struct Table {
  Path path{};
  bool array = false;  // [[...]]
  std::size_t begin = 0, end = 0;
  std::size_t line = 1;
};

struct Document {
  std::vector<Table> tables;
  std::vector<Entry> entries;  // in the order of the text
  bool has_byte_order_mark = false;

  // Returns the last entry of this path, nullptr without one. Not for array tables.
  const Entry* find(const Path& path) const;
};

// Nested at most kMaxNesting levels (base/json.h). Errors: kInvalidArgument about "FILE:LINE".
Result<Document> parse_toml(std::string_view text, std::string_view file);

// Returns whether `path` begins with `prefix`.
bool has_prefix(const Path& path, const Path& prefix);

// Returns `text` as a basic string in double quotes.
std::string quote_toml(std::string_view text);
// Returns ["a", "b"] on one line.
std::string string_array(const std::vector<std::string>& items);

// Return the start of the line at `offset`, and the first byte after its line end.
std::size_t line_begin(std::string_view text, std::size_t offset);
std::size_t line_end(std::string_view text, std::size_t offset);

}  // namespace gpulet::runtimes::toml
