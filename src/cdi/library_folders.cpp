// Where a driver's libraries lie. Distributions differ, so the known folders come in tiers; the first tier
// that holds a library of the driver's version is the one, and the later ones are not looked at.
#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "cdi/driver_search.h"
#include "cdi/ld_cache.h"

namespace gpulet::cdi {
namespace {

using Paths = std::vector<std::string>;

constexpr std::size_t kMostCacheFolders = 16;

// Debian, Ubuntu, RHEL, SUSE, Arch, Amazon Linux; and GKE or a driver container as the root itself.
Paths usual_folders() {
  const std::string triplet(kTriplet);
  return {"/usr/lib64", "/usr/lib/" + triplet, "/usr/lib/" + triplet + "/nvidia/current",
          "/lib64",     "/lib/" + triplet,     "/lib/" + triplet + "/nvidia/current"};
}

// GKE's and Talos' below the host's own root, NixOS, and what has but one library folder.
Paths unusual_folders() {
  return {"/home/kubernetes/bin/nvidia/lib64",
          "/usr/local/nvidia/lib64",
          "/usr/local/glibc/usr/lib",
          "/usr/local/glibc/lib",
          "/usr/local/glibc/lib64",
          "/usr/local/lib",
          "/run/opengl-driver/lib",
          "/usr/lib"};
}

// The folders of the driver's libraries that the loader's cache knows, and of what they link to.
Paths cached_folders(Search& search) {
  Paths paths;
  auto add = [&](std::string_view folder) {
    if (std::ranges::find(paths, folder) == paths.end() && paths.size() < kMostCacheFolders)
      paths.emplace_back(folder);
  };
  for (const char* cache : {"/etc/ld.so.cache", "/usr/local/glibc/etc/ld.so.cache"}) {
    const auto bytes = search.root.read(cache);
    if (!bytes) continue;
    const auto entries = parse_ld_cache(*bytes);
    if (!entries) {
      search.warn(std::string(cache) + " cannot be read: " + entries.error().message());
      continue;
    }
    for (const LdCacheEntry& entry : *entries) {
      if (!text::starts_with(entry.name, "libcuda.so") && !text::starts_with(entry.name, "libnvidia-ml.so"))
        continue;
      add(folder_of(entry.path));
      if (const auto real = search.root.resolve(entry.path)) add(folder_of(*real));
    }
  }
  return paths;
}

bool is_version(std::string_view version) {
  return !version.empty() && version.find_first_not_of("0123456789.") == std::string_view::npos &&
         version.front() != '.' && version.back() != '.' && version.find('.') != std::string_view::npos;
}

std::vector<std::uint64_t> numbers_of(std::string_view version) {
  std::vector<std::uint64_t> numbers;
  for (const std::string& part : text::split(version, '.')) {
    numbers.push_back(text::parse_unsigned(part).value_or(0));
  }
  return numbers;
}

// Of "libcuda.so.570.124.06" in a folder: what libcuda.so.1 leads to, else the highest. Empty: there is none.
std::string version_in(const Folder& folder, std::string_view library) {
  const std::string prefix = std::string(library) + ".so.";
  const auto [first, last] = folder.with_prefix(prefix);
  std::string best;
  for (std::size_t index = first; index < last; ++index) {
    const std::string_view name = folder.entry(index).name;
    const std::string_view version = name.substr(prefix.size());
    if (!is_version(version)) continue;
    if (best.empty() || numbers_of(version) > numbers_of(best)) best = version;
  }
  if (best.empty() || folder.type_of(prefix + "1") != FileType::kLink) return best;
  const auto current = folder.read_link(prefix + "1");
  if (!current || !text::starts_with(name_of(*current), prefix)) return best;
  const std::string_view linked = name_of(*current).substr(prefix.size());
  return is_version(linked) ? std::string(linked) : best;
}

std::string version_in(const std::vector<const Folder*>& folders) {
  for (const std::string_view library : {"libcuda", "libnvidia-ml"}) {
    for (const Folder* folder : folders) {
      if (std::string version = version_in(*folder, library); !version.empty()) return version;
    }
  }
  return {};
}

bool holds_driver(const Folder& folder, const std::string& suffix) {
  const auto [first, last] = folder.with_prefix("lib");
  for (std::size_t index = first; index < last; ++index) {
    const Folder::Entry entry = folder.entry(index);
    if (entry.name.ends_with(suffix) && (entry.type == FileType::kRegular || entry.type == FileType::kLink))
      return true;
  }
  return false;
}

std::vector<const Folder*> listed(Search& search, const Paths& paths) {
  std::vector<const Folder*> folders;
  for (const std::string& path : paths) {
    const Folder* folder = search.folders.get(path);
    if (folder != nullptr && std::ranges::find(folders, folder) == folders.end()) folders.push_back(folder);
  }
  return folders;
}

// One tier. True when the driver is in it; `other_version` becomes one that is there instead.
bool choose_from(Search& search, const Paths& paths, const std::string& hint, std::string& other_version) {
  search.library_folders = listed(search, paths);
  const std::string there = hint.empty() ? version_in(search.library_folders) : hint;
  if (there.empty()) return false;
  std::vector<const Folder*> holding;
  for (const Folder* folder : search.library_folders) {
    if (holds_driver(*folder, ".so." + there)) holding.push_back(folder);
  }
  if (holding.empty()) {
    if (other_version.empty()) other_version = version_in(search.library_folders);
    return false;
  }
  search.driver_folders = std::move(holding);
  search.found.version = there;
  return true;
}

// "/home/kubernetes/bin/nvidia/lib64" → "/home/kubernetes/bin/nvidia", "/lib64" → ""; not for /usr/lib64.
void note_prefixes(Search& search) {
  for (const Folder* folder : search.driver_folders) {
    const std::string_view name = name_of(folder->path());
    if (name != "lib64" && name != "lib") continue;
    std::string prefix(folder_of(folder->path()));
    if (prefix == "/") prefix.clear();
    if (prefix != "/usr") search.prefixes.push_back(std::move(prefix));
  }
}

Error nothing_found(const Search& search, const std::string& hint, const std::string& other_version) {
  const std::string library = "lib*.so." + (hint.empty() ? "<version>" : hint);
  if (other_version.empty())
    return Error(Code::kNotFound, "no driver library " + library + " below this driver root",
                 search.root.path());
  return Error(Code::kNotFound,
               "no driver library " + library + " below this driver root, but of version " + other_version +
                   ": the loaded driver is another than the installed one until the node is restarted",
               search.root.path());
}

}  // namespace

Status choose_library_folders(Search& search, const std::string& version_hint) {
  if (!version_hint.empty() && !is_version(version_hint))
    return fail(Code::kInvalidArgument, "\"" + version_hint + "\" is no driver version such as 570.124.06");
  std::string other_version;
  bool chosen = false;
  if (!search.options.library_search_paths.empty()) {
    Paths paths;
    for (const std::string& path : search.options.library_search_paths)
      paths.push_back(search.root.from_host(path).value_or(path));
    chosen = choose_from(search, paths, version_hint, other_version);
  } else {
    chosen = choose_from(search, usual_folders(), version_hint, other_version) ||
             choose_from(search, cached_folders(search), version_hint, other_version) ||
             choose_from(search, unusual_folders(), version_hint, other_version);
  }
  if (!chosen) return fail(nothing_found(search, version_hint, other_version));
  note_prefixes(search);
  return {};
}

}  // namespace gpulet::cdi
