// The status of a device and why: the rule that decides whether a device is healthy or unhealthy.
//
// A device is unhealthy while a fault withdraws it. The worst open fault decides the state
// (derive_device_status). A fault ends in two steps: its recovery condition is met
// (recovery_condition_met_at), then its checks pass without a break for the hold time (recovery_due,
// has_recovered). Time alone ends nothing, and neither does silence. Source: docs/health.md, "States" and
// "Faults and recovery". Pure: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "health/policy/health_policy.h"

namespace gpulet::health {

struct FaultKey;
struct OpenFault;
struct GpuRecord;
class XidFilter;

enum class DeviceState {
  kHealthy,
  kUnmonitored,  // allocatable; no source would report a fault
  kDegraded,     // allocatable and flagged
  kRecovering,   // not allocatable: the recovery condition is met, the checks are running
  kDraining,     // not allocatable; running workloads may finish
  kQuarantined,  // not allocatable
  kLost,         // not allocatable: nothing can run on it
};
inline constexpr DeviceState kDeviceStates[] = {
    DeviceState::kHealthy,  DeviceState::kUnmonitored, DeviceState::kDegraded, DeviceState::kRecovering,
    DeviceState::kDraining, DeviceState::kQuarantined, DeviceState::kLost};
std::string_view enum_name(DeviceState state);  // "quarantined"
// Whether the kubelet may allocate a device in this state; the others are unhealthy.
constexpr bool is_allocatable(DeviceState state) {
  return state == DeviceState::kHealthy || state == DeviceState::kUnmonitored ||
         state == DeviceState::kDegraded;
}

// One open fault of a device.
struct Fault {
  FaultClass fault_class = FaultClass::kXidUnknown;
  std::uint64_t code = 0;  // the XID, the SXid or the link; 0 for classes with only one fault
  Scope scope;             // what is faulty; may be more than the device
  Effect effect = Effect::kFlag;
  Time opened{}, last_seen{};
  std::uint64_t count = 0;
  std::string detail;
  bool linked = false;                   // the driver's recovery action covers it
  std::optional<Time> condition_met_at;  // when the recovery condition was met
  std::optional<Time> due;               // when it ends, if every check keeps passing
  std::string fault_text() const;        // "XID 79: GPU has fallen off the bus", without the count
};

inline constexpr unsigned kMaxRelapses = 1'000'000;  // accepted from a report or state file

struct DeviceStatus {
  DeviceState state = DeviceState::kHealthy;
  Time since{};                    // when it entered this state; never decreases
  std::string reason;              // the worst fault's text; empty when healthy
  std::string recovery_text;       // what ends that fault; empty when healthy
  std::vector<Fault> faults;       // worst first
  unsigned relapses = 0;           // of the GPU
  std::optional<Time> due;         // the earliest time at which it is allocatable again, if known
  std::optional<Time> reset_at{};  // the last reset of the GPU that is known
};

struct StatusChange {
  Scope device;
  DeviceStatus before, after;
};

// The status of `device`, a part of the record's GPU, without `since`.
DeviceStatus derive_device_status(const GpuRecord& record, const Scope& device, const Policy& policy,
                                  const XidFilter& filter);

// When the fault's recovery condition was met by something other than the reading that reported the fault.
std::optional<Time> recovery_condition_met_at(const GpuRecord& record, const FaultKey& key,
                                              const OpenFault& fault, const Policy& policy);
// When every required check will have passed for the hold time; nullopt unless the recovery condition is met
// and all checks pass now.
std::optional<Time> recovery_due(const GpuRecord& record, const FaultKey& key, const OpenFault& fault,
                                 const Policy& policy);
// Whether every required check was seen to pass at `due` or later.
bool has_recovered(const GpuRecord& record, const FaultKey& key, const OpenFault& fault, Time due, Time now);

}  // namespace gpulet::health
