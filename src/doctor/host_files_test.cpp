#include "doctor/host_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace gpulet::doctor {
namespace {

void write_little_endian(std::string& space, std::size_t at, std::uint32_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) space[at + i] = static_cast<char>(value >> (8 * i) & 0xff);
}

// Error reporting (0x0001) at 0x100, followed by ACS.
std::string bridge(std::uint32_t control) {
  std::string space(4096, '\0');
  write_little_endian(space, 0x100, 0x148u << 20 | 1u << 16 | 0x0001, 4);
  write_little_endian(space, 0x148, 1u << 16 | 0x000D, 4);
  write_little_endian(space, 0x148 + 6, control, 2);
  return space;
}

TEST(Acs, ReadsTheRequestRedirectBit) {
  EXPECT_TRUE(acs_redirects(bridge(0x001D)));
  EXPECT_TRUE(acs_redirects(bridge(0x0004)));
  EXPECT_FALSE(acs_redirects(bridge(0x0000)));
  EXPECT_FALSE(acs_redirects(bridge(0x005B)));
}

TEST(Acs, MissingCapabilityDoesNotRedirect) {
  EXPECT_FALSE(acs_redirects(""));
  EXPECT_FALSE(acs_redirects(std::string(64, '\0')));
  EXPECT_FALSE(acs_redirects(std::string(4096, '\0')));
  EXPECT_FALSE(acs_redirects(std::string(4096, '\xff')));
  EXPECT_FALSE(acs_redirects(bridge(0x001D).substr(0, 0x148 + 7)));
  std::string circle(4096, '\0');
  write_little_endian(circle, 0x100, 0x100u << 20 | 0x0001, 4);
  EXPECT_FALSE(acs_redirects(circle));
}

// A /proc with the names of processes by their ids.
class ProcTree {
 public:
  explicit ProcTree(const std::map<int, std::string>& names) : directory_(make_temporary_directory()) {
    for (const auto& [pid, name] : names) {
      const std::string process = directory_ + "/" + std::to_string(pid);
      std::filesystem::create_directories(process);
      std::ofstream(process + "/comm") << name << "\n";
      std::ofstream(process + "/cmdline") << "/usr/bin/" << name;
    }
  }
  ~ProcTree() { std::filesystem::remove_all(directory_); }
  HostTrees trees() const {
    HostTrees trees;
    trees.proc = directory_;
    return trees;
  }

 private:
  static std::string make_temporary_directory() {
    std::string path = (std::filesystem::temp_directory_path() / "gpulet-proc-XXXXXX").string();
    return ::mkdtemp(path.data());
  }
  std::string directory_;
};

TEST(HostProcesses, AreVisibleWhereKernelThreadsOrAnInitSystemAre) {
  EXPECT_TRUE(read_processes(ProcTree({{1, "systemd"}}).trees())) << "a node in a container";
  EXPECT_TRUE(read_processes(ProcTree({{1, "own-init"}, {2, "kthreadd"}}).trees()));
  const auto plugin = read_processes(ProcTree({{1, "own-init"}, {2, "kthreadd"}, {9, "nvidia-device-plugin"}}).trees());
  ASSERT_TRUE(plugin);
  EXPECT_EQ(plugin->device_plugins.size(), 1u);
  EXPECT_EQ(read_processes(ProcTree({{1, "gpulet"}, {2, "sh"}}).trees()).error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace gpulet::doctor
