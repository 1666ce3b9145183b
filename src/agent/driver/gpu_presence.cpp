#include "agent/driver/gpu_presence.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/driver_root.h"
#include "base/file.h"
#include "base/text.h"
#include "inventory/host_files.h"
#include "inventory/platform.h"

namespace gpulet::agent {
namespace {

constexpr std::size_t kIdBytes = 16;  // "0x030200\n"

// nullopt where the bus cannot be listed.
std::optional<bool> has_display_controller(const std::string& root) {
  std::error_code error;
  std::filesystem::directory_iterator functions(path_below(root, "/sys/bus/pci/devices"), error);
  if (error) return std::nullopt;
  for (; !error && functions != std::filesystem::directory_iterator(); functions.increment(error)) {
    const auto vendor = read_prefix(functions->path().string() + "/vendor", kIdBytes);
    const auto pci_class = read_prefix(functions->path().string() + "/class", kIdBytes);
    if (!vendor || !pci_class) return std::nullopt;
    if (text::trim(*vendor) == inventory::kPciVendor &&
        inventory::is_display_controller(inventory::parse_pci_class(*pci_class)))
      return true;
  }
  return error ? std::nullopt : std::optional(false);
}

bool has_other_gpu(const std::string& root) {
  return ::access(path_below(root, "/dev/nvidiactl").c_str(), F_OK) == 0 ||
         inventory::find_unserved_platform({root});
}

}  // namespace

bool may_have_gpu(const std::vector<std::string>& roots) {
  if (std::ranges::any_of(roots, has_other_gpu)) return true;
  for (const auto& root : roots) {
    if (const auto found = has_display_controller(root)) return *found;
  }
  return true;
}

Error explain_driver_error(const Error& error, const std::vector<std::string>& roots) {
  const auto found = inventory::find_unserved_platform(roots);
  if (!found) return error;
  return error.with_context(inventory::platform_text(*found) + "; " + inventory::platform_advice(*found));
}

}  // namespace gpulet::agent
