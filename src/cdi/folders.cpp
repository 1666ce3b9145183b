#include "cdi/folders.h"

namespace gpulet::cdi {

// A folder is missing when one on the way to it is, or when the nearest listed one has no such name.
bool Folders::known_missing(std::string_view path) const {
  for (std::size_t slash = path.rfind('/'); slash != std::string_view::npos && slash > 0;
       slash = path.rfind('/', slash - 1)) {
    const auto above = by_name_.find(path.substr(0, slash));
    if (above == by_name_.end()) continue;
    if (above->second == nullptr) return true;
    const std::string_view below = path.substr(slash + 1);
    return !above->second->has(below.substr(0, below.find('/')));
  }
  return false;
}

const Folder* Folders::open(const std::string& path) {
  if (known_missing(path)) return nullptr;
  auto opened = root_->open_folder(path);
  if (!opened) {
    if (opened.error().code() != Code::kNotFound) problems_.push_back(opened.error().text());
    return nullptr;
  }
  const auto known = by_path_.find(opened->path());
  if (known != by_path_.end()) return known->second.get();
  if (const auto read = opened->read_entries(); !read) {
    problems_.push_back(read.error().text());
    return nullptr;
  }
  auto folder = std::make_unique<Folder>(std::move(*opened));
  const std::string resolved = folder->path();
  return (by_path_[resolved] = std::move(folder)).get();
}

const Folder* Folders::get(std::string_view path) {
  const std::string asked = normalised(path);
  if (const auto known = by_name_.find(asked); known != by_name_.end()) return known->second;
  const Folder* folder = open(asked);
  by_name_[asked] = folder;
  return folder;
}

}  // namespace gpulet::cdi
