// A host's files as a map, for tests.
#pragma once

#include <fnmatch.h>

#include <map>
#include <string>

#include "runtimes/engine.h"

namespace gpulet::runtimes {

struct TestFiles {
  std::map<std::string, std::string> files;

  Reader reader() const {
    return {.read = [this](const std::string& path) -> Result<std::optional<std::string>> {
              const auto found = files.find(path);
              return found == files.end() ? std::nullopt : std::optional(found->second);
            },
            .glob =
                [this](const std::string& pattern) {
                  std::vector<std::string> paths;
                  for (const auto& [path, text] : files) {
                    if (::fnmatch(pattern.c_str(), path.c_str(), FNM_PATHNAME) == 0) paths.push_back(path);
                  }
                  return paths;
                }};
  }
  void apply(const Plan& plan) {
    for (const auto& change : plan.changes) {
      if (change.text) {
        files[change.path] = *change.text;
      } else {
        files.erase(change.path);
      }
    }
  }
};

}  // namespace gpulet::runtimes
