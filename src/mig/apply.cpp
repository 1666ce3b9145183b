#include "mig/apply.h"

#include <algorithm>

#include "base/text.h"
#include "mig/layout.h"

namespace gpulet::mig {
namespace {

using nvml::MigActivation;

const GpuInstance* find_same(const std::vector<GpuInstance>& instances, const GpuInstance& target) {
  const auto found = std::ranges::find_if(instances, [&](const GpuInstance& one) {
    return one.profile == target.profile && one.placement == target.placement;
  });
  return found == instances.end() ? nullptr : &*found;
}

// The instances of `a` without an equal in `b`, by profile and placement, each of `b` counted once.
std::vector<ComputeInstance> without(const std::vector<ComputeInstance>& a,
                                     const std::vector<ComputeInstance>& b) {
  std::vector<ComputeInstance> left = b, rest;
  for (const auto& one : a) {
    const auto same = std::ranges::find_if(left, [&](const ComputeInstance& other) {
      return other.profile == one.profile && other.placement == one.placement;
    });
    if (same == left.end()) {
      rest.push_back(one);
    } else {
      left.erase(same);
    }
  }
  return rest;
}

std::string instance_profile_name(const State& state, unsigned id) {
  const Profile* profile = find_profile(state, id);
  return profile == nullptr ? "profile " + std::to_string(id) : profile->name;
}

// Restores the instances that a GPU had before a plan's steps, as far as the hardware allows. It
// compares with the GPU's current state, not with the steps done: a failed call may have had its
// effect. Destroys only what `plan` creates and `before` does not have, and nothing with holders.
// Continues after a failure, and records the first one.
class Rollback {
 public:
  Rollback(Hardware& hardware, const State& before, const Plan& plan, Report& report)
      : hardware_(hardware), before_(before), plan_(plan), report_(report) {}

  void undo_steps() {
    const auto now = hardware_.read_state();
    if (!now) return record_failure(now.error().with_context("reading the GPU for the rollback"));
    if (same_layout(*now, before_)) return;
    for (const auto& instance : now->instances) remove_created(*now, instance);
    restore_mode(*now);
    for (const auto& instance : before_.instances) restore_instances(instance);
    const auto end = hardware_.read_state();
    if (!end) return record_failure(end.error().with_context("reading the GPU after the rollback"));
    if (!same_layout(*end, before_)) {
      record_failure(Error(Code::kFailedPrecondition, "the GPU has " + layout_text(current_layout(*end)) +
                                                          " and had " +
                                                          layout_text(current_layout(before_))));
    }
  }

 private:
  void record_failure(const Error& error) {
    if (!report_.rollback_error) report_.rollback_error = error;
  }
  // Records what was undone, or why it failed.
  bool record_undone(const Status& status, const std::string& action, const std::string& what) {
    if (status) {
      report_.steps_undone.push_back(action + " " + what);
    } else {
      record_failure(status.error().with_context(what));
    }
    return status.has_value();
  }

  // New compute instances in a GPU instance that is kept.
  std::vector<ComputeInstance> created_in(const GpuInstance& now, const GpuInstance& before) const {
    auto more = without(now.compute, before.compute);
    const bool makes = std::ranges::find(plan_.create_compute, before.id, &CreateCompute::instance) !=
                       plan_.create_compute.end();
    return makes ? more : std::vector<ComputeInstance>{};
  }

