// A device as a ResourceSlice shows it, and its taints. Plain values.
//
// Source: resource.k8s.io/v1, Device, DeviceAttribute, DeviceCapacity, CapacityRequestPolicy, DeviceTaint,
// CounterSet
// (Kubernetes 1.36).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "health/state/device_status.h"

namespace gpulet::dra {

inline constexpr std::size_t kMaxAttributeBytes = 64;  // of a text or version
inline constexpr std::size_t kMaxTaints = 16;          // of one device

// Of whole GPUs; the second only of those that a count of claims shares.
inline constexpr const char* kMemoryCapacity = "memory";
inline constexpr const char* kSharesCapacity = "shares";

// Strict semantic version: "570.124.6".
struct Version {
  std::string text;
  friend auto operator<=>(const Version&, const Version&) = default;
};
using Attribute = std::variant<std::int64_t, bool, std::string, Version>;

enum class TaintEffect { kNone, kNoSchedule, kNoExecute };
std::string_view enum_name(TaintEffect effect);  // "NoSchedule"

struct DeviceTaint {
  std::string key;
  std::string value;
  TaintEffect effect = TaintEffect::kNone;
  // RFC 3339, set by the API server where it is empty.
  std::string time_added = {};
  friend auto operator<=>(const DeviceTaint&, const DeviceTaint&) = default;
};

// What a device takes of the counters of a set: the scheduler allocates only devices that fit in it together.
struct CounterUse {
  std::string set;
  std::map<std::string, std::uint64_t> counters;
  friend bool operator==(const CounterUse&, const CounterUse&) = default;
};
struct CounterSet {
  std::string name;
  std::map<std::string, std::uint64_t> counters;
  friend bool operator==(const CounterSet&, const CounterSet&) = default;
};

// How much of a capacity a claim takes of a device that several claims may have: its request, rounded up to a
// whole number of steps, from min to max.
struct RequestPolicy {
  std::uint64_t standard = 0;  // where the claim requests none of it
  std::uint64_t min = 0, max = 0;
  std::uint64_t step = 0;  // 0: any amount
  friend bool operator==(const RequestPolicy&, const RequestPolicy&) = default;
};

struct Device {
  std::string name;
  // Names without a domain are of the driver's domain.
  std::map<std::string, Attribute> attributes = {};
  std::map<std::string, std::uint64_t> capacity = {};
  std::vector<DeviceTaint> taints = {};
  std::vector<CounterUse> consumes = {};
  bool allows_multiple = false;                        // several claims may have it, each a share
  std::map<std::string, RequestPolicy> policies = {};  // by capacity; with allows_multiple only
  friend bool operator==(const Device&, const Device&) = default;
};

// "570.124.06" → "570.124.6", "12.4" → "12.4.0": the first three numbers without leading zeros; what
// follows them is dropped, because a pre-release would sort below its release. "0.0.0" for a text that does
// not begin with a number. Pure.
Version semantic_version(std::string_view text);

// Keys of taints; the first three are NVIDIA's.
inline constexpr std::string_view kXidTaint = "gpu.nvidia.com/xid";  // its value is the XID
inline constexpr std::string_view kLostTaint = "gpu.nvidia.com/gpu-lost";
inline constexpr std::string_view kUnmonitoredTaint = "gpu.nvidia.com/unmonitored";
inline constexpr std::string_view kFaultTaint = "gpulet.io/fault";  // its value is the fault class

inline constexpr std::string_view kInstanceHeldTaint = "gpulet.io/instance-held";

// One taint for each open fault: NoSchedule for one that withdraws the device, None for one that only flags
// it. Without duplicates, in a stable order, at most kMaxTaints with the NoSchedule ones first. A device that
// is not allocatable has at least one NoSchedule taint, a healthy device has none. Pure.
std::vector<DeviceTaint> health_taints(const health::DeviceStatus& status);

// `wanted` with time_added of the same taints in `shown`: eviction timers begin at that time.
std::vector<DeviceTaint> keep_time_added(std::vector<DeviceTaint> wanted,
                                         const std::vector<DeviceTaint>& shown);

}  // namespace gpulet::dra
