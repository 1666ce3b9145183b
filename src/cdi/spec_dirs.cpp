#include "cdi/spec_dirs.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "cdi/names.h"

namespace gpulet::cdi {
namespace {

std::vector<std::string> spec_files(const std::string& folder, std::vector<SpecProblem>& problems) {
  std::vector<std::string> paths;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const auto extension = entry->path().extension();
    if (extension == ".json" || extension == ".yaml") paths.push_back(entry->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    problems.push_back({folder, {}, {}, "cannot be listed: " + error.message()});
  }
  std::ranges::sort(paths);
  return paths;
}

}  // namespace

ReadSpec read_spec_file(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type != std::filesystem::file_type::regular) {
    const bool missing = type == std::filesystem::file_type::not_found;
    return {std::nullopt, {{path, {}, {}, missing ? "there is no such file" : "is no regular file"}}};
  }
  const auto text = read_file(path, config::yaml::kMaxTextBytes);
  if (!text) return {std::nullopt, {{path, {}, {}, text.error().message()}}};
  return read_spec(*text, path);
}

SpecDirs read_spec_dirs(const std::vector<std::string>& folders) {
  SpecDirs result;
  std::map<std::string, std::string> owners;  // device → its file, or nobody's ("")
  for (const auto& folder : folders) {
    std::map<std::string, std::string> here;
    for (const auto& path : spec_files(folder, result.problems)) {
      result.files.push_back(path);
      const auto read = read_spec_file(path);
      result.problems.insert(result.problems.end(), read.problems.begin(), read.problems.end());
      if (!read.spec) continue;
      for (const auto& device : read.spec->devices) {
        const auto name = qualified_name(read.spec->kind, device.name);
        const auto [other, is_new] = here.emplace(name, path);
        if (is_new) continue;
        if (!other->second.empty()) {
          result.problems.push_back(
              {path, {}, {}, name + " is in " + other->second + " too: no container gets it"});
        }
        other->second.clear();
      }
    }
    for (const auto& [name, path] : here) owners[name] = path;
  }
  for (const auto& [name, path] : owners) {
    if (!path.empty()) result.devices.push_back(name);
  }
  return result;
}

}  // namespace gpulet::cdi
