#include "inventory/platform.h"

#include <unistd.h>

#include <string_view>

#include "base/driver_root.h"
#include "base/file.h"
#include "base/text.h"

namespace gpulet::inventory {
namespace {

constexpr const char* kWslNode = "/dev/dxg";
constexpr const char* kTegraRelease = "/etc/nv_tegra_release";
constexpr const char* kTegraFamily = "/sys/devices/soc0/family";
constexpr const char* kTegraBoards = "/sys/firmware/devicetree/base/compatible";
constexpr std::size_t kFamilyBytes = 64;
constexpr std::size_t kBoardsBytes = 4096;  // names of a board, most specific first

bool is_there(const std::string& root, const char* path) {
  return ::access(path_below(root, path).c_str(), F_OK) == 0;
}

bool has_text(const std::string& root, const char* path, std::size_t bytes, std::string_view text) {
  const auto content = read_prefix(path_below(root, path), bytes);
  return content && text::lower(*content).find(text) != std::string::npos;
}

}  // namespace

std::optional<PlatformEvidence> find_unserved_platform(const std::vector<std::string>& roots) {
  for (const auto& root : roots) {
    if (is_there(root, kWslNode)) return PlatformEvidence{UnservedPlatform::kWsl, kWslNode};
    if (is_there(root, kTegraRelease)) return PlatformEvidence{UnservedPlatform::kTegra, kTegraRelease};
    if (has_text(root, kTegraFamily, kFamilyBytes, "tegra"))
      return PlatformEvidence{UnservedPlatform::kTegra, kTegraFamily};
    if (has_text(root, kTegraBoards, kBoardsBytes, "nvidia,tegra"))
      return PlatformEvidence{UnservedPlatform::kTegra, kTegraBoards};
  }
  return std::nullopt;
}

std::string platform_text(const PlatformEvidence& found) {
  if (found.platform == UnservedPlatform::kWsl)
    return "this machine is WSL 2 (" + found.path +
           "): gpulet does not support its GPUs in Kubernetes, because they have no device nodes of their "
           "own";
  return "this machine is Tegra (" + found.path +
         "): gpulet does not support its integrated GPU, because NVML does not manage it";
}

std::string platform_advice(const PlatformEvidence& found) {
  return found.platform == UnservedPlatform::kWsl ? "use NVIDIA's device plugin on this node; `gpulet cdi "
                                                    "generate` writes a CDI spec for containers "
                                                    "outside Kubernetes"
                                                  : "use NVIDIA's device plugin on this node";
}

}  // namespace gpulet::inventory
