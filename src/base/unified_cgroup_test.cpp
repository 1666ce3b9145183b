#include "base/unified_cgroup.h"

#include <gtest/gtest.h>

namespace gpulet {
namespace {

TEST(UnifiedCgroup, IsTheLineOfVersion2) {
  EXPECT_EQ(unified_cgroup("12:memory:/a\n0::/b:c\n"), "/b:c");
  EXPECT_EQ(unified_cgroup("12:memory:/a\n"), "");
  EXPECT_EQ(unified_cgroup(""), "");
}

}  // namespace
}  // namespace gpulet
