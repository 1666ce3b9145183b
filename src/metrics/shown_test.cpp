#include "metrics/shown.h"

#include <gtest/gtest.h>

namespace gpulet::metrics {
namespace {

Shown shown(std::string_view text) {
  auto parsed = Shown::parse(text, "--metrics-devices");
  EXPECT_TRUE(parsed) << parsed.error().text();
  return parsed.value_or(Shown());
}

TEST(Shown, ByDefaultAGpuOrItsInstances) {
  EXPECT_EQ(shown("f"), Shown());
  EXPECT_TRUE(Shown().gpu(3, false));
  EXPECT_FALSE(Shown().gpu(3, true));
  EXPECT_TRUE(Shown().instance(7));
}

TEST(Shown, GpusAlsoInMigMode) {
  const auto all = shown("g");
  EXPECT_TRUE(all.gpu(0, false) && all.gpu(15, true));
  EXPECT_FALSE(all.instance(0));
  const auto some = shown("g:0,2-4");
  for (const unsigned index : {0u, 2u, 3u, 4u}) EXPECT_TRUE(some.gpu(index, false)) << index;
  for (const unsigned index : {1u, 5u}) EXPECT_FALSE(some.gpu(index, false)) << index;
}

TEST(Shown, InstancesAlone) {
  const auto all = shown("i");
  EXPECT_TRUE(all.instance(13));
  EXPECT_FALSE(all.gpu(0, false) || all.gpu(0, true));
  const auto some = shown("i:1,3-5");
  EXPECT_TRUE(some.instance(1) && some.instance(4));
  EXPECT_FALSE(some.instance(2) || some.instance(6));
}

TEST(Shown, WhatIsNoneIsSaid) {
  for (const char* text :
       {"", "x", "F", "f:0", "g:", "g0", "g:0,", "g:a", "g:3-1", "g:1-2-3", "i:-1", "g:99999", "g+i"})
    EXPECT_FALSE(Shown::parse(text, "--metrics-devices")) << text;
  EXPECT_EQ(
      Shown::parse("gpu", "--metrics-devices").error().text(),
      "--metrics-devices: 'gpu' names no devices: f, g or i, or with numbers g:0,2-4 or i:1,3-5 would do");
}

}  // namespace
}  // namespace gpulet::metrics
