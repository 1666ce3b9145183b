// Adds up what each Pod has held and used of a device, and what each namespace has of all devices. Pods,
// departed Pods and the unattributed rest always add up to the device, to the millijoule and nanosecond. Kept
// over restarts by usage_record.h. Pure.
//
// A Pod holds a whole device, or the part of it that its shares are: k of n shares count k/n. If n is unknown
// (another device plugin serves the resource), the shares that Pods hold are all there are. Pods that hold
// the same device whole (by one claim) divide it equally.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "base/types.h"
#include "inventory/snapshot.h"
#include "metrics/attribution.h"
#include "metrics/fields.h"
#include "metrics/usage_record.h"

namespace gpulet::metrics {

// How Pods held a device between two samples.
struct HeldInterval {
  std::chrono::nanoseconds time{};    // of the interval; zero: unknown, or a GPU whose MIG devices count
  bool is_busy_measured = false;      // else nobody's time counts as idle
  double gpu_part = 1;                // the part of its GPU that a MIG device is
  std::map<PodName, double> parts{};  // of the device, at most one in all
};

// More namespaces are summed up as one, whose name no namespace can have.
inline constexpr std::size_t kMaxUsageNamespaces = 256;
inline constexpr const char* kOtherNamespaces = "(other)";

class UsageAccounting {
 public:
  struct DeviceUsage {
    std::map<PodName, UsageAmount> pods;  // current holders
    UsageAmount departed;                 // of former holders
    UsageAmount unattributed;             // `held`: time in which no Pod held it
    UsageAmount total;                    // of all
    double gpu_part = 1;                  // as in HeldInterval
    std::map<PodName, double> parts{};    // as in HeldInterval, of the last interval
  };

  // Adds the device's usage since the last sample, divided by `shares`. Energy follows busy time: a Pod alone
  // on a device is also charged with idle energy; with several Pods idle energy is unattributed. If the busy
  // time of each Pod is unknown, everything is unattributed. A Pod is idle in the time that it held and did
  // not use, where that is known.
  void add_usage(const DeviceUuid& uuid, const UsageAmount& device, const PodShares& shares,
                 const HeldInterval& held = {});
  // The same while the holders are not known yet: the Pods of a restored record stay.
  void add_unattributed(const DeviceUuid& uuid, const UsageAmount& device);
  // Drops all devices but these. What namespaces used of them stays.
  void retain_devices(const std::vector<DeviceUuid>& devices);

  const std::map<DeviceUuid, DeviceUsage>& usage_by_device() const { return usage_by_device_; }
  // In GPUs: a MIG device counts as its part of one. With departed Pods; "": what no Pod held or used. Values
  // only increase.
  const std::map<std::string, UsageAmount>& usage_by_namespace() const { return usage_by_namespace_; }

  // Changes with what a Pod has held or used.
  std::uint64_t revision() const { return revision_; }
  // Without energy counters, boot and begin.
  UsageRecord to_record() const;
  void restore_record(const UsageRecord& record);

 private:
  UsageAmount& namespace_usage(const std::string& name);

  std::map<DeviceUuid, DeviceUsage> usage_by_device_;
  std::map<std::string, UsageAmount> usage_by_namespace_;
  std::uint64_t revision_ = 0;
};

// What a Pod has of all devices, in GPUs.
struct PodUsage {
  double gpus = 0;  // held now
  UsageAmount used{};
};
std::map<PodName, PodUsage> usage_by_pod(const UsageAccounting& accounting);

// How many shares each resource has of a device, held or not, by the UUID in the ids.
using ShareCounts = std::map<ResourceName, std::map<std::string, std::size_t>>;
ShareCounts count_shares(const std::map<ResourceName, std::vector<DeviceId>>& devices);

// The part of the device that each holder has, at most one in all.
std::map<PodName, double> held_parts(const DeviceUuid& device, const std::vector<Holder>& holders,
                                     const ShareCounts& shares);
// In eighths of the GPU's memory, as MIG divides it: 1g.10gb of 80 GB is 0.125. 1 for another device.
double gpu_part_of(const DeviceUuid& device, const inventory::Snapshot& snapshot);
// Of the devices that answered.
std::map<DeviceUuid, HeldInterval> held_intervals(const Sample& sample, const inventory::Snapshot& snapshot,
                                                  const Holders& holders, const ShareCounts& shares,
                                                  std::chrono::nanoseconds since);

// The Pod shares of each GPU, or in MIG mode each MIG device, that answered, held or not. A MIG device that
// shares its GPU instance has the memory that its processes hold.
std::map<DeviceUuid, PodShares> attribute_sample(const Sample& sample, const Holders& holders,
                                                 const PodByPid& pods);

// The usage of each device in the time `since` the last sample: busy time from `sample`, energy from the
// difference to `counters`, which is updated. Only GPUs have energy; in MIG mode only MIG devices have busy
// time.
std::map<DeviceUuid, UsageAmount> usage_since_last_sample(const Sample& sample,
                                                          std::chrono::nanoseconds since,
                                                          EnergyCounters& counters);

}  // namespace gpulet::metrics
