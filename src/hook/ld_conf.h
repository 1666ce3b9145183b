// /etc/ld.so.conf of a container: which folders its ldconfig would search, in order. Read by ourselves, below
// the root's descriptor and within limits, so that the host's ldconfig is told folders and reads no
// configuration of an image's.
//
// Source: glibc 2.36, ldconfig(8) and elf/ldconfig.c: a line is a folder, "include PATTERN…", "hwcap …" (no
// meaning any more) or a comment; what follows '=' in a folder's line is a library type of old. Patterns know
// '*' and '?'.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hook/rootfs.h"

namespace gpulet::hook {

inline constexpr std::string_view kLdConfig = "/etc/ld.so.conf";
inline constexpr std::string_view kLdConfigFolder = "/etc/ld.so.conf.d";

inline constexpr std::size_t kMaxLdConfigFiles = 1024;
inline constexpr std::size_t kMaxLdConfigBytes = 256u << 10;  // of one file
inline constexpr std::size_t kMaxLdConfigEntries = 4096;      // in a folder that a pattern names
inline constexpr std::size_t kMaxLdFolders = 1024;
inline constexpr int kMaxIncludeDepth = 16;

struct LdFolder {
  std::string path;  // absolute, as the line says
  std::string file;  // the line's file
  bool operator==(const LdFolder&) const = default;
};

// In the order in which ldconfig meets them, each folder's name once. A file that is missing, or of another
// kind than a file, is passed over, as ldconfig does; so is an include of one that was read already. Errors:
// kInvalidArgument when a limit is reached.
Result<std::vector<LdFolder>> read_ld_config(const Rootfs& root);

// Whether a name matches a pattern of '*' and '?'. Linear in both for each '*', whatever they are. A name
// that begins with '.' must be asked for with one.
bool matches_pattern(std::string_view pattern, std::string_view name);

}  // namespace gpulet::hook
