// A tar archive in memory: regular files, POSIX ustar, which every tar reads. A few small texts need no
// library for it. Source: POSIX.1-2017, pax, "ustar Interchange Format".
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::doctor {

struct ArchiveFile {
  std::string name;  // "gpulet-doctor/report.txt"; at most 255 bytes, 100 behind a slash
  std::string content;
};

// Files are of mode 0600, root's, as of `at`; the same input gives the same bytes. Errors: kInvalidArgument
// for a name that is empty or too long.
Result<std::string> tar_of(const std::vector<ArchiveFile>& files, std::chrono::system_clock::time_point at);

}  // namespace gpulet::doctor
