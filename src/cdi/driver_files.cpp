#include "cdi/driver_files.h"

#include <algorithm>

#include "cdi/driver_search.h"

namespace gpulet::cdi {
namespace {

std::string_view what_it_is(FileType type) {
  switch (type) {
    case FileType::kRegular:
      return "a file";
    case FileType::kFolder:
      return "a folder";
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

void one_of_each(std::vector<std::string>& texts) {
  std::ranges::sort(texts);
  texts.erase(std::ranges::unique(texts).begin(), texts.end());
}

// The first found of several for one place stays.
void one_for_each_place(std::vector<FileMount>& mounts) {
  std::ranges::stable_sort(mounts, {}, &FileMount::container_path);
  mounts.erase(std::ranges::unique(mounts, {}, &FileMount::container_path).begin(), mounts.end());
}

}  // namespace

std::string in_folder(std::string_view folder, std::string_view name) {
  std::string path(folder == "/" ? "" : folder);
  return path.append("/").append(name);
}

std::string_view folder_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || slash == 0) return "/";
  return path.substr(0, slash);
}

std::string_view name_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string_view stem_of(std::string_view library) {
  const std::size_t end = library.find(".so");
  return end == std::string_view::npos ? std::string_view{} : library.substr(0, end);
}

std::optional<std::string> Search::regular_file(const Folder& folder, std::string_view name) {
  std::string path = in_folder(folder.path(), name);
  FileType type = folder.type_of(name);
  if (type == FileType::kRegular) return path;
  if (type == FileType::kLink) {
    auto target = root.look(path);
    if (!target) {
      warn("left out: " + path + " is a link that leads nowhere: " + target.error().message());
      return std::nullopt;
    }
    if (target->status.type == FileType::kRegular) return std::move(target->path);
    type = target->status.type;
  }
  warn("left out: " + path + " is " + std::string(what_it_is(type)) + " and no regular file");
  return std::nullopt;
}

bool Search::mount(std::vector<FileMount>& to, const Folder& folder, std::string_view name,
                   std::string container_path) {
  const auto path = regular_file(folder, name);
  if (path) to.push_back({root.on_host(*path), std::move(container_path)});
  return path.has_value();
}

void Search::link_as_on_host(const Folder& folder, std::string_view name) {
  if (folder.type_of(name) != FileType::kLink) return;
  std::string path = in_folder(folder.path(), name);
  const auto real = root.resolve(path);
  if (!real) return;
  const std::string host_path = root.on_host(*real);
  const auto mounted = std::ranges::find(found.libraries, host_path, &FileMount::host_path);
  const bool known = std::ranges::find(found.links, path, &Link::link) != found.links.end();
  if (mounted == found.libraries.end() || mounted->container_path == path || known) return;
  found.links.push_back({mounted->container_path, std::move(path)});
}

void put_in_order(DriverFiles& files) {
  for (auto* mounts : {&files.libraries, &files.binaries, &files.firmware, &files.configs, &files.sockets})
    one_for_each_place(*mounts);
  std::ranges::stable_sort(files.links, {}, &Link::link);
  files.links.erase(std::ranges::unique(files.links, {}, &Link::link).begin(), files.links.end());
  one_of_each(files.library_dirs);
  one_of_each(files.cuda_library_dirs);
}

Result<DriverFiles> find_driver_files(const Roots& roots, const std::string& version_hint,
                                      const DriverFileOptions& options) {
  Search search(roots, options);
  GPULET_TRY(choose_library_folders(search, version_hint));
  find_libraries(search);
  find_x_modules(search);
  find_configs(search);
  find_firmware(search);
  find_binaries(search);
  if (options.sockets) find_sockets(search);
  for (const std::string& problem : search.folders.problems()) search.warn("not listed: " + problem);
  put_in_order(search.found);
  return std::move(search.found);
}

}  // namespace gpulet::cdi
