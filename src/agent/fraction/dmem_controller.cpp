#include "agent/fraction/dmem_controller.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/file.h"
#include "base/text.h"

namespace gpulet::agent {
namespace {

constexpr std::string_view kController = "dmem";
constexpr std::string_view kEnable = "+dmem";
constexpr std::string_view kRegionPrefix = "nvidia/";
constexpr std::string_view kRegionSuffix = "/vidmem";
constexpr std::size_t kMaxCapacityBytes = 64 << 10;
constexpr std::size_t kMaxControllersBytes = 4096;

bool lists_controller(const std::string& text) {
  const auto names = text::split(text::trim(text), ' ');
  return std::ranges::find(names, kController) != names.end();
}

// The kernel takes the whole change in one write.
Status write_subtree_control(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.is_open()) return fail(errno_error("open", errno, path));
  if (::write(file.get(), kEnable.data(), kEnable.size()) != static_cast<ssize_t>(kEnable.size()))
    return fail(errno_error("cannot enable the controller dmem", errno, path));
  return {};
}

Status enable_for_children(const std::string& directory) {
  const std::string path = directory + "/cgroup.subtree_control";
  GPULET_TRY_ASSIGN(const std::string enabled, read_file(path, kMaxControllersBytes));
  return lists_controller(enabled) ? Status{} : write_subtree_control(path);
}

}  // namespace

bool counts_gpu_memory(std::string_view capacity, const inventory::PciAddress& gpu) {
  for (const auto& line : text::split(capacity, '\n')) {
    std::string_view region = std::string_view(line).substr(0, line.find(' '));
    if (!region.starts_with(kRegionPrefix) || !region.ends_with(kRegionSuffix)) continue;
    region.remove_prefix(kRegionPrefix.size());
    if (region.size() < kRegionSuffix.size()) continue;
    region.remove_suffix(kRegionSuffix.size());
    const auto address = inventory::PciAddress::from_text(std::string(region));
    if (address && *address == gpu) return true;
  }
  return false;
}

std::string find_dmem_mount(const std::string& mount) {
  for (const std::string& directory : {mount, mount + "/unified"}) {
    if (::access((directory + "/dmem.capacity").c_str(), F_OK) == 0) return directory;
  }
  return {};
}

bool is_counted_by_dmem(const std::string& dmem_mount, const inventory::PciAddress& gpu) {
  if (dmem_mount.empty()) return false;
  const auto capacity = read_file(dmem_mount + "/dmem.capacity", kMaxCapacityBytes);
  return capacity && counts_gpu_memory(*capacity, gpu);
}

Status enable_dmem(const std::string& dmem_mount, const std::string& cgroup) {
  if (dmem_mount.empty() || !text::starts_with(cgroup, dmem_mount + "/"))
    return fail(Code::kInvalidArgument, "expected a cgroup below " + dmem_mount, cgroup);
  if (::access((cgroup + "/dmem.max").c_str(), F_OK) == 0) return {};
  for (auto slash = dmem_mount.size(); slash != std::string::npos; slash = cgroup.find('/', slash + 1))
    GPULET_TRY(enable_for_children(cgroup.substr(0, slash)));
  return {};
}

}  // namespace gpulet::agent
