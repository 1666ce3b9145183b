#include "hook/requirements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpulet::hook {
namespace {

using testing::HasSubstr;

const HostProperties kHost{"535.161.08", "12.2", "8.0", "tesla"};

Status check_on_host(const std::string& expression, const HostProperties& host = kHost) {
  return check_requirements({"NVIDIA_REQUIRE_CUDA=" + expression}, host);
}

TEST(Requirements, ComparesVersionsPartByPart) {
  for (const char* holds :
       {"cuda>=12.2", "cuda>=12", "cuda>12.1", "cuda<12.10", "cuda<=12.2", "cuda=12.2", "cuda=12.2.0",
        "cuda!=12.1", "driver>=535", "driver<536", "driver>=535.104", "driver<535.1000", "arch>=7.5",
        "brand=tesla", "brand=Tesla", "brand!=geforce", "CUDA>=12.0", ""})
    EXPECT_TRUE(check_on_host(holds)) << holds;
  for (const char* fails : {"cuda>=12.3", "cuda>12.2", "cuda<12.2", "cuda!=12.2", "cuda=12", "driver>=536",
                            "arch>=8.6", "brand=geforce", "brand!=tesla"})
    EXPECT_EQ(check_on_host(fails).error().code(), Code::kFailedPrecondition) << fails;
}

TEST(Requirements, SpacesMeanOrAndCommasMeanAnd) {
  const std::string image =
      "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=535,driver<536 "
      "brand=unknown,driver>=535";
  EXPECT_TRUE(check_on_host(image));
  EXPECT_FALSE(check_on_host(image, {"545.23.06", "12.3", "8.0", "tesla"}));
  EXPECT_FALSE(check_on_host(image, {"535.161.08", "12.2", "8.9", "geforce"}));
  EXPECT_TRUE(check_on_host(image, {"555.42.02", "12.5", "8.9", "geforce"}));
  EXPECT_TRUE(check_on_host("  cuda>=99   cuda>=11 , "));
  EXPECT_FALSE(check_on_host("cuda>=11,,cuda>=13"));
}

TEST(Requirements, IgnoreUnknownHostProperties) {
  EXPECT_TRUE(check_on_host("cuda>=99 driver>=999", {}));
  EXPECT_TRUE(check_on_host("brand=geforce,arch>=9.0", {"535.1", "12.2", "", ""}));
  EXPECT_TRUE(check_on_host("jetpack>=6"));
  EXPECT_FALSE(check_on_host("jetpack>=6,cuda>=13"));
}

TEST(Requirements, ReportTheNeededDriver) {
  const auto checked = check_on_host("cuda>=12.4 brand=tesla,driver>=470,driver<471");
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().full_message(),
            "the image needs cuda>=12.4 brand=tesla,driver>=470,driver<471 (NVIDIA_REQUIRE_CUDA), but this "
            "node has driver "
            "535.161.08, which supports CUDA 12.2, compute capability 8.0, brand tesla: update the node to "
            "driver 550 or newer "
            "(CUDA 12.4), use an image for an older CUDA, or set NVIDIA_DISABLE_REQUIRE=1 for the container");
  EXPECT_THAT(check_on_host("cuda>=14.7").error().full_message(),
              HasSubstr("a driver that supports CUDA 14.7"));
  EXPECT_THAT(check_on_host("arch>=9.0").error().full_message(), HasSubstr("use another node"));
  EXPECT_EQ(driver_branch_for("11.4"), "470");
  EXPECT_EQ(driver_branch_for("13.1"), "590");
  EXPECT_EQ(driver_branch_for("12.0"), "525");
  EXPECT_EQ(driver_branch_for("x"), "");
}

TEST(Requirements, CheckAllVariablesOfThePrefix) {
  EXPECT_FALSE(
      check_requirements({"NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_REQUIRE_DRIVER=driver>=550"}, kHost));
  EXPECT_TRUE(check_requirements({"NVIDIA_REQUIRE_JETPACK_HOST_MOUNTS=base-only"}, kHost));
  EXPECT_TRUE(check_requirements({"NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_REQUIRE_CUDA=cuda>=12.0"}, kHost))
      << "the later is the process's";
}

TEST(Requirements, CanBeDisabled) {
  for (const char* on : {"1", "true", "T", "TRUE"})
    EXPECT_TRUE(check_requirements(
        {"NVIDIA_REQUIRE_CUDA=cuda>=99", std::string("NVIDIA_DISABLE_REQUIRE=") + on}, kHost));
  for (const char* off : {"", "0", "false", "yes"})
    EXPECT_FALSE(check_requirements(
        {"NVIDIA_REQUIRE_CUDA=cuda>=99", std::string("NVIDIA_DISABLE_REQUIRE=") + off}, kHost));
}

TEST(Requirements, UseCudaVersionOfOldImages) {
  EXPECT_FALSE(check_requirements({"CUDA_VERSION=12.4.1"}, kHost));
  EXPECT_THAT(check_requirements({"CUDA_VERSION=12.4.1"}, kHost).error().full_message(),
              HasSubstr("needs cuda>=12.4 (CUDA_VERSION)"));
  EXPECT_TRUE(check_requirements({"CUDA_VERSION=12.2.9"}, kHost)) << "the last number does not count";
  EXPECT_TRUE(check_requirements({"CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.0"}, kHost));
  EXPECT_TRUE(check_requirements({"CUDA_VERSION=not a version"}, kHost));
}

TEST(Requirements, ReportSyntaxErrors) {
  for (const char* wrong : {"cuda", ">=12", "cuda>=", "cuda=>12", "cuda==12", "cuda>=12x", "cuda!12",
                            "brand>=tesla", "cuda>=12.2 nonsense"}) {
    const auto checked = check_on_host(wrong);
    ASSERT_FALSE(checked) << wrong;
    EXPECT_EQ(checked.error().code(), Code::kInvalidArgument) << wrong;
    EXPECT_THAT(checked.error().full_message(), HasSubstr("cannot parse the image's NVIDIA_REQUIRE_CUDA"));
  }
  EXPECT_FALSE(check_on_host(std::string(70'000, 'x')));
  EXPECT_EQ(check_on_host("\x1b[31m>=\n").error().full_message().find('\x1b'), std::string::npos);
  EXPECT_FALSE(check_requirements({"NVIDIA_REQUIRE_" + std::string(100'000, 'A') + "=x"}, kHost));
}

}  // namespace
}  // namespace gpulet::hook
