// Parses YAML or JSON into a tree with the line and column of every node. Only yaml.cpp uses yaml-cpp. The
// text is untrusted: size, nesting (base/json.h) and the expansion of aliases are limited.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::config::yaml {

inline constexpr std::size_t kMaxTextBytes = 1u << 20;             // the limit of a ConfigMap
inline constexpr std::size_t kMaxNodes = 50'000;                   // each use of an alias counts
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
  bool plain = false;          // a scalar without quotes: `true`, not "true"
  std::vector<Node> items;     // of a sequence
  std::vector<Entry> entries;  // of a mapping, in the order of the text; merged (<<) entries come last
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
  std::vector<Duplicate> duplicates;  // the mapping has the last one
  std::optional<Position> second;     // start of another document, which is ignored
};

// Parses the first document of `text`. Errors: kInvalidArgument about "file:line:column" if it is not YAML or
// exceeds a limit.
Result<Document> parse_yaml(std::string_view text, const std::string& file);

// "file:3:5".
std::string position_text(const std::string& file, Position position);

}  // namespace gpulet::config::yaml
