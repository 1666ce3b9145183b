#include "inventory/mig_minors.h"

#include <gtest/gtest.h>

namespace gpulet::inventory {
namespace {

TEST(MigMinors, ReadsWhatTheDriverWrites) {
  const auto minors = parse_mig_minors(
      "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu0/gi1/access "
      "12\ngpu0/gi1/ci0/access 13\n"
      "gpu0/gi1/ci1/access 14\ngpu12/gi3/access 1700\n");
  ASSERT_TRUE(minors) << minors.error().text();
  EXPECT_EQ(minors->size(), 8u);
  EXPECT_EQ(minors->config(), 1u);
  EXPECT_EQ(minors->monitor(), 2u);
  EXPECT_EQ(minors->gpu_instance(0, 0), 3u);
  EXPECT_EQ(minors->gpu_instance(12, 3), 1700u);
  EXPECT_EQ(minors->compute_instance(0, 1, 1), 14u);
  EXPECT_FALSE(minors->gpu_instance(1, 0));
  EXPECT_FALSE(minors->compute_instance(12, 3, 0));
  EXPECT_FALSE(minors->compute_instance(0, 0xFFFFFFFF, 0xFFFFFFFF));
}

TEST(MigMinors, NamesTheTwoNodesOfADevice) {
  const auto minors = parse_mig_minors("gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi2/access 21\n");
  ASSERT_TRUE(minors);
  EXPECT_EQ(mig_device_nodes(*minors, 0, 1, 0),
            (std::vector<std::string>{"/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"}));
  EXPECT_TRUE(mig_device_nodes(*minors, 0, 2, 0).empty());
  EXPECT_TRUE(mig_device_nodes(MigMinors{}, 0, 1, 0).empty());
}

TEST(MigMinors, PassesOverNamesOfOtherForms) {
  const auto minors = parse_mig_minors(
      "\nfuture 7\ngpu0/gi0/vgpu0/access 8\ngpux/gi0/access 9\ngpu0/gi99999/access 10\nconfig 1");
  ASSERT_TRUE(minors) << minors.error().text();
  EXPECT_EQ(minors->size(), 1u);
  EXPECT_TRUE(parse_mig_minors("")->empty());
}

TEST(MigMinors, RefusesWhatIsNoLineOfIt) {
  EXPECT_EQ(parse_mig_minors("config 1\ngpu0/gi0/access\n").error().text(),
            "mig-minors: line 2: a name without a minor number");
  for (const auto* bad :
       {"config x", "config -1", "config 1 2", "config 1048576", "config 99999999999999999999"}) {
    EXPECT_EQ(parse_mig_minors(bad).error().text(), "mig-minors: line 1: no minor number after the name")
        << bad;
  }
  EXPECT_EQ(parse_mig_minors("config 1\nmonitor 2\nconfig 3\n").error().text(),
            "mig-minors: one name has both minor 1 and 3");
}

}  // namespace
}  // namespace gpulet::inventory
