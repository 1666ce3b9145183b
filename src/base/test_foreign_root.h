// For one test: a root whose glibc does not mix with this system's, as that of another distribution. It is
// this system's glibc with another name for the symbol version of its private interface (GLIBC_PRIVATE), by
// which loader and libraries of two releases refuse each other.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/driver_root.h"
#include "base/file.h"
#include "base/process.h"
#include "base/text.h"

namespace gpulet {

// The output of a program that ends within 20 s, and how it ended.
struct ProgramOutput {
  std::string text;
  bool succeeded = false;
};

inline ProgramOutput run_to_end(ProcessOptions options) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const FileDescriptor reader(ends[0]);
  FileDescriptor writer(ends[1]);
  options.descriptors = {{writer.get(), 1}, {writer.get(), 2}};
  auto process = Process::spawn(options);
  writer.reset();
  if (!process) return {process.error().full_message(), false};
  auto text = read_all(reader.get(), "output");
  const auto exit = (*process)->wait_for_exit(std::chrono::seconds(20));
  return {text ? std::move(*text) : text.error().full_message(), exit && exit->succeeded()};
}

class ForeignRoot {
 public:
  // `directory` is created.
  explicit ForeignRoot(std::string directory) : path_(std::move(directory)) {
    std::filesystem::create_directories(path_ + "/proc");
    std::filesystem::create_directories(path_ + "/dev/shm");
    std::filesystem::create_directories(path_ + "/tmp");
  }

  const std::string& root_path() const { return path_; }

  // Copies a program to `inside`, its loader to the path that it names, and its libraries beside those of
  // Debian.
  void install_program(const std::string& program, const std::string& inside) const {
    const auto bytes = read_file(program, kMaxProgramBytes);
    ASSERT_TRUE(bytes) << bytes.error().full_message();
    const auto loader = parse_interpreter(*bytes);
    ASSERT_TRUE(loader) << loader.error().full_message();
    copy_foreign(program, inside);
    copy_foreign(*loader, *loader);
    const auto listed = run_to_end({.program = *loader, .arguments = {"ld.so", "--list", program}});
    ASSERT_TRUE(listed.succeeded) << listed.text;
    // "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)"
    for (const auto& line : text::split(listed.text, '\n')) {
      const auto words = text::split(std::string(text::trim(line)), ' ');
      if (words.size() >= 3 && words[1] == "=>" && words[2].starts_with("/"))
        copy_foreign(words[2], "/usr/lib/" GPULET_TRIPLET "/" + words[0]);
    }
  }

 private:
  static constexpr std::size_t kMaxProgramBytes = 256u << 20;

  void copy_foreign(const std::string& from, const std::string& inside) const {
    auto bytes = read_file(from, kMaxProgramBytes);
    ASSERT_TRUE(bytes) << bytes.error().full_message();
    constexpr std::string_view kOurs = "GLIBC_PRIVATE", kTheirs = "GLIBC_FOREIGN";
    static_assert(kOurs.size() == kTheirs.size());
    for (auto at = bytes->find(kOurs); at != std::string::npos; at = bytes->find(kOurs, at))
      bytes->replace(at, kOurs.size(), kTheirs);
    ASSERT_TRUE(write_file_atomic(path_ + inside, *bytes, 0755));
  }

  std::string path_;
};

}  // namespace gpulet
