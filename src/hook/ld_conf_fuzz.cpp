// An image's ld.so.conf and what it includes: its files stand behind one another in the input, each begun by
// a NUL but the first, which is /etc/ld.so.conf; the others are /etc/ld.so.conf.d/N.conf. The input's first
// two lines are a pattern and a name as well.
#include <fnmatch.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "hook/ld_conf.h"

namespace {

constexpr std::size_t kMaxFiles = 8;

// A root that goes with the program.
class Root {
 public:
  Root() {
    std::string path = (std::filesystem::temp_directory_path() / "gpulet-ld-conf-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) std::abort();
    path_ = path;
    std::filesystem::create_directories(path_ / "etc/ld.so.conf.d");
  }
  ~Root() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Root(const Root&) = delete;

  void fill(std::string_view input) {
    std::size_t count = 0;
    for (; count < kMaxFiles && !input.empty(); ++count) {
      const auto end = input.find('\0');
      std::ofstream(file(count), std::ios::binary) << input.substr(0, end);
      input.remove_prefix(end == std::string_view::npos ? input.size() : end + 1);
    }
    for (std::size_t i = count; i < count_; ++i) std::filesystem::remove(file(i));
    count_ = count;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path file(std::size_t i) const {
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

// glibc's own, which knows '[' besides.
void compare_matching(std::string_view text) {
  const std::string pattern = line_of(text);
  const std::string name = line_of(text);
  constexpr std::size_t kMost = 64;  // glibc's is exponential
  if (pattern.size() > kMost || name.size() > kMost ||
      pattern.find_first_of(std::string_view("[\0", 2)) != std::string::npos)
    return;
  if (name.empty() || name.find('\0') != std::string::npos) return;
  const bool matches = ::fnmatch(pattern.c_str(), name.c_str(), FNM_PERIOD | FNM_NOESCAPE) == 0;
  if (gpulet::hook::matches_pattern(pattern, name) != matches) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gpulet::hook;
  static Root image;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  compare_matching(input);
  image.fill(input);
  const auto root = Rootfs::open(image.path());
  if (!root) std::abort();
  const auto folders = read_ld_config(*root);
  if (!folders) {
    if (folders.error().code() != gpulet::Code::kInvalidArgument) std::abort();
    return 0;
  }
  if (folders->size() > kMaxLdFolders) std::abort();
  std::set<std::string> seen;
  for (const LdFolder& folder : *folders) {
    if (folder.path.front() != '/' || !seen.insert(folder.path).second) std::abort();
    if (folder.path.find_first_of(std::string_view("\0\n#=", 4)) != std::string::npos) std::abort();
    if (folder.path.find("//") != std::string::npos || folder.file.rfind("/etc/", 0) != 0) std::abort();
  }
  return 0;
}
