// The driver's libraries and the links that stand beside them.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "cdi/driver_search.h"

namespace gpulet::cdi {
namespace {

constexpr int kMostLinksInARow = 8;

// Libraries whose version is not the driver's.
constexpr std::string_view kOwnVersions[] = {
    "libnvidia-egl-gbm.so.*.*", "libnvidia-egl-wayland.so.*.*", "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*", "libnvidia-egl-xlib.so.*.*",    "libnvidia-nvvm70.so.*",
};
constexpr std::string_view kExplicit[] = {
    "libEGL",
    "libGL",
    "libGLESv1_CM",
    "libGLESv2",
    "libGLX",
    "libGLdispatch",
    "libOpenCL",
    "libOpenGL",
    "libnvidia-api",
    "libnvidia-egl-xcb",
    "libnvidia-egl-xlib",
};

bool mounted(const DriverFiles& files, std::string_view container_path) {
  return std::ranges::find(files.libraries, container_path, &FileMount::container_path) !=
         files.libraries.end();
}

void add_library(Search& search, const Folder& folder, std::string_view name) {
  std::string path = in_folder(folder.path(), name);
  if (mounted(search.found, path)) return;
  if (search.mount(search.found.libraries, folder, name, path) && text::starts_with(name, "lib"))
    search.found.library_dirs.push_back(folder.path());
}

// A link to a library of the same folder, or of another one that is taken whole, is not mounted a second time
// but made a link in the container too.
bool stands_beside(Search& search, const Folder& folder, std::string_view name) {
  if (folder.type_of(name) != FileType::kLink) return false;
  std::string path = in_folder(folder.path(), name);
  auto there = search.root.look(path);
  if (!there || there->status.type != FileType::kRegular) return false;
  std::string& real = there->path;
  if (!name_of(real).ends_with(".so." + search.found.version)) return false;
  const std::string_view place = folder_of(real);
  const bool taken =
      std::ranges::any_of(search.driver_folders, [&](const Folder* other) { return other->path() == place; });
  if (!taken) return false;
  std::string target = place == folder.path() ? std::string(name_of(real)) : std::move(real);
  search.found.links.push_back({std::move(target), std::move(path)});
  return true;
}

void add_of_version(Search& search, const Folder& folder) {
  const std::string suffix = ".so." + search.found.version;
  for (std::size_t index = 0; index < folder.size(); ++index) {
    const std::string_view name = folder.entry(index).name;
    if (name.ends_with(suffix) && !stands_beside(search, folder, name)) add_library(search, folder, name);
  }
}

// In the first folder that has one.
void add_matching(Search& search, std::string_view pattern) {
  const std::string_view prefix = pattern.substr(0, pattern.find('*'));
  const std::size_t before = search.found.libraries.size();
  for (const Folder* folder : search.library_folders) {
    const auto [first, last] = folder->with_prefix(prefix);
    for (std::size_t index = first; index < last; ++index) {
      const Folder::Entry entry = folder->entry(index);
      if (matches(pattern, entry.name) && entry.type != FileType::kFolder)
        add_library(search, *folder, entry.name);
    }
    if (search.found.libraries.size() > before) return;
  }
  search.warn("not found: " + std::string(pattern));
}

// "libEGL.so.1.1.0" for libEGL: the files; their links follow with the others.
void add_explicit(Search& search, std::string_view stem) {
  for (const Folder* folder : search.library_folders) {
    const auto [first, last] = folder->with_prefix(std::string(stem) + ".so");
    bool any = false;
    for (std::size_t index = first; index < last; ++index) {
      const Folder::Entry entry = folder->entry(index);
      if (entry.type != FileType::kRegular) continue;
      add_library(search, *folder, entry.name);
      any = true;
    }
    if (any) return;
  }
  search.warn("not found: " + std::string(stem) + ".so");
}

// What the links of one folder say, each read once.
class LinkReader {
 public:
  LinkReader(const Root& root, const Folder& folder) : root_(root), folder_(folder) {}

  // A link's target as a name in the same folder; empty when it leads elsewhere or nowhere.
  const std::string& target(const std::string& name) {
    const auto known = targets_.find(name);
    return known != targets_.end() ? known->second : targets_[name] = read(name);
  }
  // The file that a name of the folder leads to in the end, in the same folder; empty as above.
  std::string file(std::string name) {
    for (int step = 0; step < kMostLinksInARow && folder_.type_of(name) == FileType::kLink; ++step)
      name = target(name);
    return name;
  }

 private:
  std::string read(const std::string& name) const {
    auto says = folder_.read_link(name);
    if (!says) return {};
    if (says->find('/') == std::string::npos) return std::move(*says);
    const auto real = root_.resolve(in_folder(folder_.path(), name));
    return real && folder_of(*real) == folder_.path() ? std::string(name_of(*real)) : std::string{};
  }

