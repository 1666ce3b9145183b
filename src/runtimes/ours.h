// Files that are ours alone begin with our header; another's file in the same place is never touched.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::runtimes {

inline constexpr std::string_view kOurHeader =
    "# Written by `gpulet runtime configure`; `gpulet runtime configure --remove` takes it away. Do not "
    "edit.\n";

// kFailedPrecondition when there is a file without our header.
inline Status check_ours(const std::string& path, const std::optional<std::string>& text) {
  if (!text || text->starts_with(kOurHeader)) return {};
  return fail(Code::kFailedPrecondition,
              "another's file is where our drop-in goes: --drop-in-config names another place", path);
}

// kInvalidArgument for a path that a pattern cannot stand for, or that is not absolute and plain.
inline Status check_drop_in_path(const std::string& path) {
  const bool plain = path.starts_with('/') && path.find_first_of("*?[]\\\"\n\r") == std::string::npos &&
                     path.find("//") == std::string::npos && path.find("/.") == std::string::npos &&
                     !path.ends_with('/');
  if (plain) return {};
  return fail(Code::kInvalidArgument,
              "no place for a drop-in: an absolute path without `.`, `..` and patterns would do", path);
}

}  // namespace gpulet::runtimes
