#include "sim/state/counters.h"

namespace gpulet::sim {

std::uint64_t energy_millijoules(const Gpu& gpu, std::uint64_t now_ns) {
  if (gpu.power_usage_mw <= 0 || now_ns <= gpu.energy_since_ns) return gpu.energy_mj;
  const std::uint64_t elapsed_us = (now_ns - gpu.energy_since_ns) / 1000;
  return gpu.energy_mj + elapsed_us * static_cast<std::uint64_t>(gpu.power_usage_mw) / 1'000'000;
}

void set_power_usage(Gpu& gpu, std::int32_t milliwatts, std::uint64_t now_ns) {
  gpu.energy_mj = energy_millijoules(gpu, now_ns);
  gpu.energy_since_ns = now_ns;
  gpu.power_usage_mw = milliwatts;
}

LinkTraffic link_traffic(const Gpu& gpu, const NvLink& link, std::uint64_t now_ns) {
  LinkTraffic traffic{link.transmitted_kib, link.received_kib};
  if (link.active == 0 || now_ns <= gpu.links_since_ns) return traffic;
  // MB/s over microseconds are bytes; half of the speed at 100 percent.
  const std::uint64_t elapsed_us = (now_ns - gpu.links_since_ns) / 1000;
  const std::uint64_t kib = elapsed_us * link.speed_mbps / 1024 * gpu.links_load / 200;
  traffic.transmitted_kib += kib;
  traffic.received_kib += kib;
  return traffic;
}

void set_links_load(Gpu& gpu, std::uint32_t percent, std::uint64_t now_ns) {
  for (NvLink& link : gpu.links) {
    const LinkTraffic traffic = link_traffic(gpu, link, now_ns);
    link.transmitted_kib = traffic.transmitted_kib;
    link.received_kib = traffic.received_kib;
  }
  gpu.links_since_ns = now_ns;
  gpu.links_load = percent;
}

}  // namespace gpulet::sim
