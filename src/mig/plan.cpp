#include "mig/plan.h"

#include <algorithm>
#include <tuple>

#include "base/text.h"
#include "mig/packing.h"

namespace gpulet::mig {
namespace {

Error unknown_profile(const State& state, const ProfileName& name) {
  std::vector<std::string> names;
  for (const auto& profile : state.profiles) names.push_back(profile.name);
  std::string message = describe_gpu(state) + " has no profile " + name.instance;
  // Maps another board's profile name to the smallest profile with as many slices.
  const Profile* same = nullptr;
  for (const auto& profile : state.profiles) {
    if (profile.slices == name.slices && (same == nullptr || profile.max_instances > same->max_instances))
      same = &profile;
  }
  auto close = text::nearest(name.instance, names);
  if (same != nullptr && (!close || find_profile(state, *close)->slices != name.slices ||
                          name.instance.find_first_of("+-") == std::string::npos)) {
    close = same->name;
  }
  message += close ? "; did you mean " + *close + "? It has " : "; it has ";
  return Error(Code::kInvalidArgument, message + text::join(names, ", "));
}

// One line of a layout, resolved on this GPU.
struct RequestedProfile {
  std::string name;
  const Profile* profile = nullptr;
  unsigned slices = 0;  // of the compute instance
  unsigned count = 0;
};

Result<RequestedProfile> requested_profile(const State& state, const std::string& text, unsigned count) {
  GPULET_TRY_ASSIGN(const ProfileName name, parse_profile_name(text));
  const Profile* profile = find_profile(state, name.instance);
  if (profile == nullptr) return fail(unknown_profile(state, name));
  // For a whole instance the profile's slices count, not those in the name.
  const unsigned slices = name.is_whole() ? profile->slices : name.compute;
  std::vector<std::string> sizes;
  for (const auto& compute : profile->compute) sizes.push_back(device_name(*profile, compute.slices));
  const bool offered = sizes.empty() || std::ranges::find(profile->compute, slices,
                                                          &ComputeProfile::slices) != profile->compute.end();
  if (slices == 0 || slices > profile->slices || !offered) {
    return fail(Code::kInvalidArgument, describe_gpu(state) + " has no " + name.canonical_name() +
                                            "; available: " + text::join(sizes, ", "));
  }
  return RequestedProfile{name.canonical_name(), profile, slices, count};
}

Result<std::vector<RequestedProfile>> requested_profiles(const State& state, const Layout& layout) {
  std::vector<RequestedProfile> all;
  for (const auto& [name, count] : layout.devices) {
    if (count == 0) continue;
    GPULET_TRY_ASSIGN(auto requested, requested_profile(state, name, count));
    all.push_back(std::move(requested));
  }
  return all;
}

void add_request(std::vector<Request>& requests, const RequestedProfile& requested, unsigned count) {
  if (count == 0) return;
  auto request = std::ranges::find(requests, requested.profile, &Request::profile);
  if (request == requests.end()) {
    request = requests.insert(request, {requested.profile, SliceCounts(requested.profile->slices + 1)});
  }
  request->slice_counts[requested.slices] += count;
}

// Finds the nearest layout that fits: most profiles, then most devices, then most compute slices;
// of equal ones the one with more of the first profiles.
class NearestLayout {
 public:
  NearestLayout(const State& state, std::vector<RequestedProfile> requested)
      : state_(state), requested_(std::move(requested)) {
    for (const auto& profile : state.profiles) {
      slices_ = std::max(slices_, profile.slices);
      for (const auto& place : profile.placements) memory_ = std::max(memory_, place.start + place.size);
    }
    for (auto& item : requested_) {
      item.count = std::min(item.count, item.profile->max_instances * (item.profile->slices / item.slices));
    }
    counts_.resize(requested_.size());
    parts_.resize(state.profiles.size());
  }

  Layout best_layout() {
    choose_counts(0, {});
    Layout layout{true, {}};
    for (std::size_t i = 0; i < best_counts_.size(); ++i) {
      if (best_counts_[i] != 0) layout.devices[requested_[i].name] = best_counts_[i];
    }
    return layout;
  }

 private:
  struct Score {
    unsigned kinds = 0, devices = 0, slices = 0;
    friend auto operator<=>(const Score&, const Score&) = default;
  };

