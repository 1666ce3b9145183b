// Removes secrets from the files of a support archive before they leave a node. Pure: any thread.
//
// A file of a known format is parsed, its values are judged by the names that lead to them and by their form,
// and it is written again from what was parsed: comments, and whatever a parser ignores, do not come through.
// What is not parsed as a known format is removed as a whole. It prefers to remove too much: any value behind
// a name that looks like a secret's is removed, unless it can only be a path, a number, a duration or an
// identifier.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpulet::doctor {

inline constexpr std::string_view kRedacted = "[redacted]";

// Returns a file of the archive without secrets. `name` decides its format: .json, .yaml and .yml, .toml,
// .env and the like, .txt and files of /proc (free text). Others are tried as JSON, TOML, NAME=value lines
// and YAML. JSON stays JSON, YAML becomes block style, TOML keeps its tables and their order; each without
// comments. Only structure counts for a value that is a document itself (JSON in a string, a YAML block).
std::string redact_file(std::string_view name, std::string_view content);

// Free text: returns it with kRedacted in place of
//  - what follows `NAME=`, `NAME:` or `--NAME` with a secret's name, to the end of the value or line;
//  - what has a secret's form by itself: PEM private keys, `Bearer …`, web tokens, tokens of known form, the
//  user
//    of a URL, and 40 or more mixed letters and digits in a row.
std::string redact_text(std::string_view text);

// Lines of NAME=value without secrets and comments: environment files, systemd units, INI. A value ends with
// its line, unless a quote is open or the line ends in a backslash. Returns nothing for any other text.
std::optional<std::string> redact_environment(std::string_view text);

// Whether a value behind this name may be a secret: DB_PASS, encryption_key, apiKey, sig, registryToken.
bool is_secret_name(std::string_view name);
// The same for a name with its value: false for a path behind tokenFile, a number behind tokenTtl, a name
// behind secretName, a boolean or nothing.
bool is_secret_value(std::string_view name, std::string_view value);

}  // namespace gpulet::doctor
