#include "cdi/driver_files.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/text.h"
#include "cdi/driver_search.h"

namespace gpulet::cdi {
namespace {

void remove_duplicates(std::vector<std::string>& texts) {
  std::ranges::sort(texts);
  texts.erase(std::ranges::unique(texts).begin(), texts.end());
}

// Keeps the first of several files for one place.
void remove_duplicate_targets(std::vector<FileMount>& mounts) {
  std::ranges::stable_sort(mounts, {}, &FileMount::container_path);
  mounts.erase(std::ranges::unique(mounts, {}, &FileMount::container_path).begin(), mounts.end());
}

using Paths = std::vector<std::string>;

// X module directories below a library directory, and where Debian and NVIDIA's installer put them.
void add_module_directories(Paths& paths, const std::string& xorg) {
  for (const char* below :
       {"/modules/drivers", "/modules/extensions", "/modules/updates/drivers", "/modules/updates/extensions"})
    paths.push_back(xorg + below);
}

Paths x_module_directories(const DriverSearch& search) {
  Paths paths;
  for (const Directory* directory : search.driver_directories) {
    paths.push_back(join_path(directory->resolved_path(), "nvidia/xorg"));
    add_module_directories(paths, join_path(directory->resolved_path(), "xorg"));
  }
  for (const char* xorg : {"/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64"})
    add_module_directories(paths, xorg);
  // Debian's alternatives choose a branch's directory: nvidia/nvidia leads to nvidia/current or
  // nvidia/tesla-470.
  paths.insert(paths.end(), {"/usr/lib/nvidia/nvidia", "/usr/lib/nvidia/current", "/usr/lib/nvidia/xorg",
                             "/usr/lib/nvidia"});
  for (const Directory* directory : search.driver_directories) paths.push_back(directory->resolved_path());
  return paths;
}

const Directory* first_directory_with(DriverSearch& search, const Paths& paths, std::string_view name) {
  for (const std::string& path : paths) {
    const Directory* directory = search.directories.get(path);
    if (directory != nullptr && directory->contains_entry(name)) return directory;
  }
  return nullptr;
}

struct Config {
  std::string_view container;  // the container directory for `path`
  std::string_view path;
  bool vulkan = false;  // also searched in the driver's own prefix: GKE's <root>/vulkan
};
constexpr Config kConfigs[] = {
    {"/usr/share", "glvnd/egl_vendor.d/10_nvidia.json"},
    {"/usr/share", "egl/egl_external_platform.d/15_nvidia_gbm.json"},
    {"/usr/share", "egl/egl_external_platform.d/10_nvidia_wayland.json"},
    {"/usr/share", "egl/egl_external_platform.d/09_nvidia_wayland2.json"},
    {"/usr/share", "egl/egl_external_platform.d/20_nvidia_xcb.json"},
    {"/usr/share", "egl/egl_external_platform.d/20_nvidia_xlib.json"},
    {"/usr/share", "nvidia/nvoptix.bin"},
    {"/usr/share", "X11/xorg.conf.d/10-nvidia.conf"},
    {"/usr/share", "X11/xorg.conf.d/nvidia-drm-outputclass.conf"},
    {"/etc", "OpenCL/vendors/nvidia.icd"},
    {"/etc", "vulkan/icd.d/nvidia_icd.json", true},
    {"/etc", "vulkan/icd.d/nvidia_layers.json", true},
#if defined(__aarch64__)
    {"/etc", "vulkan/icd.d/nvidia_icd.aarch64.json", true},
#else
    {"/etc", "vulkan/icd.d/nvidia_icd.x86_64.json", true},
#endif
    {"/etc", "vulkan/implicit_layer.d/nvidia_layers.json", true},
};

void find_config(DriverSearch& search, const Config& config, const Paths& paths) {
  for (const std::string& path : paths) {
    const std::string full = join_path(path, config.path);
    const Directory* directory = search.directories.get(text::parent_directory(full));
    if (directory == nullptr || !directory->contains_entry(text::base_name(full))) continue;
    if (search.add_mount(search.found.configs, *directory, text::base_name(full),
                         join_path(config.container, config.path)))
      return;
  }
  search.warn("not found: " + std::string(config.path));
}

// The kernel parameter is a host path; a driver container sets it to its root as the host sees it.
Paths firmware_directories(const DriverSearch& search) {
  Paths paths;
  const auto parameter = search.roots.sys.read_regular_file("/module/firmware_class/parameters/path", 4096);
  const std::string_view own = parameter ? text::trim(*parameter) : std::string_view{};
  if (text::starts_with(own, "/")) {
    if (auto inside = search.root.from_host(own)) paths.push_back(std::move(*inside));
    paths.emplace_back(own);
  }
  std::string release = search.options.kernel_release;
  utsname names{};
  if (release.empty() && ::uname(&names) == 0) release = names.release;
  if (release.find('/') == std::string::npos && !release.empty()) {
    paths.push_back("/lib/firmware/updates/" + release);
    paths.emplace_back("/lib/firmware/updates");
    paths.push_back("/lib/firmware/" + release);
  }
  paths.emplace_back("/lib/firmware");
  for (const std::string& prefix : search.prefixes) paths.push_back(prefix + "/firmware");
  return paths;
}

constexpr std::string_view kPrograms[] = {
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
};

// Whether an entry, after links, is a regular file that someone may execute.
bool executable(DriverSearch& search, const Directory& directory, std::string_view name) {
  if (directory.type_of(name) == FileType::kLink) {
    const auto target = search.root.resolve_with_status(join_path(directory.resolved_path(), name));
    return target && target->status.type == FileType::kRegular && (target->status.mode & 0111) != 0;
  }
  const auto status = directory.entry_status(name);
  return status && status->type == FileType::kRegular && (status->mode & 0111) != 0;
}

struct ProgramDirectory {
  const Directory* directory;
  std::string container;
};

std::vector<ProgramDirectory> program_directories(DriverSearch& search) {
  std::vector<ProgramDirectory> directories;
  auto add = [&](const std::string& path, std::string_view container) {
    const Directory* directory = search.directories.get(path);
    const bool known =
        std::ranges::find(directories, directory, &ProgramDirectory::directory) != directories.end();
    if (directory != nullptr && !known)
      directories.push_back(
          {directory, container.empty() ? directory->resolved_path() : std::string(container)});
  };
  for (const char* path : {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"})
    add(path, "");
  for (const std::string& prefix : search.prefixes) {
    add(prefix + "/bin", "/usr/bin");
    add(prefix + "/sbin", "/usr/bin");
  }
  return directories;
}

// Any user of the host may create this directory, so it is mounted only if root or this user owns
// it, and it is not a link.
void find_mps_pipes(DriverSearch& search) {
  constexpr std::string_view kPipes = "/tmp/nvidia-mps";
  const auto status = search.root.link_status(kPipes);
  if (!status) return search.warn("not found: " + std::string(kPipes));
  if (status->type != FileType::kDirectory || (status->uid != 0 && status->uid != ::geteuid()))
    return search.warn("left out: " + std::string(kPipes) + " is not a directory owned by root");
  search.found.sockets.push_back({search.root.on_host(kPipes), std::string(kPipes), true});
}

void find_x_modules(DriverSearch& search) {
  const Paths paths = x_module_directories(search);
  const std::string glx = "libglxserver_nvidia.so";
  for (const std::string& name : {std::string("nvidia_drv.so"), glx + "." + search.found.version}) {
    const Directory* directory = first_directory_with(search, paths, name);
    if (directory == nullptr) {
      search.warn("not found: " + name);
      continue;
    }
    const std::string place = join_path(directory->resolved_path(), name);
    if (!search.add_mount(search.found.libraries, *directory, name, place)) continue;
    if (name != "nvidia_drv.so")
      search.found.links.push_back({name, join_path(directory->resolved_path(), glx)});
  }
  if (const Directory* directory = first_directory_with(search, paths, glx))
    search.link_as_on_host(*directory, glx);
}

void find_configs(DriverSearch& search) {
  Paths paths = search.options.config_search_paths;
  if (paths.empty()) paths = {"/etc", "/usr/local/share", "/usr/share"};
  for (std::string& path : paths) {
    path = search.root.from_host(path).value_or(path);
    static_cast<void>(search.directories.get(path));  // its names show which directories below exist
  }
  Paths with_prefixes = paths;
  with_prefixes.emplace_back("/");
  for (const std::string& prefix : search.prefixes) {
    if (!prefix.empty()) with_prefixes.push_back(prefix);
  }
  for (const Config& config : kConfigs) find_config(search, config, config.vulkan ? with_prefixes : paths);
}

// As the kernel does: the first directory with a file of that name.
void find_firmware(DriverSearch& search) {
  Paths seen;
  for (const std::string& path : firmware_directories(search)) {
    const std::string place = path + "/nvidia/" + search.found.version;
    const Directory* directory = search.directories.get(place);
    if (directory == nullptr) continue;
    const auto [first, last] = directory->with_prefix("gsp");
    for (std::size_t index = first; index < last; ++index) {
      const std::string name(directory->entry(index).name);
      if (!matches_glob("gsp*.bin", name) || std::ranges::find(seen, name) != seen.end()) continue;
      if (search.add_mount(search.found.firmware, *directory, name, join_path(place, name)))
        seen.push_back(name);
    }
  }
  if (seen.empty()) search.warn("not found: firmware nvidia/" + search.found.version + "/gsp*.bin");
}

void find_binaries(DriverSearch& search) {
  const auto directories = program_directories(search);
  for (const std::string_view name : kPrograms) {
    const auto found = std::ranges::find_if(directories, [&](const ProgramDirectory& place) {
      return place.directory->contains_entry(name) && executable(search, *place.directory, name);
    });
    if (found == directories.end() ||
        !search.add_mount(search.found.binaries, *found->directory, name, join_path(found->container, name)))
      search.warn("not found: " + std::string(name));
  }
}

void find_sockets(DriverSearch& search) {
  for (const std::string_view name : {"nvidia-persistenced/socket", "nvidia-fabricmanager/socket"}) {
    bool found = false;
    for (const char* directory : {"/run", "/var/run"}) {
      const std::string path = join_path(directory, name);
      const auto resolved = search.root.resolve_with_status(path);
      if (!resolved || resolved->status.type != FileType::kSocket) continue;
      search.found.sockets.push_back({search.root.on_host(resolved->path), path, true});
      found = true;
      break;
    }
    if (!found) search.warn("not found: /run/" + std::string(name));
  }
  find_mps_pipes(search);
}

void sort_driver_files(DriverFiles& files) {
  for (auto* mounts : {&files.libraries, &files.binaries, &files.firmware, &files.configs, &files.sockets})
    remove_duplicate_targets(*mounts);
  std::ranges::stable_sort(files.links, {}, &Link::link);
  files.links.erase(std::ranges::unique(files.links, {}, &Link::link).begin(), files.links.end());
  remove_duplicates(files.library_dirs);
  remove_duplicates(files.cuda_library_dirs);
}

constexpr std::string_view kStores = "/usr/lib/wsl/drivers";
constexpr std::string_view kWslLibraries = "/usr/lib/wsl/lib";
// Required files of a driver store; also searched in the directory of WSL's libraries.
constexpr std::string_view kRequired[] = {
    "libcuda.so.1.1",    "libcuda_loader.so",      "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-ml.so.1", "libnvidia-ml_loader.so", "libdxcore.so",
    "libnvdxgdmal.so.1", "nvcubins.bin",           "nvidia-smi",
};

// The GPU's driver store: the one with CUDA.
const Directory* driver_store(DriverSearch& search) {
  const Directory* stores = search.directories.get(kStores);
  if (stores == nullptr) return nullptr;
  const Directory* chosen = nullptr;
  for (std::size_t index = 0; index < stores->size(); ++index) {
    const Directory::Entry entry = stores->entry(index);
    if (entry.type != FileType::kDirectory || !text::starts_with(entry.name, "nv")) continue;
    const Directory* store = search.directories.get(join_path(stores->resolved_path(), entry.name));
    if (store == nullptr || !store->contains_entry("libcuda.so.1.1")) continue;
    if (chosen == nullptr) {
      chosen = store;
    } else {
      search.warn("left out: " + store->resolved_path() + " is a second driver store");
    }
  }
  return chosen;
}

bool wanted_store_files(std::string_view name) {
  return matches_glob("*.so*", name) || matches_glob("*.bin", name) || matches_glob("*.dll", name) ||
         name == "nvidia-smi";
}

void mount_wsl_file(DriverSearch& search, const Directory& directory, std::string_view name) {
  const std::string path = join_path(directory.resolved_path(), name);
  const bool program = name == "nvidia-smi";
  if (!search.add_mount(program ? search.found.binaries : search.found.libraries, directory, name, path))
    return;
  if (program) search.found.links.push_back({path, "/usr/bin/nvidia-smi"});
  if (text::starts_with(name, "lib")) search.found.library_dirs.push_back(directory.resolved_path());
}

}  // namespace

Result<DriverFiles> find_driver_files(const Roots& roots, const std::string& version_hint,
                                      const DriverFileOptions& options) {
  DriverSearch search(roots, options);
  GPULET_TRY(choose_library_directories(search, version_hint));
  find_libraries(search);
  find_x_modules(search);
  find_configs(search);
  find_firmware(search);
  find_binaries(search);
  if (options.sockets) find_sockets(search);
  for (const std::string& problem : search.directories.problems()) search.warn("not listed: " + problem);
  sort_driver_files(search.found);
  return std::move(search.found);
}

std::vector<FileMount> find_gds_files(const Roots& roots) {
  std::vector<FileMount> mounts;
  for (const std::string path : {"/etc/cufile.json", "/run/udev"}) {
    const FileType expected = path == "/run/udev" ? FileType::kDirectory : FileType::kRegular;
    const auto resolved = roots.driver.resolve_with_status(path);
    if (resolved && resolved->status.type == expected)
      mounts.push_back({roots.driver.on_host(resolved->path), path});
  }
  return mounts;
}

Result<DriverFiles> find_wsl_files(const Roots& roots) {
  const DriverFileOptions options;
  DriverSearch search(roots, options);
  const Directory* store = driver_store(search);
  if (store == nullptr)
    return fail(Code::kNotFound, "no driver store with libcuda.so.1.1 below " + std::string(kStores),
                roots.driver.root_path());
  for (std::size_t index = 0; index < store->size(); ++index) {
    if (wanted_store_files(store->entry(index).name))
      mount_wsl_file(search, *store, store->entry(index).name);
  }
  const Directory* libraries = search.directories.get(kWslLibraries);
  for (const std::string_view name : kRequired) {
    if (store->contains_entry(name)) continue;
    if (libraries != nullptr && libraries->contains_entry(name)) {
      mount_wsl_file(search, *libraries, name);
    } else {
      search.warn("not found: " + std::string(name));
    }
  }
  search.found.cuda_library_dirs.push_back(store->resolved_path());
  sort_driver_files(search.found);
  return std::move(search.found);
}

}  // namespace gpulet::cdi
