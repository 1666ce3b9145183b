// Reads /etc/ld.so.conf of a container and its includes: the directories that its ldconfig searches.
//
// The hook reads it below the root's descriptor and within limits, so that the host's ldconfig gets
// directories as arguments and reads no configuration of the image. The image chooses files, patterns and
// names: whatever they are, reading ends after kMaxLdConfigSteps.
//
// Source: glibc 2.36, ldconfig(8) and elf/ldconfig.c: a line is a directory, "include PATTERN…", "hwcap …"
// (obsolete) or a comment; '=' in a directory's line starts an obsolete library type. Patterns have '*' and
// '?'.
#pragma once

#include <bitset>
#include <climits>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hook/rootfs.h"

namespace gpulet::hook {

inline constexpr std::string_view kLdConfig = "/etc/ld.so.conf";
inline constexpr std::string_view kLdConfigDirectory = "/etc/ld.so.conf.d";

inline constexpr std::size_t kMaxLdConfigFiles = 1024;
inline constexpr std::size_t kMaxLdConfigBytes = 256u << 10;  // of one file
inline constexpr std::size_t kMaxLdConfigEntries = 4096;      // in a directory that a pattern names
inline constexpr std::size_t kMaxLdDirectories = 1024;
inline constexpr int kMaxIncludeDepth = 16;
// For all files together, some nanoseconds each. A directory of 4,096 names takes a sixth of them, the
// configuration of a usual image some thousand.
inline constexpr std::size_t kMaxLdConfigSteps = 2u << 20;

struct LdDirectory {
  std::string path;  // absolute, as in the file
  std::string file;  // the file that names it
  bool operator==(const LdDirectory&) const = default;
};

// Returns the directories in ldconfig's order, each once. Skips missing files, other file types and files
// already read, as ldconfig does. Errors: kInvalidArgument if a limit is exceeded.
Result<std::vector<LdDirectory>> read_ld_config(const Rootfs& root);

// A pattern of '*' and '?' for file names. A leading '.' must be matched explicitly. Matching is linear in
// the name, however many stars the pattern has. A pattern of more than NAME_MAX other characters matches
// nothing.
class NamePattern {
 public:
  explicit NamePattern(std::string_view pattern);
  bool matches(std::string_view name) const;

 private:
  // Bit i: the first i characters other than '*' have matched.
  using States = std::bitset<NAME_MAX + 1>;

  std::vector<States> after_;  // by character: the states that it leads to the next from
  States any_;                 // the states that any character leads to the next from
  States stars_;               // the states that any character leaves as they are
  std::size_t length_ = 0;     // characters other than '*'
  bool leading_dot_ = false;
};

}  // namespace gpulet::hook
