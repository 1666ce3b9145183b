// Docker's daemon.json: features.cdi and cdi-spec-dirs. Docker has no drop-ins, so the file itself is edited.
// JSON has no comments, so a record beside it (daemon.json.gpulet) lists the changes: --remove undoes exactly
// these, unless they were edited since.
//
// CDI is off by default in Docker 25, on in 28.2. cdi-spec-dirs replaces the default directories; [""] means
// none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtimes/engine.h"

namespace gpulet::runtimes::json {

// JSON as text: the offsets of a document's members and items, so that one can be changed and every other
// byte kept. Strict JSON (RFC 8259), as Go reads it; a duplicate member is an error.
enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

struct Value;

struct Value {
  Kind kind = Kind::kNull;
  std::size_t begin = 0, end = 0;  // offsets of its text; end is the first byte after it
  std::string key{};               // of a member
  std::size_t key_begin = 0;       // where a member begins
  std::size_t line = 0;            // where the member or item begins, from 1
  bool flag = false;               // of a bool
  std::string text{};              // of a string, its escapes resolved
  std::vector<Value> children{};   // of an array or an object, in the order of the text

  const Value* find(std::string_view member) const;
};

// Nested at most kMaxNesting levels (base/json.h). Errors: kInvalidArgument about "FILE:LINE".
Result<Value> parse_json_text(std::string_view text, std::string_view file);

// Returns `text` with a member or item appended to `parent`, an array or object of its document, formatted
// like its siblings.
std::string with_child(const std::string& text, const Value& parent, const std::string& child);
// Returns `text` without the child at `index`, its comma and the whitespace before it.
std::string without_child(const std::string& text, const Value& parent, std::size_t index);

std::string quote_json(std::string_view text);

}  // namespace gpulet::runtimes::json

namespace gpulet::runtimes::docker {

// Returns the path of the record of changes.
std::string record_path(const std::string& config);

// Errors: kUnsupported for an older Docker; kInvalidArgument about FILE:LINE for invalid JSON or members of
// another type; kFailedPrecondition if the CDI directories were disabled by hand ([""]).
Result<Plan> plan_setup(const Target& target, const Reader& reader);
Result<Plan> plan_removal(const Target& target, const Reader& reader);
Result<std::vector<Finding>> collect_findings(const Target& target, const Reader& reader);

}  // namespace gpulet::runtimes::docker
