#include "sim/state/counters.h"

#include <gtest/gtest.h>

namespace gpulet::sim {
namespace {

TEST(Energy, CountsEachDrawForItsTime) {
  Gpu gpu{};
  gpu.energy_since_ns = 1'000'000'000;
  gpu.power_usage_mw = 100'000;
  set_power_usage(gpu, 300'000, 3'000'000'000);
  EXPECT_EQ(energy_millijoules(gpu, 4'000'000'000), 2 * 100'000u + 300'000u);
}

TEST(LinkTraffic, GrowsWithTheLoadOfActiveLinks) {
  Gpu gpu{};
  for (const unsigned link : {0u, 1u}) {
    gpu.links[link].present = 1;
    gpu.links[link].speed_mbps = 2048;
  }
  gpu.links[0].active = 1;
  gpu.links[0].received_kib = 5;
  const auto transmitted = [&](unsigned link, std::uint64_t now_ns) {
    return link_traffic(gpu, gpu.links[link], now_ns).transmitted_kib;
  };
  EXPECT_EQ(transmitted(0, 9'000'000'000), 0u) << "without a load";
  set_links_load(gpu, 100, 1'000'000'000);
  EXPECT_EQ(transmitted(0, 2'000'000'000), 1'000'000u) << "half of the speed";
  EXPECT_EQ(transmitted(1, 2'000'000'000), 0u) << "it is down";
  set_links_load(gpu, 50, 3'000'000'000);
  EXPECT_EQ(transmitted(0, 4'000'000'000), 2'500'000u);
  EXPECT_EQ(link_traffic(gpu, gpu.links[0], 4'000'000'000).received_kib, 2'500'005u);
  set_links_load(gpu, 0, 4'000'000'000);
  EXPECT_EQ(transmitted(0, 9'000'000'000), 2'500'000u);
}

}  // namespace
}  // namespace gpulet::sim
