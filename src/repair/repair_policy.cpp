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
    if (device.scope.gpu != gpu || is_allocatable(device.status.state)) continue;
    for (const auto& fault : device.status.faults) {
      if (fault.fault_class == FaultClass::kCordoned && !fault.condition_met_at) needed.is_cordoned = true;
      if (fault.fault_class == FaultClass::kDriverAway || fault.fault_class == FaultClass::kSilent)
        needed.is_silent = true;
      const auto action = action_for(fault);
      if (action == Action::kNone) continue;
      // A GPU that has left the node cannot be reset; that it has left does not ask for a reboot.
      if (!device.gpu_index && (action != Action::kReboot || fault.fault_class == FaultClass::kLost))
        continue;
      if (fault.fault_class == FaultClass::kResetRequired) needed.is_reset_required = true;
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

  std::optional<RepairDecision> decide_gpu(const DeviceUuid& gpu) const {
    const auto needed = needed_repair(node_.view, gpu);
    if (is_requested(gpu) && (needed.action != Action::kNone || !is_present(gpu)))
      return decide_reboot(gpu, needed, reboot_reason(gpu, needed));
    if (needed.action == Action::kNone) return std::nullopt;
    if (needed.action == Action::kReboot) return decide_reboot(gpu, needed, reboot_reason(gpu, needed));
    if (!policy_.reset.enabled || node_.snapshot.find(gpu) == nullptr) return std::nullopt;
    if (attempts_of(gpu) >= policy_.reset.max_attempts)
      return decide_reboot(gpu, needed, reboot_reason(gpu, needed));
    RepairDecision decision{.gpu = gpu, .fault = needed.fault};
    decision.group = find_reset_group(node_.snapshot, gpu, needed.with_partners, known_links_);
    decision.reason = wait_reason(gpu, needed, decision.group);
    if (decision.reason.empty() && is_cooling(decision.group))
      decision.reason = "the last reset is less than gpulet.repair.reset.cooldown ago";
    if (decision.reason.empty()) decision.kind = Kind::kReset;
    return decision;
  }

 private:
  bool is_present(const DeviceUuid& gpu) const {
    return std::ranges::any_of(node_.view.devices, [&](const DeviceView& device) {
      return device.scope.gpu == gpu && device.scope.is_whole_gpu() && device.gpu_index;
    });
  }
  // The reboot is requested for it, and has not come yet.
  bool is_requested(const DeviceUuid& gpu) const {
    const auto& last = node_.record.reboot;
    return last && last->boot_id == node_.boot_id && std::ranges::count(last->gpus, gpu) != 0;
  }
  // Those that count. A clock that was set back keeps them.
  std::size_t attempts_of(const DeviceUuid& gpu) const {
    const auto known = node_.record.attempts.find(gpu);
    if (known == node_.record.attempts.end()) return 0;
    return static_cast<std::size_t>(
        std::ranges::count_if(known->second, [&](WallTime at) { return node_.now - at <= kRepairWindow; }));
  }
  bool is_cooling(const ResetGroup& group) const {
    const auto cooldown = std::chrono::duration_cast<WallTime::duration>(policy_.reset.cooldown);
    return std::ranges::any_of(group.gpus, [&](const DeviceUuid& member) {
      const auto known = node_.record.attempts.find(member);
      // A clock that was set back makes no attempt newer than now.
      return known != node_.record.attempts.end() && std::ranges::any_of(known->second, [&](WallTime at) {
               return at <= node_.now && at + cooldown > node_.now;
             });
    });
  }
  std::string reboot_reason(const DeviceUuid& gpu, const NeededRepair& needed) const {
    if (needed.action == Action::kNone) return "it has left the node since";
    const auto attempts = attempts_of(gpu);
    if (needed.action == Action::kReboot || attempts == 0) return "no reset ends its fault";
    return std::to_string(attempts) + (attempts == 1 ? " reset" : " resets") + " did not repair it";
  }

  std::optional<RepairDecision> decide_reboot(const DeviceUuid& gpu, const NeededRepair& needed,
                                              const std::string& reason) const {
    RepairDecision decision{.gpu = gpu, .fault = needed.fault, .reason = reason};
    const auto& last = node_.record.reboot;
    const bool is_rebooted = last && last->boot_id != node_.boot_id;
    if (!policy_.reboot_request.enabled) {
      if (needed.action != Action::kReset) return std::nullopt;
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

  std::string wait_reason(const DeviceUuid& self, const NeededRepair& needed, const ResetGroup& group) const {
    if (needed.is_cordoned) return kCordonedReason;
    if (needed.is_silent) return "the driver does not answer for it";
    if (!node_.busy.empty()) return node_.busy;
    for (const auto& member : group.gpus) {
      const auto* gpu = node_.snapshot.find(member);
      // Its own answer that it needs a reset is no reason against one.
      const bool asks_for_reset = gpu != nullptr && member == self && needed.is_reset_required &&
                                  gpu->unreadable && gpu->unreadable->code() == Code::kResetRequired;
      if (gpu == nullptr || (gpu->unreadable && !asks_for_reset)) {
        if (member == self) return "it cannot be read";
        return gpu_name(node_.snapshot, member) + ", which is reset with it, cannot be read";
      }
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
  std::vector<DeviceUuid> gpus;
  const auto add = [&](const DeviceUuid& gpu) {
    if (!gpu.empty() && std::ranges::count(gpus, gpu) == 0) gpus.push_back(gpu);
  };
  for (const auto& device : node.view.devices) add(device.scope.gpu);
  // The request outlasts a GPU that is no longer known at all.
  if (node.record.reboot) std::ranges::for_each(node.record.reboot->gpus, add);
  for (const auto& gpu : gpus) {
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

void prune_record(Record& record, WallTime now, const std::string& boot_id) {
  const auto is_old = [&](WallTime at) { return now - at > kRepairWindow; };
  for (auto& [gpu, times] : record.attempts) std::erase_if(times, is_old);
  std::erase_if(record.attempts, [](const auto& entry) { return entry.second.empty(); });
  if (record.reboot && record.reboot->boot_id != boot_id && is_old(record.reboot->since))
    record.reboot.reset();
}

}  // namespace gpulet::repair
