#include "sim/driver/rights.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/process.h"

namespace gpulet::sim {
namespace {

// Returns 0 or the errno of the attempt. ENXIO: the kernel got as far as asking for the node's driver.
int open_node(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return errno;
  if (!S_ISCHR(info.st_mode)) return ENOENT;
  int error = 0;
  // As the real library, which may have the right to read only.
  for (const int mode : {O_RDWR, O_RDONLY}) {
    const FileDescriptor fd(::open(path.c_str(), mode | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    error = fd.is_open() ? 0 : errno;
    if (error == ENXIO || error == ENODEV) error = 0;
    if (error == 0) break;
  }
  return error;
}

std::string node_directory(const std::string& root) {
  const std::string own = "/dev";
  // Of a root without dev/, the node's driver makes the nodes in the host's.
  if (root == "/." || access((root + "/dev/nvidiactl").c_str(), F_OK) != 0) return own;
  return root + "/dev";
}

bool may_read(const std::string& path) { return faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) == 0; }

bool is_made_by_this_user(const std::string& state_path) {
  struct stat info{};
  return geteuid() != 0 && stat(state_path.c_str(), &info) == 0 && info.st_uid == geteuid();
}

NodeAccess access_without_nodes(const StateFile& state, const std::string& root) {
  NodeAccess access;
  access.is_owner = is_made_by_this_user(state.file_path());
  if (root.empty()) return access;
  const std::string capabilities = root + "/proc/driver/nvidia/capabilities/mig/";
  access.monitor = may_read(capabilities + "monitor");
  access.config = may_read(capabilities + "config");
  return access;
}

std::string capability_node(const std::string& directory, std::uint32_t minor) {
  return directory + "/nvidia-caps/nvidia-cap" + std::to_string(minor);
}

}  // namespace

NodeAccess open_device_nodes(const StateFile& state) {
  const std::string root = driver_root_of_state(state.file_path());
  std::vector<std::uint32_t> gpu_minors;
  {
    const ReadGuard machine = state.lock_for_read();
    if (machine->driver.has_device_nodes != 0) {
      for (std::uint32_t i = 0; i < machine->gpu_count; ++i) gpu_minors.push_back(machine->gpus[i].minor);
    }
  }
  if (gpu_minors.empty() || root.empty()) return access_without_nodes(state, root);

  const std::string directory = node_directory(root);
  NodeAccess access;
  access.has_nodes = true;
  access.control = control_node_result(open_node(directory + "/nvidiactl"));
  if (access.control != NVML_SUCCESS) return access;
  for (std::size_t i = 0; i < gpu_minors.size(); ++i) {
    if (open_node(directory + "/nvidia" + std::to_string(gpu_minors[i])) != 0)
      access.hidden_gpus |= std::uint64_t{1} << i;
  }
  access.monitor = open_node(capability_node(directory, kMonitorMinor)) == 0;
  access.config = open_node(capability_node(directory, kConfigMinor)) == 0;
  access.uvm = open_node(directory + "/nvidia-uvm") == 0;
  return access;
}

nvmlReturn_t control_node_result(int error_number) {
  switch (error_number) {
    case 0:
      return NVML_SUCCESS;
    case ENOENT:
      return NVML_ERROR_DRIVER_NOT_LOADED;
    case EACCES:
      return NVML_ERROR_NO_PERMISSION;
    default:
      return NVML_ERROR_UNKNOWN;
  }
}

bool is_administrator() { return session().is_owner.load() || has_capability(CAP_SYS_ADMIN); }
bool may_configure_mig() { return session().configures_mig.load() || is_administrator(); }
bool may_monitor_mig() { return session().monitors_mig.load(); }

bool is_mig_in_use(const Gpu& gpu) {
  return gpu.mig.current != 0 &&
         std::ranges::any_of(gpu.mig.instances, [](const GpuInstance& i) { return i.used != 0; });
}

std::optional<MigDevice> visible_mig_device(const Gpu& gpu, std::uint32_t n) {
  const bool sees_all = !session().has_nodes.load() || may_monitor_mig();
  if (sees_all) return mig_device(gpu, n);
  const std::string directory =
      node_directory(driver_root_of_state(session().state.load(std::memory_order_acquire)->file_path()));
  for (std::uint32_t i = 0;; ++i) {
    const auto device = mig_device(gpu, i);
    if (!device) return std::nullopt;
    const std::uint32_t instance = device->gpu_instance->id;
    const std::uint32_t minors[] = {
        gpu_instance_minor(gpu.minor, instance),
        compute_instance_minor(gpu.minor, instance, device->compute_instance->id)};
    const bool is_visible = std::ranges::all_of(
        minors, [&](std::uint32_t minor) { return open_node(capability_node(directory, minor)) == 0; });
    if (is_visible && n-- == 0) return device;
  }
}

}  // namespace gpulet::sim
