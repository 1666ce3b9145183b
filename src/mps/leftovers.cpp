#include "mps/leftovers.h"

#include <filesystem>
#include <system_error>

#include "mps/plan.h"
#include "mps/shm.h"

namespace gpulet::mps {

Result<std::vector<std::string>> remove_leftovers(const std::string& root) {
  GPULET_TRY(unmount_shm(root));
  std::vector<std::string> removed;
  for (const auto& path : {shm_directory(root), ready_file(root), root + "/nvidia.com"}) {
    std::error_code error;
    // By descriptors in libstdc++: a folder that becomes a link in between is not gone into.
    const auto count = std::filesystem::remove_all(path, error);
    if (error) return fail(errno_error("cannot remove", error.value(), path));
    if (count > 0) removed.push_back(path);
  }
  return removed;
}

}  // namespace gpulet::mps
