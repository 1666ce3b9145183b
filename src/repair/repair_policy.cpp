#include "repair/repair_policy.h"

#include <algorithm>

namespace gpulet::repair {
namespace {

using health::DeviceState;
using health::DeviceView;
using health::Effect;
using health::FaultClass;
using health::HealthView;
using Kind = RepairDecision::Kind;

// nvmlDeviceGpuRecoveryAction_t.
constexpr unsigned kActionReset = 1, kActionReboot = 2, kActionDrainAndReset = 4, kActionSystemReboot = 7;

constexpr const char* kCordonedReason = "an operator cordoned it";

// A fault of the recovery action has its text, and no code.
bool asks_to(const health::Fault& fault, unsigned action) {
  return fault.detail == health::recovery_action_text(action);
}

Action recovery_action_of(const health::Fault& fault) {
  if (asks_to(fault, kActionReboot) || asks_to(fault, kActionSystemReboot)) return Action::kReboot;
  if (asks_to(fault, kActionReset) || asks_to(fault, kActionDrainAndReset)) return Action::kReset;
  return Action::kNone;
}

bool is_of_link(FaultClass fault_class) {
  return fault_class == FaultClass::kXidNvLink || fault_class == FaultClass::kSwitch;
}

bool withdraws(const health::Fault& fault) { return fault.effect >= Effect::kDrain; }

// By a fault that counts against the node: not an operator's cordon, not the driver's absence.
bool is_unhealthy(const HealthView& view, const DeviceUuid& gpu) {
  return std::ranges::any_of(view.devices, [&](const DeviceView& device) {
    return device.scope.gpu == gpu && std::ranges::any_of(device.status.faults, [](const auto& fault) {
             return withdraws(fault) && fault.fault_class != FaultClass::kCordoned &&
                    fault.fault_class != FaultClass::kDriverAway;
           });
  });
}

}  // namespace

Action action_for(const health::Fault& fault) {
  if (!withdraws(fault) || fault.condition_met_at) return Action::kNone;
  switch (fault.fault_class) {
    case FaultClass::kRecoveryAction:
    case FaultClass::kRecoveryDrain:
      return recovery_action_of(fault);
    case FaultClass::kResetRequired:
      return Action::kReset;
    case FaultClass::kLost:
      return Action::kReboot;
    default:
      break;
  }
  const auto condition = fault_rule(fault.fault_class).condition;
  if (condition == health::RecoveryCondition::kReset) return Action::kReset;
  return condition == health::RecoveryCondition::kReboot ? Action::kReboot : Action::kNone;
}

NeededRepair needed_repair(const HealthView& view, const DeviceUuid& gpu) {
  NeededRepair needed;
  for (const auto& device : view.devices) {
    // A GPU that has left the node is not repaired by anything here.
    if (device.scope.gpu != gpu || !device.gpu_index || is_allocatable(device.status.state)) continue;
    for (const auto& fault : device.status.faults) {
      if (fault.fault_class == FaultClass::kCordoned && !fault.condition_met_at) needed.is_cordoned = true;
      if (fault.fault_class == FaultClass::kDriverAway || fault.fault_class == FaultClass::kSilent)
        needed.is_silent = true;
      const auto action = action_for(fault);
      if (action == Action::kNone) continue;
      if (is_of_link(fault.fault_class)) needed.with_partners = true;
      if (action <= needed.action) continue;
      needed.action = action;
      needed.fault = fault.fault_text();
    }
  }
  return needed;
}

namespace {

std::string names_of(const std::vector<std::string>& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

std::string gpu_name(const inventory::Snapshot& snapshot, const DeviceUuid& gpu) {
  const auto* found = snapshot.find(gpu);
  return found == nullptr ? gpu.str() : "GPU " + std::to_string(found->index);
}

class RepairDecider {
 public:
  RepairDecider(const RepairInputs& node, const Policy& policy) : node_(node), policy_(policy) {
    for (const auto& device : node_.view.devices) {
      if (device.scope.is_whole_gpu()) known_links_[device.scope.gpu] = device.links.all;
    }
  }

  std::optional<RepairDecision> decide_gpu(const inventory::Gpu& gpu) const {
    const auto needed = needed_repair(node_.view, gpu.uuid);
    if (needed.action == Action::kNone) return std::nullopt;
    if (needed.action == Action::kReboot) return decide_reboot(gpu, needed, "no reset ends its fault");
    if (!policy_.reset.enabled) return std::nullopt;
    const auto known = node_.record.attempts.find(gpu.uuid);
    const auto attempts = known == node_.record.attempts.end() ? 0u : known->second.count;
    if (attempts >= policy_.reset.max_attempts) {
      return decide_reboot(
          gpu, needed,
          std::to_string(attempts) + (attempts == 1 ? " reset" : " resets") + " did not repair it");
    }
    RepairDecision decision{.gpu = gpu.uuid, .fault = needed.fault};
    decision.group = find_reset_group(node_.snapshot, gpu.uuid, needed.with_partners, known_links_);
    decision.reason = wait_reason(needed, decision.group);
    if (decision.reason.empty() && attempts != 0) {
      const auto due =
          known->second.last + std::chrono::duration_cast<WallTime::duration>(policy_.reset.cooldown);
      // A clock that was set back makes no attempt newer than now.
      if (known->second.last <= node_.now && due > node_.now) {
        decision.reason = "the last reset is less than gpulet.repair.reset.cooldown ago";
        decision.again = due;
      }
    }
    if (decision.reason.empty()) decision.kind = Kind::kReset;
    return decision;
  }

 private:
  std::optional<RepairDecision> decide_reboot(const inventory::Gpu& gpu, const NeededRepair& needed,
                                              const std::string& reason) const {
    RepairDecision decision{.gpu = gpu.uuid, .fault = needed.fault, .reason = reason};
    const auto& last = node_.record.reboot;
    const bool is_rebooted = last && last->boot_id != node_.boot_id;
    if (!policy_.reboot_request.enabled) {
      if (needed.action == Action::kReboot) return std::nullopt;
      decision.kind = Kind::kGiveUp;
    } else if (is_rebooted) {
      decision.kind = Kind::kGiveUp;
      decision.reason = "the reboot that was requested less than a day ago did not repair it";
    } else {
      decision.kind = needed.is_cordoned ? Kind::kWait : Kind::kReboot;
      if (needed.is_cordoned) decision.reason = kCordonedReason;
    }
    return decision;
  }

  std::string wait_reason(const NeededRepair& needed, const ResetGroup& group) const {
    if (needed.is_cordoned) return kCordonedReason;
    if (needed.is_silent) return "the driver does not answer for it";
    if (!node_.busy.empty()) return node_.busy;
    for (const auto& member : group.gpus) {
      const auto* gpu = node_.snapshot.find(member);
      if (gpu == nullptr || gpu->unreadable)
        return gpu_name(node_.snapshot, member) + ", which is reset with it, cannot be read";
      if (std::ranges::count(node_.unmanaged_instances, member) != 0) {
        return "a reset destroys the MIG instances of " + gpu_name(node_.snapshot, member) +
               ", and no layout is set for it";
      }
    }
    std::size_t unhealthy = 0;
    for (const auto& gpu : node_.snapshot.gpus) {
      if (std::ranges::count(group.gpus, gpu.uuid) == 0 && is_unhealthy(node_.view, gpu.uuid)) ++unhealthy;
    }
    if (unhealthy > 1 && unhealthy * 100 > node_.snapshot.gpus.size() * node_.max_unhealthy_gpus_percent) {
      return "more than " + std::to_string(node_.max_unhealthy_gpus_percent) +
             "% of the node's GPUs are unhealthy (gpulet.faults.eviction.maxUnhealthyGpusPercent)";
    }
    return {};
  }

  const RepairInputs& node_;
  const Policy& policy_;
  std::map<DeviceUuid, unsigned> known_links_;
};

}  // namespace

std::vector<RepairDecision> decide_repairs(const RepairInputs& node, const Policy& policy) {
  std::vector<RepairDecision> decisions;
  const RepairDecider decider(node, policy);
  for (const auto& gpu : node.snapshot.gpus) {
    if (gpu.uuid.empty()) continue;
    if (auto decision = decider.decide_gpu(gpu)) decisions.push_back(std::move(*decision));
  }
  return decisions;
}

std::string holding_reason(const ResetGroup& group, const DeviceUuid& gpu,
                           const std::map<DeviceUuid, GpuUse>& uses, const inventory::Snapshot& snapshot) {
  for (const auto& member : group.gpus) {
    const auto use = uses.find(member);
    if (use == uses.end()) continue;
    const auto& [pods, processes] = use->second;
    if (pods.empty() && processes.empty()) continue;
    const std::string who = pods.empty() ? names_of(processes) : "Pod " + names_of(pods);
    if (member == gpu) return "held by " + who;
    return gpu_name(snapshot, member) + ", which is reset with it (" + group.reason + "), is held by " + who;
  }
  return {};
}

void prune_record(Record& record, const HealthView& view, WallTime now, const std::string& boot_id) {
  const auto is_old = [&](WallTime at) { return now - at > kRepairWindow; };
  std::erase_if(record.attempts, [&](const auto& entry) {
    return is_old(entry.second.last) && needed_repair(view, entry.first).action == Action::kNone;
  });
  if (record.reboot && record.reboot->boot_id != boot_id && is_old(record.reboot->since))
    record.reboot.reset();
}

}  // namespace gpulet::repair
