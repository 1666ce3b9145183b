#include "metrics/usage.h"

#include <algorithm>

namespace gpulet::metrics {
namespace {

constexpr double kWhole = 100;

std::optional<std::uint64_t> count(const Values& values, Field field) {
  const auto found = values.find(field);
  const auto* whole = found == values.end() ? nullptr : std::get_if<std::uint64_t>(&found->second);
  return whole == nullptr ? std::nullopt : std::optional(*whole);
}

// In percent.
double busy_of(const Values& values, bool instance) {
  const double busy = instance ? number(values, Field::kGraphicsActive).value_or(0) * kWhole
                               : number(values, Field::kGpuUtil).value_or(0);
  return std::clamp(busy, 0.0, kWhole);
}

Bytes held(const std::vector<ProcessSample>& processes) {
  Bytes sum;
  for (const auto& process : processes) sum.value += process.memory.value_or(Bytes{}).value;
  return sum;
}

std::chrono::nanoseconds part(std::chrono::nanoseconds whole, double percent) {
  return std::chrono::nanoseconds(
      static_cast<std::chrono::nanoseconds::rep>(static_cast<double>(whole.count()) * percent / kWhole));
}

}  // namespace

std::map<DeviceUuid, Shares> shares_of(const Sample& sample, const Holders& holders,
                                       const PodOfProcess& pods) {
  std::map<DeviceUuid, Shares> all;
  const auto add = [&](const DeviceUuid& device, const DeviceUse& use) {
    const auto found = holders.find(device);
    all[device] = attribute(use, found == holders.end() ? std::span<const Holder>() : found->second, pods);
  };
  for (const auto& gpu : sample.gpus) {
    if (gpu.failed) continue;
    if (!gpu.mig) {
      const Bytes used = mebibytes(count(gpu.values, Field::kFbUsed).value_or(0));
      add(gpu.uuid, {used, busy_of(gpu.values, false), gpu.times, gpu.processes});
      continue;
    }
    for (const auto& instance : gpu.instances) {
      const Bytes used = mebibytes(count(instance.values, Field::kFbUsed).value_or(0));
      const bool alone = instance.devices.size() == 1;
      for (const auto& device : instance.devices) {
        add(device.uuid, {alone ? used : std::min(used, held(device.processes)),
                          alone ? busy_of(instance.values, true) : 0, false, device.processes});
      }
    }
  }
  return all;
}

std::map<DeviceUuid, Charge> charges_of(const Sample& sample, std::chrono::nanoseconds since,
                                        EnergyCounters& counters) {
  std::map<DeviceUuid, Charge> all;
  for (const auto& gpu : sample.gpus) {
    if (gpu.failed) continue;
    auto& charge = all[gpu.uuid];
    if (const auto energy = count(gpu.values, Field::kEnergy)) {
      const auto before = counters.find(gpu.uuid);
      // Less than before: the driver was loaded anew.
      if (before != counters.end() && *energy >= before->second)
        charge.millijoules = *energy - before->second;
      counters[gpu.uuid] = *energy;
    }
    if (!gpu.mig) {
      charge.busy = part(since, busy_of(gpu.values, false));
      continue;
    }
    for (const auto& instance : gpu.instances) {
      const bool alone = instance.devices.size() == 1;
      for (const auto& device : instance.devices)
        all[device.uuid].busy =
            alone ? part(since, busy_of(instance.values, true)) : std::chrono::nanoseconds{};
    }
  }
  std::erase_if(counters, [&](const auto& one) {
    return std::none_of(sample.gpus.begin(), sample.gpus.end(),
                        [&](const GpuSample& gpu) { return gpu.uuid == one.first; });
  });
  return all;
}

}  // namespace gpulet::metrics
