// The metrics of the agent's own page: their names, types, labels and help, as docs/metrics.md lists them.
#pragma once

#include <span>
#include <string_view>

#include "metrics/exposition.h"

namespace gpulet::metrics {

// A row of the list of these metrics in docs/metrics.md.
struct MetricInfo {
  std::string_view name;
  Exposition::Type type;
  std::string_view
      labels;  // for the documentation: "namespace, pod"; of a device's metric, beside the device labels
  std::string_view help;
};
std::span<const MetricInfo> gpulet_metrics();

// Indices of gpulet_metrics().
enum class Metric {
  kDeviceAllocated,
  kPodMemory,
  kPodEnergy,
  kPodBusy,
  kPodHeld,
  kPodIdle,
  kGpuForecast,
  kGpuMemoryForecast,
  kPodForecast,
  kMemoryLimit,
  kMemoryLimitGrade,
  kMemoryUsed,
  kUnlistedMemory,
  kPreflightResult,
  kPreflightSpeed,
  kPreflightAge,
  kPowerLimit,
  kPowerProblem,
  kMigInstance,
  kLinkUp,
  kLinkTransmitted,
  kLinkReceived,
  kLinkErrors,
  kDeviceState,
  kDeviceOffered,
  kDeviceFaults,
  kDeviceRelapses,
  kDeviceQuarantine,
  kNamespaceEnergy,
  kNamespaceBusy,
  kNamespaceHeld,
  kNamespaceIdle,
  kDriverCalls,
  kDriverCallTime,
  kDriverCallsHanging,
  kDriverReleased,
  kNvmlErrors,
  kSnapshotAge,
  kSampleAge,
  kPodResourcesAge,
  kPodResourcesTime,
  kPodResourcesErrors,
  kSnapshotGeneration,
  kKubeletCalls,
  kKubeletCallTime,
  kPlacementScore,
  kRightsMissing,
  kPodsMoved,
  kPodsRebalanced,
  kMemoryExceeded,
  kRejectedPodsDeleted,
  kGpuResets,
  kRebootRequested,
  kMigReconfigurations,
  kContainersWithoutDeviceAccess,
  kHostEngineConnected,
  kClaimRequests,
  kClaimRequestTime,
  kClaimRequestsInFlight,
  kClaimPrepareErrors,
  kClaimUnprepareErrors,
  kPreparedDevices,
  kPreparedClaims,
  kCount,
};

const MetricInfo& info_of(Metric metric);

}  // namespace gpulet::metrics