  // Whether the GPU has room for at least the GPU instances that the counts need.
  bool may_fit() const {
    unsigned slices = 0, memory = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i] == 0) continue;
      const Profile& profile = state_.profiles[i];
      const unsigned instances = (parts_[i] + profile.slices - 1) / profile.slices;
      slices += instances * profile.slices;
      if (!profile.placements.empty()) memory += instances * profile.placements.front().size;
    }
    return slices <= slices_ && memory <= memory_;
  }

  void choose_counts(std::size_t at, Score score) {
    if (!may_fit()) return;
    Score bound = score;
    bound.slices = slices_;
    for (std::size_t i = at; i < requested_.size(); ++i) {
      if (requested_[i].count != 0) ++bound.kinds;
      bound.devices += requested_[i].count;
    }
    if (bound <= best_) return;
    if (at == requested_.size()) return try_counts(score);
    const RequestedProfile& item = requested_[at];
    unsigned& parts = parts_[static_cast<std::size_t>(item.profile - state_.profiles.data())];
    for (unsigned count = item.count + 1; count-- > 0;) {
      const unsigned more = count * item.slices;
      counts_[at] = count;
      parts += more;
      choose_counts(at + 1, {score.kinds + (count != 0 ? 1 : 0), score.devices + count, score.slices + more});
      parts -= more;
    }
  }

  void try_counts(const Score& score) {
    if (score <= best_) return;
    std::vector<Request> requests;
    for (std::size_t i = 0; i < requested_.size(); ++i) add_request(requests, requested_[i], counts_[i]);
    if (!find_packing(state_, requests, {})) return;
    best_ = score;
    best_counts_ = counts_;
  }

  const State& state_;
  std::vector<RequestedProfile> requested_;
  unsigned slices_ = 0, memory_ = 0;            // limits of the GPU
  std::vector<unsigned> counts_, best_counts_;  // in the order of requested_
  std::vector<unsigned> parts_;                 // compute slices, by State::profiles
  Score best_;
};

// One request for each GPU instance profile that the layout names. Errors: kInvalidArgument for a
// profile that the GPU does not have, or that has no compute instances of that size.
Result<std::vector<Request>> requests_for_layout(const State& state, const Layout& layout) {
  GPULET_TRY_ASSIGN(const auto all, requested_profiles(state, layout));
  std::vector<Request> requests;
  for (const auto& requested : all) add_request(requests, requested, requested.count);
  return requests;
}

// The error for a layout without a packing: "... do not fit on GPU 0 (...); the nearest that does:
// ...". Precondition: requests_for_layout succeeds.
Error does_not_fit(const State& state, const Layout& layout) {
  const auto all = requested_profiles(state, layout);
  const Layout nearest = all ? NearestLayout(state, *all).best_layout() : Layout{true, {}};
  std::string message = layout_text(layout) + " do not fit on " + describe_gpu(state);
  message += nearest.devices.empty() ? ", nor does any part of it"
                                     : "; the nearest that does: " + layout_text(nearest);
  return Error(Code::kInvalidArgument, message);
}

std::string name_of_profile(const State& state, const GpuInstance& instance) {
  const Profile* profile = find_profile(state, instance.profile);
  return profile == nullptr ? "profile " + std::to_string(instance.profile) : profile->name;
}

std::string compute_device_name(const State& state, const GpuInstance& instance,
                                const ComputeInstance& compute) {
  const Profile* profile = find_profile(state, instance.profile);
  const auto slices = profile == nullptr ? std::nullopt : compute_slices(*profile, compute.profile);
  return slices ? device_name(*profile, *slices) : "compute instance of " + name_of_profile(state, instance);
}

void destroy_instance_steps(const State& state, const GpuInstance& instance, Plan& plan) {
  for (const auto& compute : instance.compute) {
    plan.destroy_compute.push_back({instance.id, compute.id, compute_device_name(state, instance, compute)});
  }
  plan.destroy.push_back({instance.id, name_of_profile(state, instance), instance.placement});
}

void block_plan(const State& state, const GpuInstance& instance, Plan& plan) {
  for (const auto& holder : instance.holders) {
    plan.blocked_by.push_back(holder + ", on " + name_of_profile(state, instance) + " " +
                              placement_text(instance.placement));
  }
}

