// Fuzzes an image's ld.so.conf and its includes. The input holds the files separated by NUL: first
// /etc/ld.so.conf, then /etc/ld.so.conf.d/N.conf. The first two lines also serve as a pattern and a name.
#include <fnmatch.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "hook/ld_config.h"

namespace {

constexpr std::size_t kMaxFiles = 8;

// A root directory that is removed at exit.
class FuzzRoot {
 public:
  FuzzRoot() {
    std::string path = (std::filesystem::temp_directory_path() / "gpulet-ld-conf-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) std::abort();
    path_ = path;
    std::filesystem::create_directories(path_ / "etc/ld.so.conf.d");
  }
  ~FuzzRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FuzzRoot(const FuzzRoot&) = delete;

  void write_files(std::string_view input) {
    std::size_t count = 0;
    for (; count < kMaxFiles && !input.empty(); ++count) {
      const auto end = input.find('\0');
      std::ofstream(config_file_path(count), std::ios::binary) << input.substr(0, end);
      input.remove_prefix(end == std::string_view::npos ? input.size() : end + 1);
    }
    for (std::size_t i = count; i < count_; ++i) std::filesystem::remove(config_file_path(i));
    count_ = count;
  }
  const std::filesystem::path& directory_path() const { return path_; }

 private:
  std::filesystem::path config_file_path(std::size_t i) const {
    return path_ / (i == 0 ? "etc/ld.so.conf" : "etc/ld.so.conf.d/" + std::to_string(i) + ".conf");
  }

  std::filesystem::path path_;
  std::size_t count_ = 0;  // files of the last input
};

std::string line_of(std::string_view& text) {
  const auto end = text.find('\n');
  const std::string line(text.substr(0, end));
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

// Compares with glibc's fnmatch, which also has '['.
void compare_matching(std::string_view text) {
  const std::string pattern = line_of(text);
  const std::string name = line_of(text);
  constexpr std::size_t kMost = 64;  // glibc's matching is exponential
  if (pattern.size() > kMost || name.size() > kMost ||
      pattern.find_first_of(std::string_view("[\0", 2)) != std::string::npos)
    return;
  if (name.empty() || name.find('\0') != std::string::npos) return;
  const bool matches = ::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD | FNM_NOESCAPE) == 0;
  if (gpulet::hook::NamePattern(pattern).matches(name) != matches) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::hook;
  static FuzzRoot image;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  compare_matching(input);
  image.write_files(input);
  const auto root = Rootfs::open_root(image.directory_path());
  if (!root) std::abort();
  const auto directories = read_ld_config(*root);
  if (!directories) {
    if (directories.error().code() != gpulet::Code::kInvalidArgument) std::abort();
    return 0;
  }
  if (directories->size() > kMaxLdDirectories) std::abort();
  std::set<std::string> seen;
  for (const LdDirectory& directory : *directories) {
    if (directory.path.front() != '/' || !seen.insert(directory.path).second) std::abort();
    if (directory.path.find_first_of(std::string_view("\0\n#=", 4)) != std::string::npos) std::abort();
    if (directory.path.find("//") != std::string::npos || directory.file.rfind("/etc/", 0) != 0) std::abort();
  }
  return 0;
}
