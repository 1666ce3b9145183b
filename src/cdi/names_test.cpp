#include "cdi/names.h"

#include <gtest/gtest.h>

namespace gpulet::cdi {
namespace {

TEST(Names, OfGpusAndMigDevices) {
  inventory::Gpu gpu;
  gpu.index = 3;
  gpu.uuid = DeviceUuid("GPU-a");
  inventory::MigDevice mig;
  mig.index = 1;
  mig.uuid = DeviceUuid("MIG-b");
  EXPECT_EQ(gpu_name(NameStrategy::kIndex, gpu), "3");
  EXPECT_EQ(gpu_name(NameStrategy::kTypeIndex, gpu), "gpu3");
  EXPECT_EQ(gpu_name(NameStrategy::kUuid, gpu), "GPU-a");
  EXPECT_EQ(mig_name(NameStrategy::kIndex, gpu, mig), "3:1");
  EXPECT_EQ(mig_name(NameStrategy::kTypeIndex, gpu, mig), "mig3:1");
  EXPECT_EQ(mig_name(NameStrategy::kUuid, gpu, mig), "MIG-b");
  EXPECT_EQ(qualified_name("nvidia.com/gpu", "3"), "nvidia.com/gpu=3");
}

TEST(Names, Strategies) {
  EXPECT_EQ(*parse_name_strategy("index"), NameStrategy::kIndex);
  EXPECT_EQ(*parse_name_strategy("uuid"), NameStrategy::kUuid);
  EXPECT_EQ(*parse_name_strategy("type-index"), NameStrategy::kTypeIndex);
  EXPECT_EQ(parse_name_strategy("Index").error().code(), Code::kInvalidArgument);
}

TEST(Names, WhatTheCdiAllows) {
  for (const char* good : {"nvidia.com", "a", "k8s.device-plugin.nvidia.com", "a_1"}) {
    EXPECT_TRUE(check_vendor(good)) << good;
    EXPECT_TRUE(check_class(good)) << good;
  }
  for (const char* bad : {"", "1a", ".a", "a-", "a/b", "a b", "a:b", "\xc3\xa4"}) {
    EXPECT_FALSE(check_vendor(bad)) << bad;
    EXPECT_FALSE(check_class(bad)) << bad;
  }
  for (const char* good : {"0", "0:1", "mig0:1", "GPU-1.2_3"}) EXPECT_TRUE(check_device_name(good)) << good;
  for (const char* bad : {"", ":1", "0:", "a=b", "a/b", "a b"}) EXPECT_FALSE(check_device_name(bad)) << bad;
}

}  // namespace
}  // namespace gpulet::cdi
