// For tests: a host root in a temporary directory, and a host's files as a map.
#pragma once

#include <fnmatch.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "runtimes/engine.h"

namespace gpulet::runtimes {

class TestRoot {
 public:
  TestRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "gpulet-host-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = std::filesystem::canonical(name).string();
  }
  ~TestRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestRoot(const TestRoot&) = delete;

  const std::string& host_root() const { return path_; }
  std::string at(const std::string& path) const { return path_ + path; }
  void add_file(const std::string& path, const std::string& text, mode_t mode = 0644) const {
    std::filesystem::create_directories(std::filesystem::path(at(path)).parent_path());
    std::ofstream(at(path), std::ios::binary) << text;
    ASSERT_EQ(::chmod(at(path).c_str(), mode), 0);
  }
  void write_program(const std::string& path, const std::string& body) const {
    add_file(path, "#!/bin/sh\n" + body, 0755);
  }
  void make_directory(const std::string& path) const { std::filesystem::create_directories(at(path)); }
  void make_symlink(const std::string& to, const std::string& path) const {
    std::filesystem::create_directories(std::filesystem::path(at(path)).parent_path());
    std::filesystem::create_symlink(to, at(path));
  }
  // Returns "" for a missing file.
  std::string read_text(const std::string& path) const {
    std::ifstream stream(at(path), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }
  bool has_file(const std::string& path) const {
    return std::filesystem::is_symlink(at(path)) || std::filesystem::exists(at(path));
  }

 private:
  std::string path_;
};

// A host's files as a map.

struct TestFiles {
  std::map<std::string, std::string> files;

  Reader make_reader() const {
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
  void apply_plan(const Plan& plan) {
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
