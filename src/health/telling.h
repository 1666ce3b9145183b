// What the cluster is told of a node's devices, as plain values: pure rules from a View to words.
//
// A node has one severity, its worst device's: the label's value, and what a taint is chosen by. The
// condition GpuHealthy is False only where a fault has withdrawn a device: what repairs nodes acts on it, and
// a device that is only flagged works, as one does that an operator has withdrawn.
// The words have no count and no time in them: what has not changed is not told again.
// Source of the form: Kubernetes API core/v1 NodeCondition (CamelCase reason, message for people).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "health/view.h"

namespace gpulet::health {

inline constexpr const char* kCondition = "GpuHealthy";
inline constexpr const char* kHealthLabel = "gpulet.io/gpu-health";     // of the node: name(Severity)
inline constexpr const char* kFaultTaint = "gpulet.io/gpu-fault";       // of the node: name(Severity)
inline constexpr const char* kFaultAnnotation = "gpulet.io/gpu-fault";  // of a Pod: what its devices have

inline constexpr std::size_t kMaxToldDevices = 16;  // in one text; of more their number is said

enum class Severity {
  kHealthy,
  kUnmonitored,  // nothing would tell of a fault
  kDegraded,     // flagged, and works
  kCordoned,     // withdrawn by an operator, and nothing else
  kWithdrawn,    // by a fault
  kLost,
};
inline constexpr Severity kSeverities[] = {Severity::kHealthy,  Severity::kUnmonitored, Severity::kDegraded,
                                           Severity::kCordoned, Severity::kWithdrawn,   Severity::kLost};
std::string_view name(Severity severity);  // "withdrawn"
Severity severity_of(const Standing& standing);

struct NodeNews {
  Severity severity = Severity::kHealthy;
  std::optional<bool> healthy;  // nullopt: unknown
  std::string reason;           // CamelCase: "GpuWithdrawn"
  std::string message;
};
// A node without a device is unmonitored: nobody knows.
NodeNews node_news(const View& view);

// "GPU 3 (GPU-5a…) is quarantined: XID 95: …; comes back after a reset of the GPU"; "GPU 3 (GPU-5a…) is
// healthy".
std::string device_news(const DeviceView& device);
// Of several, at most kMaxToldDevices; empty for none.
std::string devices_news(std::span<const DeviceView* const> devices);

// Of the devices that hold no fault nothing is told.
inline bool told(const DeviceView& device) { return severity_of(device.standing) >= Severity::kDegraded; }

// The device that stands for `held`: itself, or its GPU where it is known no more. Null for neither.
const DeviceView* standing_for(const View& view, const Scope& held);

}  // namespace gpulet::health
