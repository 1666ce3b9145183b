// The health of this node's devices as the kubelet shows it in the status of Pods that hold them by claims.
//
// What the devices are judged by is health/report/node_health.h; here is only what the kubelet's three values
// mean: a device is unhealthy when a fault has withdrawn it, and unknown when nothing shows that it works.
// Source: the kubelet's API DRAResourceHealth v1 and v1alpha1 (Kubernetes 1.37, 1.36); docs/dra.md.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "dra/claim_record.h"
#include "dra/device_pool.h"
#include "health/report/node_health.h"

namespace gpulet::dra {

// Of the API, in bytes; the kubelet cuts a longer one.
inline constexpr std::size_t kMaxHealthMessageBytes = 1024;

enum class DeviceCondition { kUnknown, kHealthy, kUnhealthy };

struct DeviceHealth {
  std::string device;  // "gpu-2"
  DeviceCondition condition = DeviceCondition::kUnknown;
  std::string message = {};  // why; empty for a device without a fault
  friend bool operator==(const DeviceHealth&, const DeviceHealth&) = default;
};

// Each device of the pool and each device that a claim holds, once, in the order of their names. A name that
// means another GPU now than for the claim that holds it reports the GPU of the claim, because only Pods that
// hold a device show its health. A device that a fault only flags and one that an operator cordoned are
// healthy, with the reason in the message. While the driver is released, only what was unhealthy before is
// reported as unhealthy. A device in `unserved` that has no fault of its own is unhealthy too, with this
// message. Messages have no counts and no times, so that equal health gives equal values. Pure.
std::vector<DeviceHealth> make_health_report(const DevicePool& pool,
                                             const std::map<std::string, ClaimRecord>& records,
                                             const health::HealthView& view,
                                             const std::map<DeviceUuid, std::string>& unserved = {});

}  // namespace gpulet::dra