  void remove_created(const State& now, const GpuInstance& instance) {
    const GpuInstance* before = find_same(before_.instances, instance);
    const bool made = std::ranges::any_of(plan_.create, [&](const Create& create) {
      return create.profile_id == instance.profile && create.placement == instance.placement;
    });
    const auto compute = before != nullptr ? created_in(instance, *before)
                         : made            ? instance.compute
                                           : std::vector<ComputeInstance>{};
    const std::string what =
        instance_profile_name(now, instance.profile) + " " + placement_text(instance.placement);
    if (compute.empty() && (before != nullptr || !made)) return;
    // It was created a moment ago, but may already be in use. Holders of a kept instance do not
    // hold what is new in it.
    auto holders = hardware_.holders(instance.id);
    if (!holders) return record_failure(holders.error().with_context(what));
    if (before != nullptr) {
      std::erase_if(*holders, [&](const std::string& holder) {
        return std::ranges::find(before->holders, holder) != before->holders.end();
      });
    }
    if (!holders->empty()) {
      return record_failure(
          Error(Code::kFailedPrecondition, what + ": in use by " + text::join(*holders, ", ")));
    }
    for (const auto& one : compute) {
      const std::string part = "compute instance " + std::to_string(one.id) + " of " + what;
      if (!record_undone(hardware_.destroy_compute_instance(instance.id, one.id), "destroyed", part)) return;
    }
    if (before == nullptr) record_undone(hardware_.destroy_gpu_instance(instance.id), "destroyed", what);
  }

  void restore_mode(const State& now) {
    const bool waited = before_.pending.value_or(before_.enabled);
    if (now.enabled == before_.enabled && now.pending.value_or(now.enabled) == waited) return;
    // A pending mode returns to the previous one; otherwise the current mode changes back.
    const bool mode = now.enabled == before_.enabled ? waited : before_.enabled;
    const std::string what = mode ? "MIG mode on" : "MIG mode off";
    const auto activation = hardware_.set_mode(mode);
    if (!activation) return record_failure(activation.error().with_context(what));
    if (*activation != MigActivation::kActive && mode == before_.enabled) {
      return record_failure(Error(Code::kFailedPrecondition, what + " again: the GPU must be reset"));
    }
    report_.steps_undone.push_back("set " + what);
  }

  void restore_instances(const GpuInstance& target) {
    const std::string what =
        instance_profile_name(before_, target.profile) + " " + placement_text(target.placement);
    const auto now = hardware_.read_state();
    if (!now) return record_failure(now.error().with_context(what));
    const GpuInstance* existing = find_same(now->instances, target);
    unsigned id = 0;
    if (existing != nullptr) {
      id = existing->id;
    } else {
      const auto made = hardware_.create_gpu_instance(target.profile, target.placement);
      if (!made) return record_failure(made.error().with_context(what));
      report_.steps_undone.push_back("created " + what);
      id = *made;
    }
    for (const auto& compute :
         without(target.compute, existing == nullptr ? std::vector<ComputeInstance>{} : existing->compute)) {
      const auto placement = compute.placement.size == 0 ? std::nullopt : std::optional(compute.placement);
      const NewCompute again{compute.placement.size, what, compute.profile, placement};
      const auto made = hardware_.create_compute_instance(id, again);
      const Status status = made ? Status{} : fail(made.error());
      if (!record_undone(status, "created", "a compute instance of " + what)) return;
    }
  }

