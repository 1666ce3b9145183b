// The support archive: a tar file in memory, and the removal of secrets from its texts. Pure: any thread.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::doctor {

// A tar archive in memory: regular files, POSIX ustar. Source: POSIX.1-2017, pax, "ustar Interchange
// Format".

struct ArchiveFile {
  std::string name;  // "gpulet-doctor/report.txt"; at most 255 bytes, 100 behind a slash
  std::string content;
};

// Files have mode 0600, owner root and time `at`; the same input gives the same bytes. Errors:
// kInvalidArgument for an empty or too long name.
Result<std::string> make_tar(const std::vector<ArchiveFile>& files, std::chrono::system_clock::time_point at);

// Removes secrets from texts before they leave a node: tokens, passwords and keys, by the name in front of
// them or by their form. Pure: any thread.
//
// It prefers to remove too much: any value behind a name that looks like a secret's is removed.

inline constexpr std::string_view kRedacted = "[redacted]";

// Returns the text with kRedacted in place of
//  - values of keys such as token, password, secret, apiKey, auth, credentials (JSON, YAML, TOML, NAME=value,
//    --name value), of a variable {name: DB_PASSWORD, value: …}, and a YAML block below such a key;
//  - PEM private keys, `Bearer …`, JSON web tokens, tokens of known form, the user of a URL, and 40 or more
//    mixed-case letters and digits in a row.
std::string redact_secrets(std::string_view text);

// Whether a value behind this name is removed.
bool is_secret_name(std::string_view name);

}  // namespace gpulet::doctor
