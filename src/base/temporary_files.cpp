#include "base/temporary_files.h"

#include <unistd.h>

#include <filesystem>

namespace gpulet {

bool is_temporary_file(std::string_view name, std::string_view suffix) {
  return name.find(std::string(suffix) + ".tmp.") != std::string_view::npos;
}

void remove_temporary_files(const std::string& directory, std::string_view prefix, std::string_view suffix) {
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.starts_with(prefix) && is_temporary_file(name, suffix)) ::unlink(entries->path().c_str());
  }
}

}  // namespace gpulet
