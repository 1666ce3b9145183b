#include "metrics/usage_accounting.h"

#include <algorithm>

namespace gpulet::metrics {
namespace {

void move(UsageAmount& from, UsageAmount& to, const UsageAmount& what) {
  from.millijoules -= what.millijoules;
  from.busy -= what.busy;
  to.millijoules += what.millijoules;
  to.busy += what.busy;
}

// The fraction of `whole`, at most `left`.
UsageAmount part_of(const UsageAmount& whole, double fraction, const UsageAmount& left) {
  const auto part = [&](std::uint64_t all, std::uint64_t most) {
    return std::min(most,
                    static_cast<std::uint64_t>(static_cast<double>(all) * std::clamp(fraction, 0.0, 1.0)));
  };
  return {part(whole.millijoules, left.millijoules),
          std::chrono::nanoseconds(part(static_cast<std::uint64_t>(whole.busy.count()),
                                        static_cast<std::uint64_t>(left.busy.count())))};
}

}  // namespace

void UsageAccounting::add_usage(const DeviceUuid& uuid, const UsageAmount& device, const PodShares& shares) {
  auto& account = usage_by_device_[uuid];
  account.total.millijoules += device.millijoules;
  account.total.busy += device.busy;
  double whole = shares.unattributed_busy;
  for (const auto& pod : shares.pods) whole += pod.busy;
  UsageAmount left = device;
  std::map<PodName, UsageAmount> pods;
  for (const auto& pod : shares.pods) {
    auto& charge = pods[pod.holder.pod];
    if (const auto before = account.pods.find(pod.holder.pod); before != account.pods.end()) {
      charge = before->second;
      account.pods.erase(before);
    }
    const double idle = shares.pods.size() == 1 ? 1 : 0;
    const double fraction = !shares.is_busy_known ? 0 : whole > 0 ? pod.busy / whole : idle;
    move(left, charge, part_of(device, fraction, left));
  }
  for (auto& [pod, charge] : account.pods) move(charge, account.departed, UsageAmount(charge));
  account.pods = std::move(pods);
  move(left, account.unattributed, UsageAmount(left));
}

void UsageAccounting::retain_devices(const std::vector<DeviceUuid>& devices) {
  std::erase_if(usage_by_device_, [&](const auto& one) {
    return std::find(devices.begin(), devices.end(), one.first) == devices.end();
  });
}

namespace {

constexpr double kWhole = 100;

std::optional<std::uint64_t> unsigned_field(const Values& values, Field field) {
  const auto found = values.find(field);
  const auto* whole = found == values.end() ? nullptr : std::get_if<std::uint64_t>(&found->second);
  return whole == nullptr ? std::nullopt : std::optional(*whole);
}

// In percent.
double busy_of(const Values& values, bool instance) {
  const double busy = instance ? numeric_field(values, Field::kGraphicsActive).value_or(0) * kWhole
                               : numeric_field(values, Field::kGpuUtil).value_or(0);
  return std::clamp(busy, 0.0, kWhole);
}

Bytes total_memory(const std::vector<ProcessSample>& processes) {
  Bytes sum;
  for (const auto& process : processes) sum.value += process.memory.value_or(Bytes{}).value;
  return sum;
}

std::chrono::nanoseconds fraction_of(std::chrono::nanoseconds whole, double percent) {
  return std::chrono::nanoseconds(
      static_cast<std::chrono::nanoseconds::rep>(static_cast<double>(whole.count()) * percent / kWhole));
}

}  // namespace

std::map<DeviceUuid, PodShares> attribute_sample(const Sample& sample, const Holders& holders,
                                                 const PodByPid& pods) {
  std::map<DeviceUuid, PodShares> all;
  const auto add = [&](const DeviceUuid& device, const DeviceActivity& use) {
    const auto found = holders.find(device);
    all[device] = attribute(use, found == holders.end() ? std::span<const Holder>() : found->second, pods);
  };
  for (const auto& gpu : sample.gpus) {
    if (gpu.error) continue;
    if (!gpu.mig) {
      const Bytes used = mebibytes(unsigned_field(gpu.values, Field::kFbUsed).value_or(0));
      add(gpu.uuid, {used, busy_of(gpu.values, false), gpu.has_process_times, gpu.processes});
      continue;
    }
    for (const auto& instance : gpu.instances) {
      const Bytes used = mebibytes(unsigned_field(instance.values, Field::kFbUsed).value_or(0));
      const bool alone = instance.devices.size() == 1;
      for (const auto& device : instance.devices) {
        add(device.uuid, {alone ? used : std::min(used, total_memory(device.processes)),
                          alone ? busy_of(instance.values, true) : 0, false, device.processes});
      }
    }
  }
  return all;
}

std::map<DeviceUuid, UsageAmount> usage_since_last_sample(const Sample& sample,
                                                          std::chrono::nanoseconds since,
                                                          EnergyCounters& counters) {
  std::map<DeviceUuid, UsageAmount> all;
  for (const auto& gpu : sample.gpus) {
    if (gpu.error) continue;
    auto& charge = all[gpu.uuid];
    if (const auto energy = unsigned_field(gpu.values, Field::kEnergy)) {
      const auto before = counters.find(gpu.uuid);
      // Lower than before: the driver was reloaded.
      if (before != counters.end() && *energy >= before->second)
        charge.millijoules = *energy - before->second;
      counters[gpu.uuid] = *energy;
    }
    if (!gpu.mig) {
      charge.busy = fraction_of(since, busy_of(gpu.values, false));
      continue;
    }
    for (const auto& instance : gpu.instances) {
      const bool alone = instance.devices.size() == 1;
      for (const auto& device : instance.devices)
        all[device.uuid].busy =
            alone ? fraction_of(since, busy_of(instance.values, true)) : std::chrono::nanoseconds{};
    }
  }
  std::erase_if(counters, [&](const auto& one) {
    return std::none_of(sample.gpus.begin(), sample.gpus.end(),
                        [&](const GpuSample& gpu) { return gpu.uuid == one.first; });
  });
  return all;
}

}  // namespace gpulet::metrics