  const Root& root_;
  const Folder& folder_;
  std::map<std::string, std::string> targets_;
};

// The links of a library's SONAME and ".so" that the host has, made the same in the container.
void add_links_beside(Search& search, const Folder& folder, LinkReader& links, std::string_view library) {
  const std::string_view stem = stem_of(library);
  const auto [first, last] = folder.with_prefix(std::string(stem) + ".so");
  for (std::size_t index = first; index < last; ++index) {
    const Folder::Entry entry = folder.entry(index);
    if (entry.type != FileType::kLink || stem_of(entry.name) != stem) continue;
    const std::string name(entry.name);
    std::string path = in_folder(folder.path(), name);
    if (mounted(search.found, path)) continue;
    const std::string file = links.file(name);
    if (!file.empty() && mounted(search.found, in_folder(folder.path(), file)))
      search.found.links.push_back({links.target(name), std::move(path)});
  }
}

struct KnownLink {
  std::string_view library;
  std::string_view link;    // in its folder
  std::string_view target;  // empty: the library itself
};
// Programs open these by name although not every host has them.
constexpr KnownLink kKnownLinks[] = {
    {"libcuda", "libcuda.so", "libcuda.so.1"},
    {"libcuda", "libcuda.so.1", ""},
    {"libGLX_nvidia", "libGLX_indirect.so.0", ""},
    {"libnvidia-opticalflow", "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"},
    {"libnvidia-opticalflow", "libnvidia-opticalflow.so.1", ""},
    {"libnvidia-vulkan-producer", "libnvidia-vulkan-producer.so", ""},
    {"libnvidia-allocator", "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"},
    {"libnvidia-allocator", "libnvidia-allocator.so.1", ""},
};

void add_known_links(Search& search, const Folder& folder, std::string_view library) {
  for (const KnownLink& known : kKnownLinks) {
    if (stem_of(library) != known.library) continue;
    std::string path = in_folder(folder.path(), known.link);
    const bool there = std::ranges::find(search.found.links, path, &Link::link) != search.found.links.end();
    if (there || mounted(search.found, path)) continue;
    search.found.links.push_back(
        {std::string(known.target.empty() ? library : known.target), std::move(path)});
  }
  // Debian keeps the driver's libraries apart; the loader of GBM back ends looks beside libgbm.
  constexpr std::string_view kApart = "/nvidia/current";
  if (stem_of(library) == "libnvidia-allocator" && folder.path().ends_with(kApart)) {
    const std::string_view above =
        std::string_view(folder.path()).substr(0, folder.path().size() - kApart.size());
    search.found.links.push_back(
        {"../nvidia/current/libnvidia-allocator.so.1", in_folder(above, "gbm/nvidia-drm_gbm.so")});
  }
}

}  // namespace

void find_libraries(Search& search) {
  std::vector<const Folder*> taken = search.driver_folders;
  for (const Folder* folder : search.driver_folders) {
    search.found.cuda_library_dirs.push_back(folder->path());
    add_of_version(search, *folder);
    if (const Folder* vdpau = search.folders.get(in_folder(folder->path(), "vdpau"))) {
      add_of_version(search, *vdpau);
      taken.push_back(vdpau);
    }
  }
  for (const std::string_view pattern : kOwnVersions) add_matching(search, pattern);
  if (search.options.explicit_libraries) {
    for (const std::string_view stem : kExplicit) add_explicit(search, stem);
  }
  for (const Folder* folder : search.library_folders) {
    if (std::ranges::find(taken, folder) == taken.end()) taken.push_back(folder);
  }
  for (const Folder* folder : taken) {
    LinkReader links(search.root, *folder);
    std::vector<std::string> stems;  // one library may be there in two versions
    for (const FileMount& library : std::vector(search.found.libraries)) {
      if (folder_of(library.container_path) != folder->path()) continue;
      const std::string name(name_of(library.container_path));
      if (std::ranges::find(stems, stem_of(name)) != stems.end()) continue;
      stems.emplace_back(stem_of(name));
      add_links_beside(search, *folder, links, name);
      add_known_links(search, *folder, name);
    }
  }
  for (const Folder* folder : search.driver_folders) {
    const Folder* vdpau = search.folders.get(in_folder(folder->path(), "vdpau"));
    if (vdpau != nullptr) search.link_as_on_host(*vdpau, "libvdpau_nvidia.so.1");
  }
  const bool cuda = std::ranges::any_of(search.found.libraries, [](const FileMount& library) {
    return stem_of(name_of(library.container_path)) == "libcuda";
  });
  if (!cuda) search.warn("not found: libcuda.so." + search.found.version + ": no CUDA program can run");
}

}  // namespace gpulet::cdi
