#include "mig/fixed_instance.h"

#include <algorithm>

#include "mig/plan.h"

namespace gpulet::mig {
namespace {

std::string instance_text(const State& state, const GpuInstance& instance) {
  const auto* profile = find_profile(state, instance.profile);
  return (profile != nullptr ? profile->name : "profile " + std::to_string(instance.profile)) + " " +
         placement_text(instance.placement);
}

bool is_at(const GpuInstance& instance, const FixedPlace& place) {
  return instance.profile == place.profile && instance.placement == place.placement;
}

bool overlaps(const Placement& a, const Placement& b) {
  return a.start < b.start + b.size && b.start < a.start + a.size;
}

const GpuInstance* instance_at(const State& state, const FixedPlace& place) {
  const auto found = std::ranges::find_if(
      state.instances, [&](const GpuInstance& instance) { return is_at(instance, place); });
  return found == state.instances.end() ? nullptr : &*found;
}

// The device that has all compute slices of its GPU instance; nullptr if there is another one, or none.
const ComputeInstance* whole_device(const State& state, const GpuInstance& instance) {
  const auto* profile = find_profile(state, instance.profile);
  if (profile == nullptr || instance.compute.size() != 1) return nullptr;
  const auto& only = instance.compute.front();
  const auto slices = compute_slices(*profile, only.profile);
  return slices == profile->slices && !only.uuid.empty() ? &only : nullptr;
}

std::string holders_text(const GpuInstance& instance) {
  std::string text;
  for (const auto& holder : instance.holders) text += (text.empty() ? "" : ", ") + holder;
  return text;
}

Result<State> read_checked(Hardware& hardware, const FixedPlace& place) {
  GPULET_TRY_ASSIGN(auto state, hardware.read_state());
  if (!state.enabled) return fail(Code::kFailedPrecondition, "MIG is off", describe_gpu(state));
  const auto* profile = find_profile(state, place.profile);
  if (profile == nullptr ||
      std::ranges::find(profile->placements, place.placement) == profile->placements.end()) {
    return fail(Code::kUnsupported,
                "no MIG profile " + std::to_string(place.profile) + " " + placement_text(place.placement),
                describe_gpu(state));
  }
  for (const auto& instance : state.instances) {
    if (is_at(instance, place) || !overlaps(instance.placement, place.placement)) continue;
    return fail(Code::kUnavailable,
                "the MIG instance " + instance_text(state, instance) + " is in the place of " +
                    profile->name + " " + placement_text(place.placement),
                describe_gpu(state));
  }
  return state;
}

Result<unsigned> ensure_gpu_instance(Hardware& hardware, const State& state, const FixedPlace& place,
                                     bool resumes) {
  const auto* there = instance_at(state, place);
  if (there != nullptr && resumes) return there->id;
  if (there == nullptr) {
    auto made = hardware.create_gpu_instance(place.profile, place.placement);
    if (made) return *made;
    // Another program was faster, if there is no room.
    if (made.error().code() != Code::kFailedPrecondition) return fail(made.error());
    const auto now = hardware.read_state();
    if (!now || instance_at(*now, place) == nullptr) return fail(made.error());
  }
  return fail(kNotMade, "another program has made a MIG instance " + placement_text(place.placement),
              describe_gpu(state));
}

}  // namespace

Result<DeviceUuid> find_fixed_instance(Hardware& hardware, const FixedPlace& place) {
  GPULET_TRY_ASSIGN(const State state, read_checked(hardware, place));
  const auto* there = instance_at(state, place);
  if (there == nullptr) return DeviceUuid();
  const std::string text = "the MIG instance " + instance_text(state, *there);
  const auto* device = whole_device(state, *there);
  if (device == nullptr) {
    return fail(Code::kUnavailable, text + " has not exactly one device of all its slices",
                describe_gpu(state));
  }
  if (!there->holders.empty()) {
    return fail(Code::kUnavailable, text + " is held by " + holders_text(*there), describe_gpu(state));
  }
  return device->uuid;
}

Result<DeviceUuid> make_fixed_instance(Hardware& hardware, const FixedPlace& place, bool resumes) {
  GPULET_TRY_ASSIGN(const State state, read_checked(hardware, place));
  GPULET_TRY_ASSIGN(const unsigned instance, ensure_gpu_instance(hardware, state, place, resumes));
  const auto* there = instance_at(state, place);
  if (there == nullptr || there->compute.empty()) {
    const auto* profile = find_profile(state, place.profile);
    GPULET_TRY(hardware.create_compute_instance(
        instance, {profile->slices, device_name(*profile, profile->slices), std::nullopt, std::nullopt}));
  }
  GPULET_TRY_ASSIGN(const State after, hardware.read_state());
  const auto* made = instance_at(after, place);
  const auto* device = made != nullptr ? whole_device(after, *made) : nullptr;
  if (device == nullptr) {
    return fail(Code::kUnavailable, "the MIG device " + placement_text(place.placement) + " is not there yet",
                describe_gpu(state));
  }
  return device->uuid;
}

Status remove_fixed_instance(Hardware& hardware, const FixedPlace& place, const DeviceUuid& uuid) {
  GPULET_TRY_ASSIGN(const State state, hardware.read_state());
  const auto* there = instance_at(state, place);
  if (there == nullptr) return {};
  // A GPU instance whose device is gone is what an interrupted call has left.
  const bool is_another = std::ranges::any_of(there->compute, [&](const ComputeInstance& compute) {
    return !uuid.empty() && !compute.uuid.empty() && compute.uuid != uuid;
  });
  if (is_another) return {};
  // Again, because reading the whole state takes a while.
  GPULET_TRY_ASSIGN(auto holders, hardware.holders(there->id));
  if (!holders.empty()) {
    GpuInstance held = *there;
    held.holders = std::move(holders);
    return fail(Code::kUnavailable,
                "the MIG instance " + instance_text(state, held) + " is held by " + holders_text(held),
                describe_gpu(state));
  }
  for (const auto& compute : there->compute) {
    GPULET_TRY(hardware.destroy_compute_instance(there->id, compute.id));
  }
  return hardware.destroy_gpu_instance(there->id);
}

}  // namespace gpulet::mig
