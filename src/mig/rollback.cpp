#include "mig/rollback.h"

#include <algorithm>

#include "base/text.h"
#include "mig/layout.h"

namespace gpulet::mig {
namespace {

const GpuInstance* find_same(const std::vector<GpuInstance>& instances, const GpuInstance& wanted) {
  const auto found = std::ranges::find_if(instances, [&](const GpuInstance& one) {
    return one.profile == wanted.profile && one.placement == wanted.placement;
  });
  return found == instances.end() ? nullptr : &*found;
}

// Those of `a` that have no equal in `b`, by profile and placement, each of `b` counted once.
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

std::string profile_name(const State& state, unsigned id) {
  const Profile* profile = find_profile(state, id);
  return profile == nullptr ? "profile " + std::to_string(id) : profile->name;
}

// One undoing: what is there now, towards what was.
class Rollback {
 public:
  Rollback(Hardware& hardware, const State& before, const Plan& plan, Report& report)
      : hardware_(hardware), before_(before), plan_(plan), report_(report) {}

  void run() {
    const auto now = hardware_.read();
    if (!now) return failed(now.error().with("reading the GPU for the way back"));
    if (same_layout(*now, before_)) return;
    for (const auto& instance : now->instances) remove_ours(*now, instance);
    restore_mode(*now);
    for (const auto& instance : before_.instances) restore(instance);
    const auto end = hardware_.read();
    if (!end) return failed(end.error().with("reading the GPU after the way back"));
    if (!same_layout(*end, before_)) {
      failed(Error(Code::kFailedPrecondition, "the GPU has " + describe(layout_now(*end)) + " and had " +
                                                  describe(layout_now(before_))));
    }
  }

 private:
  void failed(const Error& error) {
    if (!report_.rollback_error) report_.rollback_error = error;
  }
  // Notes what was undone, or why not.
  bool note(const Status& status, const std::string& action, const std::string& what) {
    if (status) {
      report_.undone.push_back(action + " " + what);
    } else {
      failed(status.error().with(what));
    }
    return status.has_value();
  }

  // The new compute instances of one that stays.
  std::vector<ComputeInstance> ours_in(const GpuInstance& now, const GpuInstance& before) const {
    auto more = without(now.compute, before.compute);
    const bool makes = std::ranges::find(plan_.create_compute, before.id, &CreateCompute::instance) !=
                       plan_.create_compute.end();
    return makes ? more : std::vector<ComputeInstance>{};
  }

  void remove_ours(const State& now, const GpuInstance& instance) {
    const GpuInstance* before = find_same(before_.instances, instance);
    const bool made = std::ranges::any_of(plan_.create, [&](const Create& create) {
      return create.profile_id == instance.profile && create.placement == instance.placement;
    });
    const auto compute = before != nullptr ? ours_in(instance, *before)
                         : made            ? instance.compute
                                           : std::vector<ComputeInstance>{};
    const std::string what = profile_name(now, instance.profile) + " " + at(instance.placement);
    if (compute.empty() && (before != nullptr || !made)) return;
    // Made a moment ago, and yet somebody may be on it. Who held an instance that stays does not hold what is
    // new.
    auto holders = hardware_.holders(instance.id);
    if (!holders) return failed(holders.error().with(what));
    if (before != nullptr) {
      std::erase_if(*holders, [&](const std::string& holder) {
        return std::ranges::find(before->holders, holder) != before->holders.end();
      });
    }
    if (!holders->empty()) {
      return failed(Error(Code::kFailedPrecondition, what + ": in use by " + text::join(*holders, ", ")));
    }
    for (const auto& one : compute) {
      const std::string part = "compute instance " + std::to_string(one.id) + " of " + what;
      if (!note(hardware_.destroy_compute(instance.id, one.id), "destroyed", part)) return;
    }
    if (before == nullptr) note(hardware_.destroy_instance(instance.id), "destroyed", what);
  }

  void restore_mode(const State& now) {
    const bool waited = before_.pending.value_or(before_.enabled);
    if (now.enabled == before_.enabled && now.pending.value_or(now.enabled) == waited) return;
    // A mode that waits is what it was before; else the one in force.
    const bool mode = now.enabled == before_.enabled ? waited : before_.enabled;
    const std::string what = mode ? "MIG mode on" : "MIG mode off";
    const auto needs_reset = hardware_.set_mode(mode);
    if (!needs_reset) return failed(needs_reset.error().with(what));
    if (*needs_reset && mode == before_.enabled) {
      return failed(Error(Code::kFailedPrecondition, what + " again: the GPU must be reset"));
    }
    report_.undone.push_back("set " + what);
  }

  void restore(const GpuInstance& wanted) {
    const std::string what = profile_name(before_, wanted.profile) + " " + at(wanted.placement);
    const auto now = hardware_.read();
    if (!now) return failed(now.error().with(what));
    const GpuInstance* there = find_same(now->instances, wanted);
    unsigned id = 0;
    if (there != nullptr) {
      id = there->id;
    } else {
      const auto made = hardware_.create_instance(wanted.profile, wanted.placement);
      if (!made) return failed(made.error().with(what));
      report_.undone.push_back("created " + what);
      id = *made;
    }
    for (const auto& compute :
         without(wanted.compute, there == nullptr ? std::vector<ComputeInstance>{} : there->compute)) {
      const auto placement = compute.placement.size == 0 ? std::nullopt : std::optional(compute.placement);
      const NewCompute again{compute.placement.size, what, compute.profile, placement};
      const auto made = hardware_.create_compute(id, again);
      const Status status = made ? Status{} : fail(made.error());
      if (!note(status, "created", "a compute instance of " + what)) return;
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

void roll_back(Hardware& hardware, const State& before, const Plan& plan, Report& report) {
  Rollback(hardware, before, plan, report).run();
  report.outcome = report.rollback_error ? Outcome::kInBetween : Outcome::kAsBefore;
}

}  // namespace gpulet::mig
