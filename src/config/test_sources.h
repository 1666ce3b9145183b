// For tests: config files, and what is wrong with them.
#pragma once

#include <string>
#include <utility>

#include "config/load.h"

namespace gpulet::config {

// A file x.yaml with this content, and nothing else given.
inline Sources file_source(std::string content, bool drop_in = false) {
  Sources sources;
  sources.file_path = "x.yaml";
  sources.file_content = std::move(content);
  sources.drop_in = drop_in;
  return sources;
}

// "no error" where there is none.
inline std::string load_error(const Sources& sources) {
  const auto loaded = load(sources);
  return loaded ? "no error" : loaded.error().full_message();
}
inline std::string load_error(const std::string& content) { return load_error(file_source(content)); }

}  // namespace gpulet::config
