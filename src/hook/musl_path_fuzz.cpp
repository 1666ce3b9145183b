// Fuzzes an image's /etc/ld-musl-ARCH.path: the first line has the driver's directories separated by ':', the
// rest is the file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "hook/ldcache.h"

namespace {

using Directories = std::vector<std::string>;

Directories split_path(std::string_view text, std::string_view separators) {
  Directories parts;
  while (!text.empty()) {
    const auto end = text.find_first_of(separators);
    if (end != 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

// The directories that musl's loader searches, by ldso/dynlink.c: the file ends at the first NUL.
Directories searched_directories(std::string_view file) {
  return split_path(file.substr(0, file.find('\0')), ":\n");
}

// What update_ldcache() accepts as a directory.
bool is_accepted(const std::string& directory) {
  return directory.front() == '/' &&
         directory.find_first_of(std::string_view("\n\r# \t:,=\0", 9)) == std::string::npos;
}

bool contains(const Directories& all, const std::string& one) { return std::ranges::count(all, one) > 0; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using gpulet::hook::with_musl_directories;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const auto line = std::min(input.find('\n'), input.size());
  Directories drivers = split_path(std::string_view(input).substr(0, line), ":");
  std::erase_if(drivers, [](const auto& directory) { return !is_accepted(directory); });
  // Without a line break there is no file, and the loader has its defaults.
  std::optional<std::string> file;
  Directories before = {"/lib", "/usr/local/lib", "/usr/lib"};
  if (line < input.size()) {
    file = input.substr(line + 1);
    before = searched_directories(*file);
  }
  Directories expected;
  for (const auto& directory : drivers)
    if (!contains(before, directory) && !contains(expected, directory)) expected.push_back(directory);
  const std::string content = with_musl_directories(file, drivers);
  if (content.empty() != expected.empty()) std::abort();
  if (content.empty()) return 0;
  expected.insert(expected.end(), before.begin(), before.end());
  if (searched_directories(content) != expected || content.back() != '\n') std::abort();
  if (!with_musl_directories(content, drivers).empty()) std::abort();
  return 0;
}
