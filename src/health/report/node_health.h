// The health of a node's devices as one plain value (HealthView), and what is derived from it: lookup by
// name, the node's severity and condition, and texts about devices. `gpulet health`, the cluster's condition
// and the pages use it.
//
// A node has one severity, that of its worst device: the value of the label, and what selects a taint. The
// condition GpuHealthy is False only if a fault has withdrawn a device: auto-repair tools act on it, and a
// device that is only flagged or cordoned works. Texts have no counts and no times, so that an unchanged text
// is not published again. Source: Kubernetes API core/v1 NodeCondition (CamelCase reason, message for
// people). Pure: any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "health/state/device_status.h"
#include "health/state/state_machine.h"
#include "inventory/snapshot.h"

namespace gpulet::health {

struct DeviceView {
  Scope scope;
  DeviceUuid uuid;                    // "GPU-…" or "MIG-…"; empty for a MIG device of a removed GPU
  std::optional<unsigned> gpu_index;  // NVML's index; nullopt for a removed GPU
  std::optional<unsigned> mig_index;  // NVML's index below its GPU; nullopt for a GPU
  std::string model;                  // the GPU's model or the MIG device's profile; empty when removed
  std::string slot;                   // PCI address of the GPU in sysfs form; empty when removed
  DeviceStatus status;
  std::vector<UnavailableSource> unavailable_sources;  // of a GPU
  bool in_fabric = false;                              // of a GPU: registered with an NVLink fabric
  LinkCounts links{};                                  // of a GPU
  std::optional<bool>
      mig_pending{};       // of a GPU: the MIG mode that needs a reset (Snapshot: Gpu::mig_pending)
  std::string excluded{};  // why a rule withholds it or its GPU (Snapshot: Gpu::excluded)
  // Of a GPU: what the agent does about its fault, or what keeps it from that: "Is reset once it is empty:
  // held by Pod default/trainer"; empty: nothing (agent/remediation/gpu_repairer.h).
  std::string repair{};
  // Of a GPU, with gpulet.preflight: "passed", "slow", "failed", "unknown" or "waiting"; else empty. And why,
  // one line or empty (agent/preflight/preflight_controller.h).
  std::string preflight{}, preflight_detail{};
};

// Whether Pods may get it: a rule, a fault or a preflight that has not run yet may withhold it.
inline bool is_offered(const DeviceView& device) {
  return is_allocatable(device.status.state) && device.excluded.empty() && device.preflight != "waiting";
}

// "waits for its preflight, for a reset to end"; empty for one that does not.
std::string waiting_text(const DeviceView& device);

// The agent closes the driver on request (agent/driver/driver_release.h), until it has read the GPUs again.
struct DriverRelease {
  std::string reason;   // one line
  bool closed = false;  // no session is open any more
  friend bool operator==(const DriverRelease&, const DriverRelease&) = default;
};

// Immutable once published.
struct HealthView {
  ClockPair at;                     // the times of the statuses count from `now`
  std::vector<DeviceView> devices;  // by GPU index, removed ones last; each GPU before its MIG devices
  std::optional<DriverRelease> release{};
  const DeviceView* find(const Scope& scope) const;
};
using HealthViewPtr = std::shared_ptr<const HealthView>;

// Every device that the state machine knows. Devices of a removed GPU lack what only the snapshot has.
// Cost: linear in devices.
HealthView build_health_view(const HealthStateMachine& machine, const inventory::Snapshot& snapshot,
                             const ClockPair& at);

// "GPU 3 (GPU-5a…)", "MIG 3:1 (MIG-7c…)"; "GPU GPU-5a…" when removed.
std::string describe_device(const DeviceView& device);

// The device that a person names: an index as nvidia-smi and `gpulet list` show it ("3", "3:1" for a MIG
// device), a UUID, or a unique prefix of a UUID. Errors: kNotFound with the known devices; kInvalidArgument
// with all matches when it is ambiguous.
Result<const DeviceView*> find_device(const HealthView& view, std::string_view name);
// Whether it has the driver's full form: "GPU-" or "MIG-" and 36 characters.
bool is_full_uuid(std::string_view name);

inline constexpr const char* kCondition = "GpuHealthy";
inline constexpr const char* kHealthLabel = "gpulet.io/gpu-health";        // of the node: enum_name(Severity)
inline constexpr const char* kPreflightLabel = "gpulet.io/gpu-preflight";  // of the node: preflight_label()
inline constexpr const char* kFaultTaint = "gpulet.io/gpu-fault";          // of the node: enum_name(Severity)
inline constexpr const char* kFaultAnnotation = "gpulet.io/gpu-fault";  // of a Pod: the faults of its devices

inline constexpr std::size_t kMaxListedDevices = 16;  // in one text; further ones are counted

enum class Severity {
  kHealthy,
  kUnmonitored,  // no source would report a fault
  kDegraded,     // flagged, and works
  kCordoned,     // withdrawn by an operator only
  kWithdrawn,    // by a fault
  kLost,
};
inline constexpr Severity kSeverities[] = {Severity::kHealthy,  Severity::kUnmonitored, Severity::kDegraded,
                                           Severity::kCordoned, Severity::kWithdrawn,   Severity::kLost};
std::string_view enum_name(Severity severity);  // "withdrawn"
Severity severity_of(const DeviceStatus& status);
// Without the fault that the driver's release causes; kUnmonitored for a device without another fault.
Severity severity_before_release(DeviceStatus status);

struct NodeHealthSummary {
  Severity severity = Severity::kHealthy;
  std::optional<bool> healthy;  // nullopt: unknown
  std::string reason;           // CamelCase: "GpuWithdrawn"
  std::string message;
};
// A node without a device is unmonitored, and so are GPUs whose driver is released, but for the faults that
// were known before: the condition is Unknown with the reason DriverReleased.
NodeHealthSummary summarize_node_health(const HealthView& view);

// The worst DeviceView::preflight: of "failed", "slow", "waiting", "unknown", "passed" the first that a GPU
// has; nullopt if none has one.
std::optional<std::string> preflight_label(const HealthView& view);

// "GPU 3 (GPU-5a…) is quarantined: XID 95: …; recovers after a reset of the GPU"; "GPU 3 (GPU-5a…) is
// healthy".
std::string device_health_text(const DeviceView& device);
// Of several, at most kMaxListedDevices; empty for none.
std::string devices_health_text(std::span<const DeviceView* const> devices);

inline bool has_reportable_fault(const DeviceView& device) {
  return severity_of(device.status) >= Severity::kDegraded;
}

// The device of the scope, or its GPU if the device is no longer known. Null for neither.
const DeviceView* find_device_or_gpu(const HealthView& view, const Scope& held);

}  // namespace gpulet::health
