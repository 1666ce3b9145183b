#include "inventory/pci_gpus.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"

namespace gpulet::inventory {
namespace {

namespace fs = std::filesystem;

class PciGpus : public testing::Test {
 protected:
  ~PciGpus() override { fs::remove_all(root_); }

  void add_function(const std::string& address, const char* vendor, const char* device, const char* pci_class,
                    const char* driver) {
    const fs::path directory = root_ / "sys/bus/pci/devices" / address;
    const auto put = [&](const char* name, const std::string& text) {
      ASSERT_TRUE(write_file_atomic(directory / name, text + "\n"));
    };
    put("vendor", vendor);
    put("device", device);
    put("class", pci_class);
    put("numa_node", "1");
    if (driver == nullptr) return;
    fs::create_directories(root_ / "sys/bus/pci/drivers" / driver);
    fs::create_directory_symlink(std::string("../../drivers/") + driver, directory / "driver");
  }
  Result<Snapshot> read() const { return read_vfio_gpus({"/nonexistent", root_.string()}); }

  const fs::path root_ = [] {
    std::string path = fs::temp_directory_path() / "pci-gpus-XXXXXX";
    return fs::path(::mkdtemp(path.data()));
  }();
};

TEST_F(PciGpus, AreThoseBoundToVfio) {
  add_function("0000:43:00.0", "0x10de", "0x2204", "0x030000", "vfio-pci");
  add_function("0000:1b:00.0", "0x10de", "0x2330", "0x030200", "vfio-pci");
  add_function("0000:1b:00.1", "0x10de", "0x1aef", "0x040300", "vfio-pci");  // its audio function
  add_function("0000:07:00.0", "0x10de", "0x22a3", "0x068000", "vfio-pci");  // an NVSwitch
  add_function("0000:5d:00.0", "0x10de", "0x2330", "0x030200", "nvidia");
  add_function("0000:61:00.0", "0x10de", "0x2330", "0x030200", nullptr);
  add_function("0000:62:00.0", "0x1002", "0x74a1", "0x030200", "vfio-pci");
  const auto snapshot = read();
  ASSERT_TRUE(snapshot) << snapshot.error().full_message();
  EXPECT_EQ(snapshot->driver.version, "unknown.unknown.unknown");
  ASSERT_EQ(snapshot->gpus.size(), 2u);
  const auto& gpu = snapshot->gpus[0];
  EXPECT_EQ(gpu.index, 0u);
  EXPECT_EQ(gpu.pci.sysfs_text(), "0000:1b:00.0");
  EXPECT_EQ(gpu.model, "GH100 [H100 SXM5 80GB]");
  EXPECT_EQ(gpu.pci_device_id, 0x233010DEu);
  EXPECT_EQ(gpu.pci_class, 0x030200u);
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_FALSE(gpu.mig_capable || gpu.unreadable || gpu.vgpu);
  EXPECT_EQ(snapshot->gpus[1].model, "PCI device 10de-2204");
  EXPECT_EQ(snapshot->pcie.size(), 4u);
}

TEST_F(PciGpus, AreNoneWithoutAPciBus) {
  const auto without = read();
  ASSERT_FALSE(without);
  EXPECT_EQ(without.error().code(), Code::kUnavailable);
  fs::create_directories(root_ / "sys/bus/pci/devices");
  const auto none = read();
  ASSERT_TRUE(none) << none.error().full_message();
  EXPECT_TRUE(none->gpus.empty());
}

TEST(PciNames, AreThoseOfTheDatabase) {
  EXPECT_EQ(pci_gpu_name(0x1eb8), "TU104GL [Tesla T4]");
  EXPECT_EQ(pci_gpu_name(0x20b5), "GA100 [A100 PCIe 80GB]");
  EXPECT_EQ(pci_gpu_name(0x31c2), "GB110 [GB300]");
  EXPECT_EQ(pci_gpu_name(0), "PCI device 10de-0000");
  EXPECT_EQ(pci_gpu_name(0xffff), "PCI device 10de-ffff");
}

}  // namespace
}  // namespace gpulet::inventory
