// When a GPU is reset, when a reboot of the node is requested, and why not: a pure rule over the node's
// devices.
//
// Off by default. A reset is for a GPU that a fault withdrew and whose fault a reset ends (action_for), when
// nothing holds it or its reset group (reset_group.h). After maxAttempts resets within the window, and at
// once for a fault that only a reboot ends, the reboot of the node is requested, once per window. GpuRepairer
// (agent/remediation/gpu_repairer.h) carries the decisions out. Whether the GPU returns is decided by its
// evidence alone (health/state/device_status.h). Source: docs/remediation.md. Pure: any thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "health/report/node_health.h"
#include "inventory/snapshot.h"
#include "repair/repair_record.h"
#include "repair/reset_group.h"

namespace gpulet::repair {

// `gpulet.repair.reset`.
struct ResetPolicy {
  bool enabled = false;
  bool dry_run = false;                         // decide as usual, but only report
  unsigned max_attempts = 2;                    // of a GPU within the window, successful ones too
  Duration cooldown = std::chrono::minutes(5);  // between two of a GPU
  Duration timeout = std::chrono::minutes(2);   // of nvidia-smi
  friend bool operator==(const ResetPolicy&, const ResetPolicy&) = default;
};
// `gpulet.repair.rebootRequest`: how it is shown to the tools that reboot nodes.
struct RebootRequestPolicy {
  bool enabled = false;
  bool condition = true;                                 // the Node condition kRebootCondition
  std::string annotation = "gpulet.io/reboot-required";  // key of the Node's annotation; empty: none
  std::string sentinel_file;  // a file that is there while it is requested, as kured reads it; empty: none
  friend bool operator==(const RebootRequestPolicy&, const RebootRequestPolicy&) = default;
};
struct Policy {
  ResetPolicy reset;
  RebootRequestPolicy reboot_request;
  bool is_enabled() const { return reset.enabled || reboot_request.enabled; }
  friend bool operator==(const Policy&, const Policy&) = default;
};
inline constexpr const char* kRebootCondition = "GpuRebootRequired";

// How long attempts and a fulfilled request count: a GPU that fails again within it is not repaired by more
// of the same. As gpulet.health.relapseWindow's default.
inline constexpr Duration kRepairWindow = std::chrono::hours(24);

// What ends a fault.
enum class Action { kNone, kReset, kReboot };
// kNone: nothing that gpulet does, or the fault withdraws nothing. A driver that asks for a reset of the bus,
// or to recover the IMEX domain, gets neither.
Action action_for(const health::Fault& fault);

struct NeededRepair {
  Action action = Action::kNone;   // the strongest of the GPU and its MIG devices
  bool with_partners = false;      // an NVLink or NVSwitch failed
  std::string fault;               // the text of a fault with that action
  bool is_cordoned = false;        // an operator works on it: left alone
  bool is_silent = false;          // the driver does not answer for it: no reset
  bool is_reset_required = false;  // the driver answers for it that it needs a reset, and nothing else
};
NeededRepair needed_repair(const health::HealthView& view, const DeviceUuid& gpu);

struct RepairInputs {
  const health::HealthView& view;
  const inventory::Snapshot& snapshot;
  const Record& record;
  WallTime now{};
  std::string boot_id;
  // No reset while more of the node's GPUs, and more than one, are withdrawn by faults outside the reset
  // group: the cause is the node. gpulet.faults.eviction.maxUnhealthyGpusPercent.
  unsigned max_unhealthy_gpus_percent = 50;
  std::string busy;  // why no GPU can be reset now: "a MIG layout is being changed"; empty: one can
  // GPUs whose MIG instances nothing would create again after a reset.
  std::vector<DeviceUuid> unmanaged_instances{};
};

struct RepairDecision {
  enum class Kind {
    kWait,    // would be reset or requested but for `reason`
    kReset,   // may be reset if nothing holds the group
    kReboot,  // its fault asks for a reboot
    kGiveUp,  // nothing is left to try
  };
  DeviceUuid gpu;
  Kind kind = Kind::kWait;
  std::string fault;     // "XID 95: …"
  std::string reason{};  // of kWait and kGiveUp; of kReboot why not a reset
  ResetGroup group{};    // of kReset and kWait
};
// One for each GPU that needs a repair which the policy enables, in the view's order. Within its boot, a
// request for a reboot ends only when its GPU is there and no longer needs a repair, or is cordoned.
std::vector<RepairDecision> decide_repairs(const RepairInputs& node, const Policy& policy);

// What holds a GPU. A Pod or claim holds its devices from allocation on, even without a process.
struct GpuUse {
  std::vector<std::string> pods{};       // "default/trainer"
  std::vector<std::string> processes{};  // "process 812 (nv-hostengine)"
};
// Why the group is not empty: "held by Pod default/trainer"; empty if it is. `gpu`: the one to repair.
std::string holding_reason(const ResetGroup& group, const DeviceUuid& gpu,
                           const std::map<DeviceUuid, GpuUse>& uses, const inventory::Snapshot& snapshot);

// Forgets attempts and requests that no longer count.
void prune_record(Record& record, WallTime now, const std::string& boot_id);

}  // namespace gpulet::repair
