#include "cdi/driver_search.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <span>

#include "base/ld_cache.h"
#include "base/text.h"

namespace gpulet::cdi {
namespace {

std::string_view describe_type(FileType type) {
  switch (type) {
    case FileType::kRegular:
      return "a file";
    case FileType::kDirectory:
      return "a directory";
    case FileType::kLink:
      return "a link";
    case FileType::kCharacterDevice:
      return "a device";
    case FileType::kSocket:
      return "a socket";
    case FileType::kOther:
      break;
  }
  return "a FIFO or block device";
}

}  // namespace

std::string join_path(std::string_view directory, std::string_view name) {
  std::string path(directory == "/" ? "" : directory);
  return path.append("/").append(name);
}

std::string_view library_stem(std::string_view library) {
  const std::size_t end = library.find(".so");
  return end == std::string_view::npos ? std::string_view{} : library.substr(0, end);
}

std::optional<std::string> DriverSearch::find_regular_file(const Directory& directory,
                                                           std::string_view name) {
  std::string path = join_path(directory.resolved_path(), name);
  FileType type = directory.type_of(name);
  if (type == FileType::kRegular) return path;
  if (type == FileType::kLink) {
    auto target = root.resolve_with_status(path);
    if (!target) {
      warn("left out: " + path + " is a dangling link: " + target.error().message());
      return std::nullopt;
    }
    if (target->status.type == FileType::kRegular) return std::move(target->path);
    type = target->status.type;
  }
  warn("left out: " + path + " is " + std::string(describe_type(type)) + ", not a regular file");
  return std::nullopt;
}

bool DriverSearch::add_mount(std::vector<FileMount>& to, const Directory& directory, std::string_view name,
                             std::string container_path) {
  const auto path = find_regular_file(directory, name);
  if (path) to.push_back({root.on_host(*path), std::move(container_path)});
  return path.has_value();
}

void DriverSearch::link_as_on_host(const Directory& directory, std::string_view name) {
  if (directory.type_of(name) != FileType::kLink) return;
  std::string path = join_path(directory.resolved_path(), name);
  const auto real = root.resolve_path(path);
  if (!real) return;
  const std::string host_path = root.on_host(*real);
  const auto mounted = std::ranges::find(found.libraries, host_path, &FileMount::host_path);
  const bool known = std::ranges::find(found.links, path, &Link::link) != found.links.end();
  if (mounted == found.libraries.end() || mounted->container_path == path || known) return;
  found.links.push_back({mounted->container_path, std::move(path)});
}

// The directories of a driver's libraries. Distributions differ, so the known directories come in
// tiers; the first tier with a library of the driver's version wins, and later tiers are not
// searched.
namespace {

using Paths = std::vector<std::string>;

constexpr std::size_t kMaxCacheDirectories = 16;

Paths paths_of(std::span<const std::string_view> directories) {
  return {directories.begin(), directories.end()};
}

// The distributions' directories, each followed by the directory to which its libcuda.so.1 or
// libnvidia-ml.so.1 links: Debian keeps several branches apart (nvidia/current, nvidia/tesla-470) and chooses
// one by alternatives.
Paths distribution_directories(DriverSearch& search) {
  Paths paths;
  for (const std::string_view path : distribution_library_directories()) {
    const Directory* directory = search.directories.get(path);
    if (directory == nullptr) continue;
    paths.push_back(directory->resolved_path());
    for (const std::string_view library : {"libcuda.so.1", "libnvidia-ml.so.1"}) {
      if (directory->type_of(library) != FileType::kLink) continue;
      if (const auto real = search.root.resolve_path(join_path(directory->resolved_path(), library)))
        paths.emplace_back(text::parent_directory(*real));
    }
  }
  return paths;
}

// The directories of the driver's libraries in the loader's cache, and of their link targets.
Paths ld_cache_directories(DriverSearch& search) {
  Paths paths;
  auto add = [&](std::string_view directory) {
    if (std::ranges::find(paths, directory) == paths.end() && paths.size() < kMaxCacheDirectories)
      paths.emplace_back(directory);
  };
  for (const std::string_view cache : ld_cache_files()) {
    const auto bytes = search.root.read_regular_file(cache);
    if (!bytes) continue;
    const auto entries = parse_ld_cache(*bytes);
    if (!entries) {
      search.warn(std::string(cache) + " cannot be read: " + entries.error().message());
      continue;
    }
    for (const LdCacheEntry& entry : *entries) {
      if (!text::starts_with(entry.name, "libcuda.so") && !text::starts_with(entry.name, "libnvidia-ml.so"))
        continue;
      add(text::parent_directory(entry.path));
      if (const auto real = search.root.resolve_path(entry.path)) add(text::parent_directory(*real));
    }
  }
  return paths;
}

bool looks_like_version(std::string_view version) {
  return !version.empty() && version.find_first_not_of("0123456789.") == std::string_view::npos &&
         version.front() != '.' && version.back() != '.' && version.find('.') != std::string_view::npos;
}

std::vector<std::uint64_t> version_numbers(std::string_view version) {
  std::vector<std::uint64_t> numbers;
  for (const std::string& part : text::split(version, '.')) {
    numbers.push_back(text::parse_unsigned(part).value_or(0));
  }
  return numbers;
}

// "libcuda.so.570.124.06" of a directory: the target of libcuda.so.1, else the highest version.
// Empty if there is none.
std::string version_in(const Directory& directory, std::string_view library) {
  const std::string prefix = std::string(library) + ".so.";
  const auto [first, last] = directory.with_prefix(prefix);
  std::string best;
  for (std::size_t index = first; index < last; ++index) {
    const std::string_view name = directory.entry(index).name;
    const std::string_view version = name.substr(prefix.size());
    if (!looks_like_version(version)) continue;
    if (best.empty() || version_numbers(version) > version_numbers(best)) best = version;
  }
  if (best.empty() || directory.type_of(prefix + "1") != FileType::kLink) return best;
  const auto current = directory.read_link(prefix + "1");
  if (!current || !text::starts_with(text::base_name(*current), prefix)) return best;
  const std::string_view linked = text::base_name(*current).substr(prefix.size());
  return looks_like_version(linked) ? std::string(linked) : best;
}

std::string version_in(const std::vector<const Directory*>& directories) {
  for (const std::string_view library : {"libcuda", "libnvidia-ml"}) {
    for (const Directory* directory : directories) {
      if (std::string version = version_in(*directory, library); !version.empty()) return version;
    }
  }
  return {};
}

bool holds_driver(const Directory& directory, const std::string& suffix) {
  const auto [first, last] = directory.with_prefix("lib");
  for (std::size_t index = first; index < last; ++index) {
    const Directory::Entry entry = directory.entry(index);
    if (entry.name.ends_with(suffix) && (entry.type == FileType::kRegular || entry.type == FileType::kLink))
      return true;
  }
  return false;
}

std::vector<const Directory*> list_each(DriverSearch& search, const Paths& paths) {
  std::vector<const Directory*> directories;
  for (const std::string& path : paths) {
    const Directory* directory = search.directories.get(path);
    if (directory != nullptr && std::ranges::find(directories, directory) == directories.end())
      directories.push_back(directory);
  }
  return directories;
}

// Searches one tier. True if the driver is in it; `other_version` becomes a version found instead.
bool choose_driver_directories(DriverSearch& search, const Paths& paths, const std::string& hint,
                               std::string& other_version) {
  search.library_directories = list_each(search, paths);
  const std::string version = hint.empty() ? version_in(search.library_directories) : hint;
  if (version.empty()) return false;
  std::vector<const Directory*> holding;
  for (const Directory* directory : search.library_directories) {
    if (holds_driver(*directory, ".so." + version)) holding.push_back(directory);
  }
  if (holding.empty()) {
    if (other_version.empty()) other_version = version_in(search.library_directories);
    return false;
  }
  search.driver_directories = std::move(holding);
  search.found.version = version;
  return true;
}

// "/home/kubernetes/bin/nvidia/lib64" → "/home/kubernetes/bin/nvidia", "/lib64" → ""; not for
// /usr/lib64.
void note_prefixes(DriverSearch& search) {
  for (const Directory* directory : search.driver_directories) {
    const std::string_view name = text::base_name(directory->resolved_path());
    if (name != "lib64" && name != "lib") continue;
    std::string prefix(text::parent_directory(directory->resolved_path()));
    if (prefix == "/") prefix.clear();
    if (prefix != "/usr") search.prefixes.push_back(std::move(prefix));
  }
}

Error no_library_error(const DriverSearch& search, const std::string& hint,
                       const std::string& other_version) {
  const std::string library = "lib*.so." + (hint.empty() ? "<version>" : hint);
  if (other_version.empty())
    return Error(Code::kNotFound, "no driver library " + library + " below this driver root",
                 search.root.root_path());
  return Error(Code::kNotFound,
               "no driver library " + library + " below this driver root, only version " + other_version +
                   "; the loaded driver differs from the installed one until the node is rebooted",
               search.root.root_path());
}

}  // namespace

Status choose_library_directories(DriverSearch& search, const std::string& version_hint) {
  if (!version_hint.empty() && !looks_like_version(version_hint))
    return fail(Code::kInvalidArgument,
                "\"" + version_hint + "\" is not a driver version such as 570.124.06");
  std::string other_version;
  bool chosen = false;
  if (!search.options.library_search_paths.empty()) {
    Paths paths;
    for (const std::string& path : search.options.library_search_paths)
      paths.push_back(search.root.from_host(path).value_or(path));
    chosen = choose_driver_directories(search, paths, version_hint, other_version);
  } else {
    chosen =
        choose_driver_directories(search, distribution_directories(search), version_hint, other_version) ||
        choose_driver_directories(search, ld_cache_directories(search), version_hint, other_version) ||
        choose_driver_directories(search, paths_of(vendor_library_directories()), version_hint,
                                  other_version);
  }
  if (!chosen) return fail(no_library_error(search, version_hint, other_version));
  note_prefixes(search);
  return {};
}

// The libraries and the links in their directories.
namespace {

constexpr int kMaxLinkChain = 8;

// Libraries with a version of their own.
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

bool is_mounted(const DriverFiles& files, std::string_view container_path) {
  return std::ranges::find(files.libraries, container_path, &FileMount::container_path) !=
         files.libraries.end();
}

void add_library(DriverSearch& search, const Directory& directory, std::string_view name) {
  std::string path = join_path(directory.resolved_path(), name);
  if (is_mounted(search.found, path)) return;
  if (search.add_mount(search.found.libraries, directory, name, path) && text::starts_with(name, "lib"))
    search.found.library_dirs.push_back(directory.resolved_path());
}

// A link to a library of the same directory, or of another one that is taken whole, becomes a link
// in the container, not a second mount.
bool has_link_beside(DriverSearch& search, const Directory& directory, std::string_view name) {
  if (directory.type_of(name) != FileType::kLink) return false;
  std::string path = join_path(directory.resolved_path(), name);
  auto resolved = search.root.resolve_with_status(path);
  if (!resolved || resolved->status.type != FileType::kRegular) return false;
  std::string& real = resolved->path;
  if (!text::base_name(real).ends_with(".so." + search.found.version)) return false;
  const std::string_view place = text::parent_directory(real);
  const bool selected = std::ranges::any_of(
      search.driver_directories, [&](const Directory* other) { return other->resolved_path() == place; });
  if (!selected) return false;
  std::string target =
      place == directory.resolved_path() ? std::string(text::base_name(real)) : std::move(real);
  search.found.links.push_back({std::move(target), std::move(path)});
  return true;
}

void add_of_version(DriverSearch& search, const Directory& directory) {
  const std::string suffix = ".so." + search.found.version;
  for (std::size_t index = 0; index < directory.size(); ++index) {
    const std::string_view name = directory.entry(index).name;
    if (name.ends_with(suffix) && !has_link_beside(search, directory, name))
      add_library(search, directory, name);
  }
}

// From the first directory that has one.
void add_matching(DriverSearch& search, std::string_view pattern) {
  const std::string_view prefix = pattern.substr(0, pattern.find('*'));
  const std::size_t before = search.found.libraries.size();
  for (const Directory* directory : search.library_directories) {
    const auto [first, last] = directory->with_prefix(prefix);
    for (std::size_t index = first; index < last; ++index) {
      const Directory::Entry entry = directory->entry(index);
      if (matches_glob(pattern, entry.name) && entry.type != FileType::kDirectory)
        add_library(search, *directory, entry.name);
    }
    if (search.found.libraries.size() > before) return;
  }
  search.warn("not found: " + std::string(pattern));
}

// Adds the files "libEGL.so.1.1.0" for libEGL; their links follow with the others.
void add_explicit(DriverSearch& search, std::string_view stem) {
  for (const Directory* directory : search.library_directories) {
    const auto [first, last] = directory->with_prefix(std::string(stem) + ".so");
    bool any = false;
    for (std::size_t index = first; index < last; ++index) {
      const Directory::Entry entry = directory->entry(index);
      if (entry.type != FileType::kRegular) continue;
      add_library(search, *directory, entry.name);
      any = true;
    }
    if (any) return;
  }
  search.warn("not found: " + std::string(stem) + ".so");
}

// The link targets of one directory, each read once.
class LinkReader {
 public:
  LinkReader(const Root& root, const Directory& directory) : root_(root), directory_(directory) {}

