// A host root in a temporary folder, for tests.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

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

  const std::string& path() const { return path_; }
  std::string at(const std::string& path) const { return path_ + path; }
  void write(const std::string& path, const std::string& text, mode_t mode = 0644) const {
    std::filesystem::create_directories(std::filesystem::path(at(path)).parent_path());
    std::ofstream(at(path), std::ios::binary) << text;
    ASSERT_EQ(::chmod(at(path).c_str(), mode), 0);
  }
  void program(const std::string& path, const std::string& body) const {
    write(path, "#!/bin/sh\n" + body, 0755);
  }
  void folder(const std::string& path) const { std::filesystem::create_directories(at(path)); }
  void link(const std::string& to, const std::string& path) const {
    std::filesystem::create_directories(std::filesystem::path(at(path)).parent_path());
    std::filesystem::create_symlink(to, at(path));
  }
  // Empty for a file that is not there.
  std::string read(const std::string& path) const {
    std::ifstream stream(at(path), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }
  bool has(const std::string& path) const {
    return std::filesystem::is_symlink(at(path)) || std::filesystem::exists(at(path));
  }

 private:
  std::string path_;
};

}  // namespace gpulet::runtimes
