#include "base/unified_cgroup.h"

#include "base/text.h"

namespace gpulet {

std::string unified_cgroup(std::string_view cgroup_file) {
  constexpr std::string_view kUnified = "0::";
  for (const auto& line : text::split(cgroup_file, '\n')) {
    if (text::starts_with(line, kUnified)) return line.substr(kUnified.size());
  }
  return {};
}

}  // namespace gpulet