  // A link's target as a name in the same directory; empty if it leads elsewhere or nowhere.
  const std::string& link_target(const std::string& name) {
    const auto known = targets_.find(name);
    return known != targets_.end() ? known->second : targets_[name] = read_target(name);
  }
  // The file in the same directory that a name finally leads to; empty if it leads elsewhere or
  // nowhere.
  std::string link_file(std::string name) {
    for (int step = 0; step < kMaxLinkChain && directory_.type_of(name) == FileType::kLink; ++step)
      name = link_target(name);
    return name;
  }

 private:
  std::string read_target(const std::string& name) const {
    auto says = directory_.read_link(name);
    if (!says) return {};
    if (says->find('/') == std::string::npos) return std::move(*says);
    const auto real = root_.resolve_path(join_path(directory_.resolved_path(), name));
    return real && text::parent_directory(*real) == directory_.resolved_path()
               ? std::string(text::base_name(*real))
               : std::string{};
  }

  const Root& root_;
  const Directory& directory_;
  std::map<std::string, std::string> targets_;
};

// Adds the host's links of a library's SONAME and ".so" to the container.
void add_links_beside(DriverSearch& search, const Directory& directory, LinkReader& links,
                      std::string_view library) {
  const std::string_view stem = library_stem(library);
  const auto [first, last] = directory.with_prefix(std::string(stem) + ".so");
  for (std::size_t index = first; index < last; ++index) {
    const Directory::Entry entry = directory.entry(index);
    if (entry.type != FileType::kLink || library_stem(entry.name) != stem) continue;
    const std::string name(entry.name);
    std::string path = join_path(directory.resolved_path(), name);
    if (is_mounted(search.found, path)) continue;
    const std::string file = links.link_file(name);
    if (!file.empty() && is_mounted(search.found, join_path(directory.resolved_path(), file)))
      search.found.links.push_back({links.link_target(name), std::move(path)});
  }
}

struct KnownLink {
  std::string_view library;
  std::string_view link;    // in its directory
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

void add_known_links(DriverSearch& search, const Directory& directory, std::string_view library) {
  for (const KnownLink& known : kKnownLinks) {
    if (library_stem(library) != known.library) continue;
    std::string path = join_path(directory.resolved_path(), known.link);
    const bool exists = std::ranges::find(search.found.links, path, &Link::link) != search.found.links.end();
    if (exists || is_mounted(search.found, path)) continue;
    search.found.links.push_back(
        {std::string(known.target.empty() ? library : known.target), std::move(path)});
  }
  // Debian keeps the driver's libraries apart (nvidia/current), but the loader of GBM backends searches
  // libgbm's directory.
  const std::string_view parent = text::parent_directory(directory.resolved_path());
  if (library_stem(library) == "libnvidia-allocator" && text::base_name(parent) == "nvidia") {
    const std::string branch(text::base_name(directory.resolved_path()));
    search.found.links.push_back({"../nvidia/" + branch + "/libnvidia-allocator.so.1",
                                  join_path(text::parent_directory(parent), "gbm/nvidia-drm_gbm.so")});
  }
}

}  // namespace

void find_libraries(DriverSearch& search) {
  std::vector<const Directory*> selected = search.driver_directories;
  for (const Directory* directory : search.driver_directories) {
    search.found.cuda_library_dirs.push_back(directory->resolved_path());
    add_of_version(search, *directory);
    if (const Directory* vdpau = search.directories.get(join_path(directory->resolved_path(), "vdpau"))) {
      add_of_version(search, *vdpau);
      selected.push_back(vdpau);
    }
  }
  for (const std::string_view pattern : kOwnVersions) add_matching(search, pattern);
  if (search.options.explicit_libraries) {
    for (const std::string_view stem : kExplicit) add_explicit(search, stem);
  }
  for (const Directory* directory : search.library_directories) {
    if (std::ranges::find(selected, directory) == selected.end()) selected.push_back(directory);
  }
  for (const Directory* directory : selected) {
    LinkReader links(search.root, *directory);
    std::vector<std::string> stems;  // there may be two versions of a library
    for (const FileMount& library : std::vector(search.found.libraries)) {
      if (text::parent_directory(library.container_path) != directory->resolved_path()) continue;
      const std::string name(text::base_name(library.container_path));
      if (std::ranges::find(stems, library_stem(name)) != stems.end()) continue;
      stems.emplace_back(library_stem(name));
      add_links_beside(search, *directory, links, name);
      add_known_links(search, *directory, name);
    }
  }
  for (const Directory* directory : search.driver_directories) {
    const Directory* vdpau = search.directories.get(join_path(directory->resolved_path(), "vdpau"));
    if (vdpau != nullptr) search.link_as_on_host(*vdpau, "libvdpau_nvidia.so.1");
  }
  const bool cuda = std::ranges::any_of(search.found.libraries, [](const FileMount& library) {
    return library_stem(text::base_name(library.container_path)) == "libcuda";
  });
  if (!cuda) search.warn("not found: libcuda.so." + search.found.version + ": no CUDA program can run");
}

}  // namespace gpulet::cdi
