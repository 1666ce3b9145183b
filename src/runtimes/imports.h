// The `imports` of containerd's main file: one entry of ours goes in and comes out, and no other byte
// changes.
//
// containerd reads imports after the file that names them; a pattern that matches nothing is no error, a path
// that is not there keeps containerd from starting. So our entry is a pattern even though it means one file:
// "/etc/containerd/conf.d/99-gpulet*.toml" for /etc/containerd/conf.d/99-gpulet.toml.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "runtimes/toml.h"

namespace gpulet::runtimes {

// The pattern that stands for `drop_in`, a path without `*`, `?` and `[`.
std::string import_pattern(const std::string& drop_in);

// What `document` (of the file `path`) imports, as absolute paths and patterns. Errors: kInvalidArgument when
// `imports` is no list of strings.
Result<std::vector<std::string>> imports_of(const toml::Document& document, const std::string& path);

// As Go's filepath.Match: `*` and `?` do not cross a slash.
bool import_matches(const std::string& import, const std::string& path);

// `text`, which `document` describes, with `pattern` as the last import: into the list where it is, else as a
// line behind `version`, with a comment that says whose it is.
std::string with_import(const std::string& text, const toml::Document& document, const std::string& pattern);

// The inverse: every entry that is `pattern` is taken out, and the line when it was ours alone. The same text
// when there is none.
std::string without_import(const std::string& text, const toml::Document& document,
                           const std::string& pattern);

}  // namespace gpulet::runtimes
