#include "agent/driver/driver_rights.h"

#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process.h"
#include "base/test_capabilities.h"

namespace gpulet::agent {
namespace {

using testing::HasSubstr;

inventory::Snapshot snapshot_with(bool mig) {
  inventory::Snapshot snapshot;
  inventory::Gpu gpu;
  gpu.uuid = DeviceUuid("GPU-a");
  gpu.pci.bus = 0x1b;
  gpu.mig_enabled = mig;
  snapshot.gpus.push_back(gpu);
  return snapshot;
}

config::Config config_with_labels() {
  config::Config config;
  config.gpulet.labels.outputs = {config::LabelOutput::kNode};
  return config;
}

RightsEvidence no_evidence_of_rights() {
  return {.sys_admin = false,
          .monitor_refusal = "/dev/nvidia-caps/nvidia-cap2: Operation not permitted",
          .config_refusal = "/dev/nvidia-caps/nvidia-cap1: No such file or directory",
          .memory_refusal = {},
          .cut_pci_config = "/sys/bus/pci/devices/0000:1b:00.0/config"};
}

std::vector<DriverRight> rights_of(const std::vector<MissingRight>& missing) {
  std::vector<DriverRight> rights;
  for (const auto& one : missing) rights.push_back(one.right);
  return rights;
}

TEST(MissingRights, OnlyThoseThatAreNeeded) {
  using enum DriverRight;
  const auto evidence = no_evidence_of_rights();
  const auto config = config_with_labels();
  const auto rights = [&](bool mig, bool changes, const config::Config& of) {
    return rights_of(missing_rights(evidence, of, snapshot_with(mig), changes));
  };
  EXPECT_EQ(rights(true, true, config), (std::vector{kMigMonitor, kMigConfig, kPciConfig}));
  EXPECT_EQ(rights(false, true, config), (std::vector{kMigConfig, kPciConfig}));
  EXPECT_EQ(rights(true, false, config), (std::vector{kMigMonitor, kPciConfig}));
  config::Config unlabelled;
  unlabelled.gpulet.labels.outputs.clear();
  EXPECT_EQ(rights(false, false, unlabelled), std::vector<DriverRight>());
}

TEST(MissingRights, AnAdministratorLacksNone) {
  auto evidence = no_evidence_of_rights();
  evidence.sys_admin = true;
  EXPECT_TRUE(missing_rights(evidence, config_with_labels(), snapshot_with(true), true).empty());
}

TEST(MissingRights, NodesReplaceTheCapabilityButNotForTheMode) {
  const auto missing = missing_rights({}, config_with_labels(), snapshot_with(true), true);
  ASSERT_EQ(rights_of(missing), std::vector{DriverRight::kMigMode});
  EXPECT_EQ(missing[0].message(),
            "no CAP_SYS_ADMIN: the MIG mode of a GPU is not changed; it needs CAP_SYS_ADMIN");
}

TEST(MissingRights, TheDriversAnswerIsEvidenceWhereTheNodeIsNotKnown) {
  RightsEvidence evidence{.memory_refusal = "nvmlDeviceGetMemoryInfo returned NO_PERMISSION"};
  const auto missing = missing_rights(evidence, config_with_labels(), snapshot_with(true), false);
  ASSERT_EQ(rights_of(missing), std::vector{DriverRight::kMigMonitor});
  EXPECT_THAT(missing[0].message(), HasSubstr("nvmlDeviceGetMemoryInfo returned NO_PERMISSION"));
  EXPECT_THAT(missing[0].message(), HasSubstr("no XIDs of MIG instances"));
  EXPECT_THAT(missing[0].message(), HasSubstr("NVIDIA_MIG_MONITOR_DEVICES"));
}

// A driver root with the nodes of the MIG capabilities.
class RightsEvidenceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_capability(CAP_MKNOD)) GTEST_SKIP() << "needs CAP_MKNOD";
    char directory[] = "/tmp/gpulet-rights-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    root_ = directory;
    config_.flags.container_driver_root = root_;
    for (const char* const made : {"/dev/nvidia-caps", "/proc/driver/nvidia-caps", "/proc/driver/nvidia",
                                   "/sys/bus/pci/devices/0000:1b:00.0"})
      std::filesystem::create_directories(root_ + made);
    std::ofstream(root_ + "/proc/driver/nvidia-caps/mig-minors") << "config 1\nmonitor 2\n";
    add_node("/dev/nvidiactl", 195, 255);
    add_node("/dev/nvidia-caps/nvidia-cap1", 506, 1);
    add_node("/dev/nvidia-caps/nvidia-cap2", 506, 2);
    write_pci_config(256);
  }
  void TearDown() override {
    if (!root_.empty()) std::filesystem::remove_all(root_);
  }

  void add_node(const std::string& path, unsigned major, unsigned minor) const {
    ASSERT_EQ(::mknod((root_ + path).c_str(), S_IFCHR | 0444, makedev(major, minor)), 0);
  }
  void write_pci_config(std::size_t bytes) const {
    std::ofstream(root_ + "/sys/bus/pci/devices/0000:1b:00.0/config") << std::string(bytes, 'x');
  }
  // Without CAP_SYS_ADMIN.
  RightsEvidence collect() const {
    RightsEvidence evidence;
    run_without_capability(CAP_SYS_ADMIN,
                           [&] { evidence = collect_rights_evidence(config_, snapshot_with(true)); });
    return evidence;
  }

  std::string root_;
  config::Config config_;
};

TEST_F(RightsEvidenceTest, NodesThatOpenAreRights) {
  const auto evidence = collect();
  EXPECT_FALSE(evidence.sys_admin);
  EXPECT_EQ(evidence.monitor_refusal, std::nullopt);
  EXPECT_EQ(evidence.config_refusal, std::nullopt);
  EXPECT_EQ(evidence.cut_pci_config, "");
  if (has_capability(CAP_SYS_ADMIN)) {
    EXPECT_TRUE(collect_rights_evidence(config_, snapshot_with(true)).sys_admin);
  }
}

TEST_F(RightsEvidenceTest, MissingNodesAndACutPciConfigAreNamed) {
  std::filesystem::remove_all(root_ + "/dev/nvidia-caps");
  write_pci_config(64);
  const auto evidence = collect();
  ASSERT_TRUE(evidence.monitor_refusal);
  EXPECT_THAT(*evidence.monitor_refusal, HasSubstr("nvidia-cap2"));
  ASSERT_TRUE(evidence.config_refusal);
  EXPECT_THAT(*evidence.config_refusal, HasSubstr("nvidia-cap1"));
  // A machine that is certainly no virtual one has no labels to miss.
  EXPECT_THAT(evidence.cut_pci_config,
              testing::AnyOf("", root_ + "/sys/bus/pci/devices/0000:1b:00.0/config"));
  std::filesystem::remove(root_ + "/proc/driver/nvidia-caps/mig-minors");
  EXPECT_EQ(collect().monitor_refusal, std::nullopt) << "not known, so not claimed";
}

}  // namespace
}  // namespace gpulet::agent