NewCompute new_compute(const Profile& profile, const ComputeFit::NewPart& part) {
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

// Records a GPU instance of the packing that already exists.
void keep_instances(const State& state, const Packing::Instance& packed, Plan& plan) {
  const GpuInstance& existing = *packed.existing;
  Keep kept{existing.id, packed.profile->name, existing.placement, {}};
  for (std::size_t i = 0; i < existing.compute.size(); ++i) {
    const auto& compute = existing.compute[i];
    if (std::ranges::find(packed.compute.keep, i) != packed.compute.keep.end()) {
      kept.compute.push_back(compute.id);
    } else {
      plan.destroy_compute.push_back(
          {existing.id, compute.id, compute_device_name(state, existing, compute)});
    }
  }
  if (kept.compute.size() != existing.compute.size()) block_plan(state, existing, plan);
  plan.keep.push_back(std::move(kept));
  for (const auto& part : packed.compute.create) {
    plan.create_compute.push_back({existing.id, new_compute(*packed.profile, part)});
  }
}

void add_packing_steps(const State& state, const Packing& packing, Plan& plan) {
  for (const auto& existing : state.instances) {
    const bool stays = std::ranges::any_of(packing.instances,
                                           [&](const auto& packed) { return packed.existing == &existing; });
    if (stays) continue;
    destroy_instance_steps(state, existing, plan);
    block_plan(state, existing, plan);
  }
  for (const auto& packed : packing.instances) {
    if (packed.existing != nullptr) {
      keep_instances(state, packed, plan);
      continue;
    }
    Create made{packed.profile->id, packed.profile->name, packed.placement, {}};
    for (const auto& part : packed.compute.create) made.compute.push_back(new_compute(*packed.profile, part));
    plan.create.push_back(std::move(made));
  }
}

// Plans the mode change, which is blocked by holders.
void change_mode(const State& state, bool enabled, Plan& plan) {
  const bool in_force = state.enabled == enabled;
  // Cancels a pending mode.
  if (!in_force || state.pending.value_or(enabled) != enabled) plan.set_mode = enabled;
  if (in_force) return;
  plan.needs_reset = state.pending == enabled;
  for (const auto& holder : state.holders) plan.blocked_by.push_back(holder + ", on the GPU");
}

// "1g.10gb at 0, 1g.10gb at 1" of any of the steps.
template <class Step>
void join_phrases(const std::vector<Step>& steps, const char* verb, std::vector<std::string>& phrases) {
  std::string text;
  for (const auto& step : steps) {
    text +=
        (text.empty() ? std::string(verb) + " " : ", ") + step.profile + " " + placement_text(step.placement);
    if constexpr (requires { step.compute.front().device; }) {
      // Only if it is not simply the whole instance.
      std::map<std::string, unsigned> parts;
      for (const auto& compute : step.compute) ++parts[compute.device];
      parts.erase(step.profile);
      if (!parts.empty()) text += " (" + layout_text(Layout{true, std::move(parts)}) + ")";
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
  if (!gone.empty()) phrases.push_back("destroy compute instances " + layout_text(Layout{true, gone}));
  join_phrases(plan.destroy, "destroy", phrases);
  if (plan.set_mode) phrases.push_back(*plan.set_mode ? "enable MIG" : "disable MIG");
  if (plan.needs_reset) phrases.push_back("reset the GPU");
  if (!made.empty()) phrases.push_back("create compute instances " + layout_text(Layout{true, made}));
  join_phrases(plan.create, "create", phrases);
  join_phrases(plan.keep, "keep", phrases);
  return text::join(phrases, "; ");
}

// A plan that would disturb a holder has no steps.
Plan finish_plan(Plan plan) {
  if (!plan.is_blocked()) return plan;
  Plan blocked;
  blocked.gpu = plan.gpu;
  blocked.blocked_steps = phrases_of(plan);
  blocked.blocked_by = std::move(plan.blocked_by);
  return blocked;
}

}  // namespace

bool Plan::is_noop() const {
  return !is_blocked() && destroy_compute.empty() && destroy.empty() && !set_mode && !needs_reset &&
         create_compute.empty() && create.empty();
}

Result<Plan> make_plan(const State& state, const Layout& layout) {
  Plan plan;
  plan.gpu = state.index;
  if (!layout.enabled && !layout.devices.empty()) {
    return fail(Code::kInvalidArgument, "a layout with MIG disabled cannot have devices: " +
                                            layout_text(Layout{true, layout.devices}));
  }
  if (!state.capable) {
    if (layout.enabled) return fail(Code::kUnsupported, describe_gpu(state) + " does not support MIG");
    return plan;
  }
  GPULET_TRY_ASSIGN(const auto requests, requests_for_layout(state, layout));
  const std::vector<GpuInstance> none;
  const auto packing = find_packing(state, requests, state.enabled ? state.instances : none);
  if (!packing) return fail(does_not_fit(state, layout));
  add_packing_steps(state, *packing, plan);
  change_mode(state, layout.enabled, plan);
  return finish_plan(std::move(plan));
}

Result<Plan> plan_mode(const State& state, bool enabled) {
  if (!state.capable || state.enabled != enabled) return make_plan(state, {enabled, {}});
  Plan plan;
  plan.gpu = state.index;
  change_mode(state, enabled, plan);
  return plan;
}

std::vector<std::string> describe_plan(const Plan& plan) {
  const std::string gpu = "GPU " + std::to_string(plan.gpu) + ": ";
  if (plan.is_noop()) {
    const std::string kept = phrases_of(plan);
    return {gpu + "nothing to do" + (kept.empty() ? "" : "; " + kept)};
  }
  if (!plan.is_blocked()) return {gpu + phrases_of(plan)};
  std::vector<std::string> lines = {gpu + "blocked; would " + plan.blocked_steps};
  for (const auto& holder : plan.blocked_by) lines.push_back(gpu + "blocked by " + holder);
  return lines;
}

}  // namespace gpulet::mig
