#include "mig/plan.h"

#include <algorithm>

#include "base/text.h"
#include "mig/packing.h"
#include "mig/requests.h"

namespace gpulet::mig {
namespace {

std::string profile_name(const State& state, const GpuInstance& instance) {
  const Profile* profile = find_profile(state, instance.profile);
  return profile == nullptr ? "profile " + std::to_string(instance.profile) : profile->name;
}

std::string device_name(const State& state, const GpuInstance& instance, const ComputeInstance& compute) {
  const Profile* profile = find_profile(state, instance.profile);
  const auto slices = profile == nullptr ? std::nullopt : compute_slices(*profile, compute.profile);
  return slices ? device_name(*profile, *slices) : "compute instance of " + profile_name(state, instance);
}

void destroy(const State& state, const GpuInstance& instance, Plan& plan) {
  for (const auto& compute : instance.compute) {
    plan.destroy_compute.push_back({instance.id, compute.id, device_name(state, instance, compute)});
  }
  plan.destroy.push_back({instance.id, profile_name(state, instance), instance.placement});
}

void block(const State& state, const GpuInstance& instance, Plan& plan) {
  for (const auto& holder : instance.holders) {
    plan.blocked_by.push_back(holder + ", on " + profile_name(state, instance) + " " +
                              at(instance.placement));
  }
}

NewCompute new_compute(const Profile& profile, const ComputeFit::New& part) {
  NewCompute made{part.slices, device_name(profile, part.slices), std::nullopt, part.placement};
  if (profile.compute.empty()) return made;
  const auto same = std::ranges::find(profile.compute, part.slices, &ComputeProfile::slices);
  if (part.slices == profile.slices) {
    made.profile = profile.compute.back().id;
  } else if (same != profile.compute.end()) {
    made.profile = same->id;
  }
  return made;
}

// One GPU instance of the packing that is there already.
void keep(const State& state, const Packing::Instance& packed, Plan& plan) {
  const GpuInstance& there = *packed.there;
  Keep kept{there.id, packed.profile->name, there.placement, {}};
  for (std::size_t i = 0; i < there.compute.size(); ++i) {
    const auto& compute = there.compute[i];
    if (std::ranges::find(packed.compute.keep, i) != packed.compute.keep.end()) {
      kept.compute.push_back(compute.id);
    } else {
      plan.destroy_compute.push_back({there.id, compute.id, device_name(state, there, compute)});
    }
  }
  if (kept.compute.size() != there.compute.size()) block(state, there, plan);
  plan.keep.push_back(std::move(kept));
  for (const auto& part : packed.compute.make) {
    plan.create_compute.push_back({there.id, new_compute(*packed.profile, part)});
  }
}

void fill(const State& state, const Packing& packing, Plan& plan) {
  for (const auto& there : state.instances) {
    const bool stays =
        std::ranges::any_of(packing.instances, [&](const auto& packed) { return packed.there == &there; });
    if (stays) continue;
    destroy(state, there, plan);
    block(state, there, plan);
  }
  for (const auto& packed : packing.instances) {
    if (packed.there != nullptr) {
      keep(state, packed, plan);
      continue;
    }
    Create made{packed.profile->id, packed.profile->name, packed.placement, {}};
    for (const auto& part : packed.compute.make) made.compute.push_back(new_compute(*packed.profile, part));
    plan.create.push_back(std::move(made));
  }
}

// The mode, and who must go before it can change.
void change_mode(const State& state, bool enabled, Plan& plan) {
  const bool in_force = state.enabled == enabled;
  // What waits for the next reset is taken back.
  if (!in_force || state.pending.value_or(enabled) != enabled) plan.set_mode = enabled;
  if (in_force) return;
  plan.needs_reset = state.pending == enabled;
  for (const auto& holder : state.holders) plan.blocked_by.push_back(holder + ", on the GPU");
}

// "1g.10gb at 0, 1g.10gb at 1" of any of the steps.
template <class Step>
void list(const std::vector<Step>& steps, const char* verb, std::vector<std::string>& phrases) {
  std::string text;
  for (const auto& step : steps) {
    text += (text.empty() ? std::string(verb) + " " : ", ") + step.profile + " " + at(step.placement);
    if constexpr (requires { step.compute.front().device; }) {
      // Only where it is not simply the whole.
      std::map<std::string, unsigned> parts;
      for (const auto& compute : step.compute) ++parts[compute.device];
      parts.erase(step.profile);
      if (!parts.empty()) text += " (" + describe(Layout{true, std::move(parts)}) + ")";
    }
  }
  if (!text.empty()) phrases.push_back(std::move(text));
}

std::string phrases_of(const Plan& plan) {
  std::vector<std::string> phrases;
  std::map<std::string, unsigned> gone, made;
  for (const auto& compute : plan.destroy_compute) {
    const bool alone =
        std::ranges::find(plan.destroy, compute.instance, &Destroy::instance) == plan.destroy.end();
    if (alone) ++gone[compute.device];
  }
  for (const auto& compute : plan.create_compute) ++made[compute.compute.device];
  if (!gone.empty()) phrases.push_back("destroy compute instances " + describe(Layout{true, gone}));
  list(plan.destroy, "destroy", phrases);
  if (plan.set_mode) phrases.push_back(*plan.set_mode ? "enable MIG" : "disable MIG");
  if (plan.needs_reset) phrases.push_back("reset the GPU");
  if (!made.empty()) phrases.push_back("create compute instances " + describe(Layout{true, made}));
  list(plan.create, "create", phrases);
  list(plan.keep, "keep", phrases);
  return text::join(phrases, "; ");
}

// A plan that would disturb somebody has no steps.
Plan settled(Plan plan) {
  if (!plan.blocked()) return plan;
  Plan blocked;
  blocked.gpu = plan.gpu;
  blocked.would = phrases_of(plan);
  blocked.blocked_by = std::move(plan.blocked_by);
  return blocked;
}

}  // namespace

bool Plan::nothing_to_do() const {
  return !blocked() && destroy_compute.empty() && destroy.empty() && !set_mode && !needs_reset &&
         create_compute.empty() && create.empty();
}

Result<Plan> plan(const State& state, const Layout& layout) {
  Plan plan;
  plan.gpu = state.index;
  if (!layout.enabled && !layout.devices.empty()) {
    return fail(Code::kInvalidArgument,
                "a layout with MIG disabled cannot have devices: " + describe(Layout{true, layout.devices}));
  }
  if (!state.capable) {
    if (layout.enabled) return fail(Code::kUnsupported, describe_gpu(state) + " has no MIG");
    return plan;
  }
  GPULET_TRY_ASSIGN(const auto requests, requests_of(state, layout));
  const std::vector<GpuInstance> none;
  const auto packing = pack(state, requests, state.enabled ? state.instances : none);
  if (!packing) return fail(does_not_fit(state, layout));
  fill(state, *packing, plan);
  change_mode(state, layout.enabled, plan);
  return settled(std::move(plan));
}

Result<Plan> plan_mode(const State& state, bool enabled) {
  if (!state.capable || state.enabled != enabled) return plan(state, {enabled, {}});
  Plan plan;
  plan.gpu = state.index;
  change_mode(state, enabled, plan);
  return plan;
}

std::vector<std::string> describe(const Plan& plan) {
  const std::string gpu = "GPU " + std::to_string(plan.gpu) + ": ";
  if (plan.nothing_to_do()) {
    const std::string kept = phrases_of(plan);
    return {gpu + "nothing to do" + (kept.empty() ? "" : "; " + kept)};
  }
  if (!plan.blocked()) return {gpu + phrases_of(plan)};
  std::vector<std::string> lines = {gpu + "blocked; would " + plan.would};
  for (const auto& holder : plan.blocked_by) lines.push_back(gpu + "blocked by " + holder);
  return lines;
}

}  // namespace gpulet::mig
