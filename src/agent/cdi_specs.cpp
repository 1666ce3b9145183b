// make_cdi_writer of cdi_care.h: the roots, the hook and the folder of a config, and what stands there
// afterwards.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "agent/cdi_care.h"
#include "base/file.h"
#include "base/process.h"
#include "cdi/node_specs.h"
#include "cdi/spec_files.h"

namespace gpulet::agent {
namespace {

constexpr std::string_view kHook = "gpulet-hook";
constexpr std::size_t kMaxHookBytes = 64u << 20;  // a release has 1.2 MB, a sanitized build 30

bool is_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

cdi::RootPaths root_paths(const config::Flags& flags) {
  cdi::RootPaths paths;
  paths.driver = flags.container_driver_root;
  for (const auto& other : {flags.nvidia_driver_root, std::string("/")}) {
    if (!is_there(paths.driver)) paths.driver = other;
  }
  paths.driver_on_host = flags.nvidia_driver_root;
  paths.dev_on_host = flags.nvidia_dev_root;
  // A driver root may bring its own trees, as a driver container's and the simulator's do.
  if (is_there(paths.driver + "/proc/driver/nvidia")) paths.proc = paths.driver + "/proc";
  if (is_there(paths.driver + "/sys/bus/pci/devices")) paths.sys = paths.driver + "/sys";
  return paths;
}

// Puts the hook that lies beside this program into `folder`; its path there. Running containers keep the one
// that they were started with.
Result<std::string> install_hook(const std::string& folder) {
  const std::string path = folder + "/" + std::string(kHook);
  const std::string source = program_folder() + "/" + std::string(kHook);
  GPULET_TRY_ASSIGN(const std::string program, read_file(source, kMaxHookBytes));
  const auto there = read_file(path, kMaxHookBytes);
  struct stat status{};
  const bool runs = ::stat(path.c_str(), &status) == 0 && (status.st_mode & 0111) == 0111;
  if (!there || *there != program || !runs) GPULET_TRY(write_file_atomic(path, program, 0755));
  return path;
}

struct Libraries {
  bool cuda = false;
  // Where libcuda and libnvidia-ml are: a package that is upgraded puts the new ones beside them.
  std::vector<std::string> folders;
};

Libraries libraries_of(const std::vector<cdi::Spec>& specs, const cdi::Root& root) {
  std::set<std::string> folders;
  bool cuda = false;
  for (const auto& spec : specs) {
    for (const auto& mount : spec.edits.mounts) {
      const auto slash = mount.host_path.rfind('/');
      const auto name = std::string_view(mount.host_path).substr(slash + 1);
      if (!name.starts_with("libcuda.so.") && !name.starts_with("libnvidia-ml.so.")) continue;
      cuda |= name.starts_with("libcuda.so.");
      if (const auto folder = root.from_host(mount.host_path.substr(0, slash))) {
        folders.insert(root.path() == "/" ? *folder : root.path() + *folder);
      }
    }
  }
  return {cuda, {folders.begin(), folders.end()}};
}

cdi::NodeSpecOptions options_of(const config::Config& config, CdiWritten& result) {
  const auto& flags = config.flags;
  cdi::NodeSpecOptions options;
  options.names = flags.device_id_strategy == config::DeviceIdStrategy::kUuid ? cdi::NameStrategy::kUuid
                                                                              : cdi::NameStrategy::kIndex;
  options.gds = flags.gds_enabled;
  options.mofed = flags.mofed_enabled;
  options.gdrcopy = flags.gdrcopy_enabled;
  options.hooks.path = flags.nvidia_cdi_hook_path;
  for (const auto& hook : flags.cdi_disable_hooks) {
    const auto known = cdi::check_hook_name(hook, true);
    if (known) options.hooks.disabled.insert(hook);
    if (!known) result.warnings.push_back("cdi-disable-hooks: " + known.error().text());
  }
  for (const auto& flag : flags.cdi_feature_flags) {
    const auto applied = cdi::apply_feature_flag(flag, options.driver, options.additional_gids);
    if (!applied) result.warnings.push_back("cdi-feature-flags: " + applied.error().text());
  }
  return options;
}

CdiWritten write(const inventory::Snapshot& snapshot, const config::Config& config, cdi::SpecFolder& folder) {
  CdiWritten result;
  auto options = options_of(config, result);
  if (!config.gpulet.cdi.hook_dir.empty()) {
    auto hook = install_hook(config.gpulet.cdi.hook_dir);
    if (!hook) {
      result.error = hook.error();
      return result;
    }
    options.hooks.path = std::move(*hook);
  }
  const auto roots = cdi::open_roots(root_paths(config.flags));
  if (!roots) {
    result.error = roots.error();
    return result;
  }
  const auto made = cdi::node_specs(*roots, snapshot, options);
  result.warnings.insert(result.warnings.end(), made.warnings.begin(), made.warnings.end());
  auto libraries = libraries_of(made.specs, roots->driver);
  result.watch = std::move(libraries.folders);
  // A driver that is half way through an upgrade: what is on disk stays for containers that run.
  if (!snapshot.gpus.empty()) {
    result.error = made.no_gpus;
    if (!made.no_gpus && !libraries.cuda) {
      result.error = Error(
          Code::kNotFound,
          "libcuda.so." + snapshot.driver.version + " is not there, and no program could use a GPU without",
          roots->driver.path());
    }
    if (result.error) return result;
  }
  const auto on_disk = folder.write(made.specs);
  if (!on_disk) {
    result.error = on_disk.error();
    return result;
  }
  result.names.insert(on_disk->devices.begin(), on_disk->devices.end());
  if (!on_disk->errors.empty()) result.error = on_disk->errors.front();
  return result;
}

}  // namespace

CdiCare::Writer make_cdi_writer() {
  return [folder = std::make_shared<std::optional<cdi::SpecFolder>>()](const inventory::Snapshot& snapshot,
                                                                       const config::Config& config) {
    if (!*folder || (*folder)->path() != config.gpulet.cdi.spec_dir)
      folder->emplace(config.gpulet.cdi.spec_dir);
    return write(snapshot, config, **folder);
  };
}

}  // namespace gpulet::agent
