#include "base/driver_library.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/driver_root.h"
#include "base/file.h"
#include "base/ld_cache.h"

namespace gpulet {

std::string find_driver_library(const std::string& driver_root, const std::vector<std::string>& directories,
                                const std::string& name) {
  const auto root = RootDirectory::open_root(driver_root);
  if (!root) return {};
  const std::string prefix = driver_root == "/" ? "" : driver_root;
  std::vector<std::string> paths;
  for (std::string_view directory : directories) {
    if (directory.starts_with(prefix + "/")) directory.remove_prefix(prefix.size());
    paths.push_back(std::string(directory) + "/" + name);
  }
  for (const auto directory : library_directories()) paths.push_back(std::string(directory) + "/" + name);
  std::ranges::move(find_in_ld_caches(*root, name), std::back_inserter(paths));
  for (const auto& path : paths) {
    if (const auto inside = root->resolve(path)) return prefix + *inside;
  }
  return {};
}

}  // namespace gpulet
