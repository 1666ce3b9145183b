// The support archive: a tar file in memory. redact.h removes the secrets from its files. Pure: any thread.
#pragma once

#include <chrono>
#include <string>
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

}  // namespace gpulet::doctor
