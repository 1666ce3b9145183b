// For tests: config files, and what is wrong with them.
#pragma once

#include <string>
#include <utility>

#include "config/load.h"

namespace gpulet::config {

// A file x.yaml with this content, and nothing else given.
inline Sources file(std::string content, bool drop_in = false) {
  Sources sources;
  sources.file_path = "x.yaml";
  sources.file_content = std::move(content);
  sources.drop_in = drop_in;
  return sources;
}

// "no error" where there is none.
inline std::string error_of(const Sources& sources) {
  const auto loaded = load(sources);
  return loaded ? "no error" : loaded.error().text();
}
inline std::string error_of(const std::string& content) { return error_of(file(content)); }

}  // namespace gpulet::config
