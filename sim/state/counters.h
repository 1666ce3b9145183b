// Counters that grow while a GPU works: energy and data over NVLink. The state has their value at a time and
// what they grow by since then, so that nothing has to run in between.
#pragma once

#include <cstdint>

#include "sim/state/state.h"

namespace gpulet::sim {

// Energy used since the driver was loaded, in mJ, `now_ns` on CLOCK_MONOTONIC.
std::uint64_t energy_millijoules(const Gpu& gpu, std::uint64_t now_ns);
// Sets the power draw from now on; energy until now counts at the old draw.
void set_power_usage(Gpu& gpu, std::int32_t milliwatts, std::uint64_t now_ns);

// Data over a link of `gpu` since the driver was loaded, in KiB, `now_ns` on CLOCK_MONOTONIC.
struct LinkTraffic {
  std::uint64_t transmitted_kib = 0, received_kib = 0;
};
LinkTraffic link_traffic(const Gpu& gpu, const NvLink& link, std::uint64_t now_ns);
// Sets the load of all active links from now on, in percent; data until now counts at the old load. Call it
// with the same load before a link goes up or down.
void set_links_load(Gpu& gpu, std::uint32_t percent, std::uint64_t now_ns);

}  // namespace gpulet::sim
