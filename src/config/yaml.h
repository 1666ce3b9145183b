// A YAML or JSON text as a plain tree that knows the line and column of all that is in it. yaml-cpp stands
// behind it, in yaml.cpp alone. The text is not trusted: its size, depth and what its aliases unfold to are
// bounded.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::config::yaml {

inline constexpr std::size_t kMaxTextBytes = 1u << 20;  // what a ConfigMap can hold
inline constexpr std::size_t kMaxDepth = 32;
inline constexpr std::size_t kMaxNodes = 50'000;  // aliases counted as often as they are used
inline constexpr std::size_t kMaxScalarBytes = 4 * kMaxTextBytes;  // likewise

struct Position {
  unsigned line = 0, column = 0;  // from 1
};

struct Entry;
struct Node {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  Position position;
  std::string scalar;
  bool plain = false;          // a scalar without quotes: `true` rather than "true"
  std::vector<Node> items;     // of a sequence
  std::vector<Entry> entries;  // of a mapping, in the order of the text; a merged (<<) mapping's come last
};
struct Entry {
  std::string key;
  Position position;  // of the key
  Node value;
};

struct Duplicate {
  std::string key;
  Position position, first;
};

struct Document {
  Node root;                          // kNull for an empty text
  std::vector<Duplicate> duplicates;  // the last of each is in its mapping
  std::optional<Position> second;     // another document begins here; it is not read
};

// The first document of `text`. Errors, kInvalidArgument, about "file:line:column": what is no YAML, or over
// a bound.
Result<Document> parse(std::string_view text, const std::string& file);

// "file:3:5".
std::string place(const std::string& file, Position position);

}  // namespace gpulet::config::yaml
