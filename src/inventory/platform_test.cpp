#include "inventory/platform.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "base/file.h"

namespace gpulet::inventory {
namespace {

namespace fs = std::filesystem;

class Platform : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "platform_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& content) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    ASSERT_TRUE(write_file_atomic(root_ + path, content));
  }

  std::string root_;
};

TEST_F(Platform, IsFoundByItsFiles) {
  struct Case {
    const char* path;
    std::string content;
    std::optional<UnservedPlatform> platform;
  };
  const std::vector<Case> cases = {
      {"/dev/dxg", "", UnservedPlatform::kWsl},
      {"/etc/nv_tegra_release", "# R36 (release), REVISION: 4.3\n", UnservedPlatform::kTegra},
      {"/sys/devices/soc0/family", "Tegra\n", UnservedPlatform::kTegra},
      {"/sys/devices/soc0/family", "jep106:036b\n", std::nullopt},  // a Grace server
      {"/sys/firmware/devicetree/base/compatible", std::string("nvidia,p3737-0000\0nvidia,tegra234\0", 34),
       UnservedPlatform::kTegra},
      {"/sys/firmware/devicetree/base/compatible", std::string("raspberrypi,5\0brcm,bcm2712\0", 27),
       std::nullopt},
      {"/dev/nvidiactl", "", std::nullopt},
  };
  for (const auto& one : cases) {
    write(one.path, one.content);
    const auto found = find_unserved_platform({root_ + "/absent", root_});
    ASSERT_EQ(found.has_value(), one.platform.has_value()) << one.path << " " << one.content;
    if (found) {
      EXPECT_EQ(*found, (PlatformEvidence{*one.platform, one.path}));
      EXPECT_NE(platform_text(*found).find(one.path), std::string::npos);
    }
    fs::remove(root_ + one.path);
  }
  EXPECT_EQ(find_unserved_platform({}), std::nullopt);
}

TEST_F(Platform, TextsNameTheReasonAndWhatToUse) {
  const PlatformEvidence tegra{UnservedPlatform::kTegra, "/etc/nv_tegra_release"};
  EXPECT_EQ(
      platform_text(tegra),
      "this machine is Tegra (/etc/nv_tegra_release): gpulet does not support its integrated GPU, because "
      "NVML does not manage it");
  EXPECT_EQ(platform_advice(tegra), "use NVIDIA's device plugin on this node");
  const PlatformEvidence wsl{UnservedPlatform::kWsl, "/dev/dxg"};
  EXPECT_EQ(platform_text(wsl),
            "this machine is WSL 2 (/dev/dxg): gpulet does not support its GPUs in Kubernetes, because they "
            "have no device nodes of their own");
  EXPECT_NE(platform_advice(wsl).find("`gpulet cdi generate`"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::inventory