  Hardware& hardware_;
  const State& before_;
  const Plan& plan_;
  Report& report_;
};

}  // namespace

bool same_layout(const State& a, const State& b) {
  if (a.enabled != b.enabled || a.pending.value_or(a.enabled) != b.pending.value_or(b.enabled)) return false;
  if (a.instances.size() != b.instances.size()) return false;
  return std::ranges::all_of(a.instances, [&](const GpuInstance& one) {
    const GpuInstance* other = find_same(b.instances, one);
    return other != nullptr && one.compute.size() == other->compute.size() &&
           without(one.compute, other->compute).empty();
  });
}

namespace {

void roll_back(Hardware& hardware, const State& before, const Plan& plan, Report& report) {
  Rollback(hardware, before, plan, report).undo_steps();
  report.outcome = report.rollback_error ? Outcome::kInBetween : Outcome::kAsBefore;
}

Error plan_outdated(const std::string& what) {
  return Error(Code::kFailedPrecondition, "the GPU has changed since the plan was made: " + what);
}

const GpuInstance* find_instance(const State& state, unsigned id) {
  const auto found = std::ranges::find(state.instances, id, &GpuInstance::id);
  return found == state.instances.end() ? nullptr : &*found;
}

Status check_instance(const State& state, unsigned id, const std::string& profile,
                      const Placement& placement) {
  const GpuInstance* existing = find_instance(state, id);
  const Profile* has = existing == nullptr ? nullptr : find_profile(state, existing->profile);
  if (has == nullptr || has->name != profile || existing->placement != placement) {
    return fail(plan_outdated(profile + " " + placement_text(placement) + " is not there"));
  }
  return {};
}

Status check_compute(const State& state, unsigned instance, unsigned compute) {
  const GpuInstance* existing = find_instance(state, instance);
  if (existing == nullptr ||
      std::ranges::find(existing->compute, compute, &ComputeInstance::id) == existing->compute.end()) {
    return fail(plan_outdated("compute instance " + std::to_string(compute) + " of GPU instance " +
                              std::to_string(instance) + " is not there"));
  }
  return {};
}

// Whether the GPU still has every instance that the plan names.
Status still_fits(const State& state, const Plan& plan) {
  if (plan.is_blocked())
    return fail(Code::kFailedPrecondition, "blocked by " + text::join(plan.blocked_by, "; "));
  if (!state.capable && !plan.is_noop())
    return fail(Code::kUnsupported, describe_gpu(state) + " does not support MIG");
  for (const auto& keep : plan.keep) {
    GPULET_TRY(check_instance(state, keep.instance, keep.profile, keep.placement));
    for (const unsigned compute : keep.compute) GPULET_TRY(check_compute(state, keep.instance, compute));
  }
  for (const auto& step : plan.destroy) {
    GPULET_TRY(check_instance(state, step.instance, step.profile, step.placement));
    for (const auto& compute : find_instance(state, step.instance)->compute) {
      const bool planned = std::ranges::any_of(plan.destroy_compute, [&](const DestroyCompute& one) {
        return one.instance == step.instance && one.compute == compute.id;
      });
      if (!planned)
        return fail(plan_outdated(step.profile + " " + placement_text(step.placement) +
                                  " has more compute instances"));
    }
  }
  for (const auto& step : plan.destroy_compute) GPULET_TRY(check_compute(state, step.instance, step.compute));
  for (const auto& step : plan.create_compute) {
    if (find_instance(state, step.instance) == nullptr) {
      return fail(plan_outdated("GPU instance " + std::to_string(step.instance) + " is not there"));
    }
  }
  return {};
}

class PlanRunner {
 public:
  PlanRunner(Hardware& hardware, const State& before, const Plan& plan, Report& report)
      : hardware_(hardware), before_(before), plan_(plan), report_(report) {}

  // Returns false if the mode waits for a reset, so that nothing more can be done now.
  Result<bool> run_steps() {
    for (const auto& step : plan_.destroy_compute) GPULET_TRY(destroy_step(step));
    for (const auto& step : plan_.destroy) GPULET_TRY(destroy_step(step));
    GPULET_TRY_ASSIGN(const bool in_force, apply_mode());
    if (!in_force) return false;
    for (const auto& step : plan_.create_compute) GPULET_TRY(create_step(step.instance, step.compute));
    for (const auto& step : plan_.create) GPULET_TRY(create_step(step));
    return true;
  }

 private:
  Status check_unused(std::optional<unsigned> instance, const std::string& what) {
    auto holders = hardware_.holders(instance);
    if (!holders) return fail(holders.error().with_context(what));
    if (holders->empty()) return {};
    return fail(Code::kFailedPrecondition, what + ": in use by " + text::join(*holders, ", "));
  }
  Status record_step(const std::string& action, const std::string& what, const Status& status) {
    if (!status) return fail(status.error().with_context(what));
    report_.steps_done.push_back(action + " " + what);
    return {};
  }

