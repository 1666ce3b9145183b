// Adds up the energy and busy time that each Pod has used of a device since the agent started. Pods, departed
// Pods and the unattributed rest always add up to the device, to the millijoule and nanosecond. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "base/types.h"
#include "metrics/attribution.h"
#include "metrics/fields.h"

namespace gpulet::metrics {

struct UsageAmount {
  std::uint64_t millijoules = 0;
  std::chrono::nanoseconds busy{};
  friend bool operator==(const UsageAmount&, const UsageAmount&) = default;
};

class UsageAccounting {
 public:
  struct DeviceUsage {
    std::map<PodName, UsageAmount> pods;  // current holders
    UsageAmount departed;                 // of former holders
    UsageAmount unattributed;
    UsageAmount total;  // of all
  };

  // Adds the device's usage since the last sample, divided by `shares`. Energy follows busy time: a Pod alone
  // on a device is also charged with idle energy; with several Pods idle energy is unattributed. If the busy
  // time of each Pod is unknown, everything is unattributed.
  void add_usage(const DeviceUuid& uuid, const UsageAmount& device, const PodShares& shares);
  // Drops all devices but these.
  void retain_devices(const std::vector<DeviceUuid>& devices);

  const std::map<DeviceUuid, DeviceUsage>& usage_by_device() const { return usage_by_device_; }

 private:
  std::map<DeviceUuid, DeviceUsage> usage_by_device_;
};

// The Pod shares of each GPU, or in MIG mode each MIG device, that answered, held or not. A MIG device that
// shares its GPU instance has the memory that its processes hold.
std::map<DeviceUuid, PodShares> attribute_sample(const Sample& sample, const Holders& holders,
                                                 const PodByPid& pods);

// The last value of each GPU's energy counter.
using EnergyCounters = std::map<DeviceUuid, std::uint64_t>;

// The usage of each device in the time `since` the last sample: busy time from `sample`, energy from the
// difference to `counters`, which is updated. Only GPUs have energy; in MIG mode only MIG devices have busy
// time.
std::map<DeviceUuid, UsageAmount> usage_since_last_sample(const Sample& sample,
                                                          std::chrono::nanoseconds since,
                                                          EnergyCounters& counters);

}  // namespace gpulet::metrics
