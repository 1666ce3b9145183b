// What a container needs of a driver beside its libraries: X's modules, configs, firmware, programs, sockets.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.h"
#include "cdi/driver_search.h"

namespace gpulet::cdi {
namespace {

using Paths = std::vector<std::string>;

// X's module folders below a folder of libraries, and where Debian and NVIDIA's own installer put them.
void add_module_folders(Paths& paths, const std::string& xorg) {
  for (const char* below :
       {"/modules/drivers", "/modules/extensions", "/modules/updates/drivers", "/modules/updates/extensions"})
    paths.push_back(xorg + below);
}

Paths x_folders(const Search& search) {
  Paths paths;
  for (const Folder* folder : search.driver_folders) {
    paths.push_back(in_folder(folder->path(), "nvidia/xorg"));
    add_module_folders(paths, in_folder(folder->path(), "xorg"));
  }
  for (const char* xorg : {"/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64"})
    add_module_folders(paths, xorg);
  paths.insert(paths.end(), {"/usr/lib/nvidia/current", "/usr/lib/nvidia/xorg", "/usr/lib/nvidia"});
  for (const Folder* folder : search.driver_folders) paths.push_back(folder->path());
  return paths;
}

const Folder* first_with(Search& search, const Paths& paths, std::string_view name) {
  for (const std::string& path : paths) {
    const Folder* folder = search.folders.get(path);
    if (folder != nullptr && folder->has(name)) return folder;
  }
  return nullptr;
}

struct Config {
  std::string_view container;  // the folder in the container that `path` is put below
  std::string_view path;
  bool vulkan = false;  // looked for in the driver's own prefix too: GKE's <root>/vulkan
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

void find_config(Search& search, const Config& config, const Paths& paths) {
  for (const std::string& path : paths) {
    const std::string full = in_folder(path, config.path);
    const Folder* folder = search.folders.get(folder_of(full));
    if (folder == nullptr || !folder->has(name_of(full))) continue;
    if (search.mount(search.found.configs, *folder, name_of(full), in_folder(config.container, config.path)))
      return;
  }
  search.warn("not found: " + std::string(config.path));
}

// The kernel's own parameter is a path on the host; a driver container sets it to its root as the host sees
// it.
Paths firmware_folders(const Search& search) {
  Paths paths;
  const auto parameter = search.roots.sys.read("/module/firmware_class/parameters/path", 4096);
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

// Of an entry: a regular file that someone may execute, after links.
bool executable(Search& search, const Folder& folder, std::string_view name) {
  if (folder.type_of(name) == FileType::kLink) {
    const auto target = search.root.look(in_folder(folder.path(), name));
    return target && target->status.type == FileType::kRegular && (target->status.mode & 0111) != 0;
  }
  const auto status = folder.status(name);
  return status && status->type == FileType::kRegular && (status->mode & 0111) != 0;
}

struct ProgramFolder {
  const Folder* folder;
  std::string container;
};

std::vector<ProgramFolder> program_folders(Search& search) {
  std::vector<ProgramFolder> folders;
  auto add = [&](const std::string& path, std::string_view container) {
    const Folder* folder = search.folders.get(path);
    const bool known = std::ranges::find(folders, folder, &ProgramFolder::folder) != folders.end();
    if (folder != nullptr && !known)
      folders.push_back({folder, container.empty() ? folder->path() : std::string(container)});
  };
  for (const char* path : {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"})
    add(path, "");
  for (const std::string& prefix : search.prefixes) {
    add(prefix + "/bin", "/usr/bin");
    add(prefix + "/sbin", "/usr/bin");
  }
  return folders;
}

// MPS's pipes lie where every user of the host may make a folder: one that root or we have not made is not
// ours to hand to containers, and a link is not followed.
void find_mps_pipes(Search& search) {
  constexpr std::string_view kPipes = "/tmp/nvidia-mps";
  const auto status = search.root.link_status(kPipes);
  if (!status) return search.warn("not found: " + std::string(kPipes));
  if (status->type != FileType::kFolder || (status->uid != 0 && status->uid != ::geteuid()))
    return search.warn("left out: " + std::string(kPipes) + " is not a folder of root's");
  search.found.sockets.push_back({search.root.on_host(kPipes), std::string(kPipes), true});
}

}  // namespace

void find_x_modules(Search& search) {
  const Paths paths = x_folders(search);
  const std::string glx = "libglxserver_nvidia.so";
  for (const std::string& name : {std::string("nvidia_drv.so"), glx + "." + search.found.version}) {
    const Folder* folder = first_with(search, paths, name);
    if (folder == nullptr) {
      search.warn("not found: " + name);
      continue;
    }
    const std::string place = in_folder(folder->path(), name);
    if (!search.mount(search.found.libraries, *folder, name, place)) continue;
    if (name != "nvidia_drv.so") search.found.links.push_back({name, in_folder(folder->path(), glx)});
  }
  if (const Folder* folder = first_with(search, paths, glx)) search.link_as_on_host(*folder, glx);
}

void find_configs(Search& search) {
  Paths paths = search.options.config_search_paths;
  if (paths.empty()) paths = {"/etc", "/usr/local/share", "/usr/share"};
  for (std::string& path : paths) {
    path = search.root.from_host(path).value_or(path);
    static_cast<void>(search.folders.get(path));  // its names tell which of the folders below need no asking
  }
  Paths with_prefixes = paths;
  with_prefixes.emplace_back("/");
  for (const std::string& prefix : search.prefixes) {
    if (!prefix.empty()) with_prefixes.push_back(prefix);
  }
  for (const Config& config : kConfigs) find_config(search, config, config.vulkan ? with_prefixes : paths);
}

// As the kernel looks: the first folder that has a file of that name.
void find_firmware(Search& search) {
  Paths seen;
  for (const std::string& path : firmware_folders(search)) {
    const std::string place = path + "/nvidia/" + search.found.version;
    const Folder* folder = search.folders.get(place);
    if (folder == nullptr) continue;
    const auto [first, last] = folder->with_prefix("gsp");
    for (std::size_t index = first; index < last; ++index) {
      const std::string name(folder->entry(index).name);
      if (!matches("gsp*.bin", name) || std::ranges::find(seen, name) != seen.end()) continue;
      if (search.mount(search.found.firmware, *folder, name, in_folder(place, name))) seen.push_back(name);
    }
  }
  if (seen.empty()) search.warn("not found: firmware nvidia/" + search.found.version + "/gsp*.bin");
}

void find_binaries(Search& search) {
  const auto folders = program_folders(search);
  for (const std::string_view name : kPrograms) {
    const auto found = std::ranges::find_if(folders, [&](const ProgramFolder& place) {
      return place.folder->has(name) && executable(search, *place.folder, name);
    });
    if (found == folders.end() ||
        !search.mount(search.found.binaries, *found->folder, name, in_folder(found->container, name)))
      search.warn("not found: " + std::string(name));
  }
}

void find_sockets(Search& search) {
  for (const std::string_view name : {"nvidia-persistenced/socket", "nvidia-fabricmanager/socket"}) {
    bool found = false;
    for (const char* folder : {"/run", "/var/run"}) {
      const std::string path = in_folder(folder, name);
      const auto there = search.root.look(path);
      if (!there || there->status.type != FileType::kSocket) continue;
      search.found.sockets.push_back({search.root.on_host(there->path), path, true});
      found = true;
      break;
    }
    if (!found) search.warn("not found: /run/" + std::string(name));
  }
  find_mps_pipes(search);
}

}  // namespace gpulet::cdi