  Status destroy_step(const DestroyCompute& step) {
    const GpuInstance* existing = find_instance(before_, step.instance);
    const std::string what = step.device + " in the instance " + placement_text(existing->placement);
    GPULET_TRY(check_unused(step.instance, what));
    return record_step("destroyed", what, hardware_.destroy_compute_instance(step.instance, step.compute));
  }
  Status destroy_step(const Destroy& step) {
    const std::string what = step.profile + " " + placement_text(step.placement);
    GPULET_TRY(check_unused(step.instance, what));
    return record_step("destroyed", what, hardware_.destroy_gpu_instance(step.instance));
  }

  Result<bool> apply_mode() {
    if (!plan_.set_mode) return true;
    const std::string what = *plan_.set_mode ? "MIG mode on" : "MIG mode off";
    if (before_.enabled != *plan_.set_mode) GPULET_TRY(check_unused(std::nullopt, what));
    const auto activation = hardware_.set_mode(*plan_.set_mode);
    GPULET_TRY(record_step("set", what, activation ? Status{} : fail(activation.error())));
    report_.in_use = *activation == MigActivation::kInUse;
    if (report_.in_use) report_.holders = hardware_.device_holders();
    return *activation == MigActivation::kActive;
  }

  Status create_step(unsigned instance, const NewCompute& compute) {
    const auto made = hardware_.create_compute_instance(instance, compute);
    return record_step("created", compute.device, made ? Status{} : fail(made.error()));
  }
  Status create_step(const Create& step) {
    const auto made = hardware_.create_gpu_instance(step.profile_id, step.placement);
    GPULET_TRY(record_step("created", step.profile + " " + placement_text(step.placement),
                           made ? Status{} : fail(made.error())));
    for (const auto& compute : step.compute) {
      // A single step that covers the whole instance is not listed.
      const auto part = hardware_.create_compute_instance(*made, compute);
      if (!part)
        return fail(part.error().with_context(compute.device + " in " + step.profile + " " +
                                              placement_text(step.placement)));
      if (compute.device != step.profile) report_.steps_done.push_back("created " + compute.device);
    }
    return {};
  }

  Hardware& hardware_;
  const State& before_;
  const Plan& plan_;
  Report& report_;
};

}  // namespace

std::string_view outcome_name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kDone:
      return "done";
    case Outcome::kNeedsReset:
      return "needs-reset";
    case Outcome::kAsBefore:
      return "as-before";
    case Outcome::kInBetween:
      return "in-between";
  }
  return "unknown";
}

Report apply_plan(Hardware& hardware, const Plan& plan) {
  Report report;
  const auto before = hardware.read_state();
  if (!before) {
    report.error = before.error();
    return report;
  }
  if (const auto fits = still_fits(*before, plan); !fits) {
    report.error = fits.error();
    return report;
  }
  const auto result = PlanRunner(hardware, *before, plan, report).run_steps();
  if (!result) {
    report.error = result.error();
    roll_back(hardware, *before, plan, report);
    return report;
  }
  report.outcome = *result ? Outcome::kDone : Outcome::kNeedsReset;
  return report;
}

std::string pending_mode_reason(bool in_use, const std::vector<DeviceHolder>& holders) {
  if (!in_use) return "the GPU must be reset";
  std::string names;
  for (const auto& holder : holders) names += (names.empty() ? "" : ", ") + holder.name;
  return "in use by " + (names.empty() ? "a process or a monitor" : names);
}

std::string describe_report(const Report& report) {
  std::string text(outcome_name(report.outcome));
  if (!report.steps_done.empty()) text += ": " + text::join(report.steps_done, "; ");
  if (report.in_use) text += "; " + pending_mode_reason(report.in_use, report.holders);
  if (report.error) text += "; failed: " + report.error->full_message();
  if (!report.steps_undone.empty()) text += "; rolled back: " + text::join(report.steps_undone, "; ");
  if (report.rollback_error) text += "; rollback failed: " + report.rollback_error->full_message();
  return text;
}

}  // namespace gpulet::mig
