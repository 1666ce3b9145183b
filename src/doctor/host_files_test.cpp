#include "doctor/host_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
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

std::string make_temporary_directory() {
  std::string path = (std::filesystem::temp_directory_path() / "gpulet-doctor-XXXXXX").string();
  return ::mkdtemp(path.data());
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
  std::string directory_;
};

TEST(HostProcesses, AreVisibleWhereKernelThreadsOrAnInitSystemAre) {
  EXPECT_TRUE(read_processes(ProcTree({{1, "systemd"}}).trees())) << "a node in a container";
  EXPECT_TRUE(read_processes(ProcTree({{1, "own-init"}, {2, "kthreadd"}}).trees()));
  const auto plugin =
      read_processes(ProcTree({{1, "own-init"}, {2, "kthreadd"}, {9, "nvidia-device-plugin"}}).trees());
  ASSERT_TRUE(plugin);
  EXPECT_EQ(plugin->device_plugins.size(), 1u);
  EXPECT_EQ(read_processes(ProcTree({{1, "gpulet"}, {2, "sh"}}).trees()).error().code(), Code::kUnavailable);
}

// A host's root with empty files.
class HostTree : public testing::Test {
 protected:
  HostTree() {
    root_ = (std::filesystem::temp_directory_path() / "gpulet-host-XXXXXX").string();
    if (::mkdtemp(root_.data()) == nullptr) throw std::runtime_error("mkdtemp");
    for (const char* path : {"/proc/devices", "/sys/module/x", "/dev/null"}) add_file(path);
  }
  ~HostTree() override { std::filesystem::remove_all(root_); }
  void add_file(const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << "";
  }
  HostTrees locate(const std::string& driver_root = {}, const std::string& dev_root = {}) const {
    ProbeTargets targets;
    targets.host_root = root_;
    targets.driver_root = driver_root;
    targets.dev_root = dev_root;
    return locate_trees(targets);
  }
  static constexpr const char* kLibrary = "/usr/lib64/libnvidia-ml.so.570.124.06";
  std::string root_;
};

TEST_F(HostTree, FindsTheDriverOnTheHost) {
  add_file(kLibrary);
  add_file("/dev/nvidiactl");
  add_file(std::string("/run/nvidia/driver") + kLibrary);
  add_file("/run/nvidia/driver/dev/nvidiactl");
  const auto trees = locate();
  EXPECT_EQ(trees.driver, root_);
  EXPECT_EQ(trees.dev_root, root_);
  EXPECT_EQ(trees.dev, root_ + "/dev");
}

TEST_F(HostTree, FindsADriverContainer) {
  const std::string container = root_ + "/run/nvidia/driver";
  add_file(std::string("/run/nvidia/driver") + kLibrary);
  EXPECT_EQ(locate().driver, container);
  EXPECT_EQ(locate().dev_root, root_) << "a driver container that shares the host's /dev";
  EXPECT_EQ(read_driver_files(locate()).libraries, std::vector<std::string>{"570.124.06"});
  add_file("/run/nvidia/driver/dev/nvidiactl");
  EXPECT_EQ(locate().dev_root, container);
  EXPECT_EQ(locate().dev, root_ + "/dev") << "the kernel log and /dev/char are the host's";
  EXPECT_EQ(locate(root_).dev_root, root_);
  ProbeTargets inside;
  inside.host_root = root_;
  inside.in_container = true;
  EXPECT_EQ(locate_trees(inside).dev_root, container);
  add_file("/dev/nvidiactl");
  EXPECT_EQ(locate_trees(inside).dev_root, root_) << "a container uses its own nodes";
  std::filesystem::remove(root_ + "/dev/nvidiactl");
  EXPECT_EQ(locate({}, root_ + "/elsewhere").dev_root, root_ + "/elsewhere");
}

TEST_F(HostTree, LooksForDeviceNodesInTheDeviceRoot) {
  const std::string container = root_ + "/run/nvidia/driver";
  std::filesystem::create_directories(container + "/dev");
  std::filesystem::create_symlink("/dev/null", container + "/dev/nvidiactl");  // not a node of this root
  const auto nodes = read_device_nodes(locate({}, container));
  ASSERT_TRUE(nodes) << nodes.error().full_message();
  EXPECT_EQ(nodes->root, container);
  ASSERT_EQ(nodes->needed.size(), 2u);
  EXPECT_EQ(nodes->needed[1].path, "/dev/nvidia-uvm");
  EXPECT_EQ(nodes->needed[1].error->code(), Code::kNotFound);
  EXPECT_EQ(read_device_nodes(locate())->root, "");
}

TEST_F(HostTree, AssumesTheUsualPlacesWhereLookingHangs) {
  ProbeTargets targets;
  targets.host_root = "/host";
  const auto trees = assumed_trees(targets);
  EXPECT_EQ(trees.driver, "/host");
  EXPECT_EQ(trees.proc, "/host/proc");
  EXPECT_EQ(trees.dev, "/host/dev");
  EXPECT_EQ(trees.dev_root, "/host");
}

TEST(NvidiaRuntimeConfigFile, IsReadOnTheHost) {
  const std::string root = make_temporary_directory();
  const std::string path = "/etc/nvidia-container-runtime/config.toml";
  const auto read = [&] {
    HostTrees trees;
    trees.host = root;
    return read_engines(trees, false, {}).value().nvidia_runtime_config;
  };
  EXPECT_EQ(read()->path, "");
  std::filesystem::create_directories(root + "/etc/nvidia-container-runtime");
  std::ofstream(root + path) << "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n";
  EXPECT_EQ(read()->path, path);
  EXPECT_FALSE(read()->accepts_images_variable);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace gpulet::doctor
