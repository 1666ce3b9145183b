// The `imports` of containerd's main file: gpulet adds and removes one entry and changes no other byte.
//
// containerd reads imports after the file that names them. A pattern without a match is fine, but a missing
// path keeps containerd from starting. The entry is therefore a pattern for one file:
// "/etc/containerd/conf.d/99-gpulet*.toml" for /etc/containerd/conf.d/99-gpulet.toml.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "runtimes/toml.h"

namespace gpulet::runtimes {

// Returns the pattern for `drop_in`, a path without `*`, `?` and `[`.
std::string import_pattern(const std::string& drop_in);

// Returns the imports of `document` (from the file `path`) as absolute paths and patterns. Errors:
// kInvalidArgument if `imports` is not a list of strings.
Result<std::vector<std::string>> read_imports(const toml::Document& document, const std::string& path);

// As Go's filepath.Match: `*` and `?` do not cross a slash.
bool import_matches(const std::string& import, const std::string& path);

// Returns `text`, parsed as `document`, with `pattern` as the last import: appended to the list, or as a new
// line after `version` with a comment that names gpulet.
std::string with_import(const std::string& text, const toml::Document& document, const std::string& pattern);

// Returns `text` without every entry `pattern`, and without the line that with_import added.
std::string without_import(const std::string& text, const toml::Document& document,
                           const std::string& pattern);

}  // namespace gpulet::runtimes
