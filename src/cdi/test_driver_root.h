// A driver root in a temporary directory, built file by file.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "cdi/root.h"

namespace gpulet::cdi {

class TestTree {
 public:
  TestTree() {
    std::string name = (std::filesystem::temp_directory_path() / "gpulet-cdi-XXXXXX").string();
    path_ = ::mkdtemp(name.data()) == nullptr ? "" : std::filesystem::canonical(name).string();
    EXPECT_FALSE(path_.empty());
  }
  TestTree(const TestTree&) = delete;
  TestTree& operator=(const TestTree&) = delete;
  ~TestTree() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& tree_path() const { return path_; }

  void make_directory(const std::string& path) { std::filesystem::create_directories(path_ + path); }
  void make_file(const std::string& path, const std::string& content = "x", mode_t mode = 0644) {
    make_parents(path);
    std::ofstream(path_ + path, std::ios::binary) << content;
    EXPECT_EQ(::chmod((path_ + path).c_str(), mode), 0) << path;
  }
  void make_program(const std::string& path) { make_file(path, "#!/bin/false\n", 0755); }
  void make_link(const std::string& path, const std::string& target) {
    make_parents(path);
    std::filesystem::create_symlink(target, path_ + path);
  }
  void make_fifo(const std::string& path) {
    make_parents(path);
    EXPECT_EQ(::mkfifo((path_ + path).c_str(), 0666), 0) << path;
  }
  void make_socket(const std::string& path) {
    make_parents(path);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string full = path_ + path;
    ASSERT_LT(full.size(), sizeof address.sun_path);
    std::memcpy(address.sun_path, full.c_str(), full.size());
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << path;
    ::close(fd);
  }
  // False if the kernel refuses to create device nodes.
  bool make_node(const std::string& path, unsigned major, unsigned minor, mode_t mode = 0666, gid_t gid = 0) {
    make_parents(path);
    const std::string full = path_ + path;
    if (::mknod(full.c_str(), S_IFCHR | mode, makedev(major, minor)) != 0) return false;
    return ::chmod(full.c_str(), mode) == 0 && ::chown(full.c_str(), 0, gid) == 0;
  }

  // The tree as driver and dev root, with proc and sys below it.
  Roots open_tree(const std::string& host_path = {}) {
    make_directory("/proc");
    make_directory("/sys");
    auto opened = open_roots({path_, host_path, path_, host_path, path_ + "/proc", path_ + "/sys"});
    EXPECT_TRUE(opened.has_value()) << opened.error().full_message();
    return std::move(*opened);
  }

 private:
  void make_parents(const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(path_ + path).parent_path());
  }
  std::string path_;
};

}  // namespace gpulet::cdi
