#include "mig/apply.h"

#include <algorithm>

#include "base/text.h"
#include "mig/layout.h"
#include "mig/rollback.h"

namespace gpulet::mig {
namespace {

Error changed(const std::string& what) {
  return Error(Code::kFailedPrecondition, "the GPU has changed since this was planned: " + what);
}

const GpuInstance* find_instance(const State& state, unsigned id) {
  const auto found = std::ranges::find(state.instances, id, &GpuInstance::id);
  return found == state.instances.end() ? nullptr : &*found;
}

Status check_instance(const State& state, unsigned id, const std::string& profile,
                      const Placement& placement) {
  const GpuInstance* there = find_instance(state, id);
  const Profile* has = there == nullptr ? nullptr : find_profile(state, there->profile);
  if (has == nullptr || has->name != profile || there->placement != placement) {
    return fail(changed(profile + " " + at(placement) + " is not there"));
  }
  return {};
}

Status check_compute(const State& state, unsigned instance, unsigned compute) {
  const GpuInstance* there = find_instance(state, instance);
  if (there == nullptr ||
      std::ranges::find(there->compute, compute, &ComputeInstance::id) == there->compute.end()) {
    return fail(changed("compute instance " + std::to_string(compute) + " of GPU instance " +
                        std::to_string(instance) + " is not there"));
  }
  return {};
}

// Whether the plan is about what the GPU has: every instance that it names.
Status still_fits(const State& state, const Plan& plan) {
  if (plan.blocked())
    return fail(Code::kFailedPrecondition, "blocked by " + text::join(plan.blocked_by, "; "));
  if (!state.capable && !plan.nothing_to_do())
    return fail(Code::kUnsupported, describe_gpu(state) + " has no MIG");
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
        return fail(changed(step.profile + " " + at(step.placement) + " has more compute instances"));
    }
  }
  for (const auto& step : plan.destroy_compute) GPULET_TRY(check_compute(state, step.instance, step.compute));
  for (const auto& step : plan.create_compute) {
    if (find_instance(state, step.instance) == nullptr) {
      return fail(changed("GPU instance " + std::to_string(step.instance) + " is not there"));
    }
  }
  return {};
}

class Steps {
 public:
  Steps(Hardware& hardware, const State& before, const Plan& plan, Report& report)
      : hardware_(hardware), before_(before), plan_(plan), report_(report) {}

  // false: the mode waits for a reset, and no more can be done now.
  Result<bool> run() {
    for (const auto& step : plan_.destroy_compute) GPULET_TRY(destroy(step));
    for (const auto& step : plan_.destroy) GPULET_TRY(destroy(step));
    GPULET_TRY_ASSIGN(const bool in_force, set_mode());
    if (!in_force) return false;
    for (const auto& step : plan_.create_compute) GPULET_TRY(create(step.instance, step.compute));
    for (const auto& step : plan_.create) GPULET_TRY(create(step));
    return true;
  }

 private:
  Status nobody_holds(std::optional<unsigned> instance, const std::string& what) {
    auto holders = hardware_.holders(instance);
    if (!holders) return fail(holders.error().with(what));
    if (holders->empty()) return {};
    return fail(Code::kFailedPrecondition, what + ": in use by " + text::join(*holders, ", "));
  }
  Status done(const std::string& action, const std::string& what, const Status& status) {
    if (!status) return fail(status.error().with(what));
    report_.done.push_back(action + " " + what);
    return {};
  }

  Status destroy(const DestroyCompute& step) {
    const GpuInstance* there = find_instance(before_, step.instance);
    const std::string what = step.device + " in the instance " + at(there->placement);
    GPULET_TRY(nobody_holds(step.instance, what));
    return done("destroyed", what, hardware_.destroy_compute(step.instance, step.compute));
  }
  Status destroy(const Destroy& step) {
    const std::string what = step.profile + " " + at(step.placement);
    GPULET_TRY(nobody_holds(step.instance, what));
    return done("destroyed", what, hardware_.destroy_instance(step.instance));
  }

  Result<bool> set_mode() {
    if (!plan_.set_mode) return !plan_.needs_reset;
    const std::string what = *plan_.set_mode ? "MIG mode on" : "MIG mode off";
    if (before_.enabled != *plan_.set_mode) GPULET_TRY(nobody_holds(std::nullopt, what));
    const auto needs_reset = hardware_.set_mode(*plan_.set_mode);
    GPULET_TRY(done("set", what, needs_reset ? Status{} : fail(needs_reset.error())));
    return !*needs_reset;
  }

  Status create(unsigned instance, const NewCompute& compute) {
    const auto made = hardware_.create_compute(instance, compute);
    return done("created", compute.device, made ? Status{} : fail(made.error()));
  }
  Status create(const Create& step) {
    const auto made = hardware_.create_instance(step.profile_id, step.placement);
    GPULET_TRY(
        done("created", step.profile + " " + at(step.placement), made ? Status{} : fail(made.error())));
    for (const auto& compute : step.compute) {
      // The whole of it goes without saying.
      const auto part = hardware_.create_compute(*made, compute);
      if (!part)
        return fail(part.error().with(compute.device + " in " + step.profile + " " + at(step.placement)));
      if (compute.device != step.profile) report_.done.push_back("created " + compute.device);
    }
    return {};
  }

  Hardware& hardware_;
  const State& before_;
  const Plan& plan_;
  Report& report_;
};

}  // namespace

std::string_view name(Outcome outcome) {
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

Report apply(Hardware& hardware, const Plan& plan) {
  Report report;
  const auto before = hardware.read();
  if (!before) {
    report.error = before.error();
    return report;
  }
  if (const auto fits = still_fits(*before, plan); !fits) {
    report.error = fits.error();
    return report;
  }
  const auto result = Steps(hardware, *before, plan, report).run();
  if (!result) {
    report.error = result.error();
    roll_back(hardware, *before, plan, report);
    return report;
  }
  report.outcome = *result ? Outcome::kDone : Outcome::kNeedsReset;
  return report;
}

std::string describe(const Report& report) {
  std::string text(name(report.outcome));
  if (!report.done.empty()) text += ": " + text::join(report.done, "; ");
  if (report.error) text += "; failed: " + report.error->text();
  if (!report.undone.empty()) text += "; taken back: " + text::join(report.undone, "; ");
  if (report.rollback_error) text += "; not taken back: " + report.rollback_error->text();
  return text;
}

}  // namespace gpulet::mig
