// The folders that container engines read specs from, as they read them: *.json and *.yaml, a later folder
// before an earlier one, and a device that two files of one folder have is nobody's.
#pragma once

#include <string>
#include <vector>

#include "cdi/validate.h"

namespace gpulet::cdi {

// An engine's own, unless it is told otherwise.
inline const std::vector<std::string> kSpecDirs{"/etc/cdi", "/var/run/cdi"};

struct SpecDirs {
  std::vector<std::string> files;     // all that were read, in order
  std::vector<std::string> devices;   // qualified names, ascending
  std::vector<SpecProblem> problems;  // of files (whose devices are not there) and of devices
};
// A folder that is not there is empty.
SpecDirs read_spec_dirs(const std::vector<std::string>& folders);

// One file. Its problem is that it cannot be read, or what read_spec says.
ReadSpec read_spec_file(const std::string& path);

}  // namespace gpulet::cdi
