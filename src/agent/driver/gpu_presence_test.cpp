#include "agent/driver/gpu_presence.h"

#include <stdlib.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"

namespace gpulet::agent {
namespace {

namespace fs = std::filesystem;

class GpuPresence : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "presence_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& content) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    ASSERT_TRUE(write_file_atomic(root_ + path, content));
  }
  void add_function(const std::string& address, const std::string& vendor, const std::string& pci_class) {
    write("/sys/bus/pci/devices/" + address + "/vendor", vendor + "\n");
    write("/sys/bus/pci/devices/" + address + "/class", pci_class + "\n");
  }

  std::string root_;
};

TEST_F(GpuPresence, OnlyDisplayControllersOfNvidiaAreGpus) {
  fs::create_directories(root_ + "/sys/bus/pci/devices");
  EXPECT_FALSE(may_have_gpu({root_}));
  add_function("0000:00:00.0", "0x8086", "0x060000");
  add_function("0000:00:02.0", "0x8086", "0x030000");  // another vendor's display controller
  add_function("0000:03:00.0", "0x10de", "0x020700");  // a network card that NVIDIA sells
  add_function("0000:04:00.0", "0x10de", "0x068000");  // an NVSwitch
  EXPECT_FALSE(may_have_gpu({root_}));
  add_function("0000:1b:00.0", "0x10de", "0x030200");
  EXPECT_TRUE(may_have_gpu({root_}));
}

TEST_F(GpuPresence, WhatCannotBeReadMayBeAGpu) {
  EXPECT_TRUE(may_have_gpu({root_})) << "no PCI bus";
  EXPECT_TRUE(may_have_gpu({}));
  fs::create_directories(root_ + "/sys/bus/pci/devices/0000:1b:00.0");
  EXPECT_TRUE(may_have_gpu({root_})) << "a function without a vendor";
}

TEST_F(GpuPresence, TheFirstRootWithABusCounts) {
  fs::create_directories(root_ + "/empty");
  fs::create_directories(root_ + "/one/sys/bus/pci/devices");
  write("/two/sys/bus/pci/devices/0000:1b:00.0/vendor", "0x10de\n");
  write("/two/sys/bus/pci/devices/0000:1b:00.0/class", "0x030000\n");
  EXPECT_FALSE(may_have_gpu({root_ + "/empty", root_ + "/one", root_ + "/two"}));
  EXPECT_TRUE(may_have_gpu({root_ + "/empty", root_ + "/two", root_ + "/one"}));
}

TEST_F(GpuPresence, NodesAndBoardsWithoutAPciFunctionMayHaveAGpu) {
  fs::create_directories(root_ + "/sys/bus/pci/devices");
  for (const char* path :
       {"/dev/nvidiactl", "/dev/dxg", "/etc/nv_tegra_release", "/sys/firmware/devicetree/base/compatible"}) {
    EXPECT_FALSE(may_have_gpu({root_})) << path;
    write(path, std::string("nvidia,p3737-0000\0nvidia,tegra234\0", 34));
    EXPECT_TRUE(may_have_gpu({root_})) << path;
    fs::remove(root_ + path);
  }
}

TEST_F(GpuPresence, ADriverErrorNamesThePlatform) {
  const Error error(Code::kNotFound, "libnvidia-ml.so.1 not found");
  EXPECT_EQ(explain_driver_error(error, {root_}).full_message(), error.full_message());
  write("/etc/nv_tegra_release", "# R36 (release)");
  EXPECT_EQ(
      explain_driver_error(error, {root_}).full_message(),
      "this machine is Tegra (/etc/nv_tegra_release): gpulet does not support its integrated GPU, because "
      "NVML does not manage it; use NVIDIA's device plugin on this node: libnvidia-ml.so.1 not found");
}

}  // namespace
}  // namespace gpulet::agent
