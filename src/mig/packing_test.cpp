// Compute instances smaller than their GPU instance: plans between random states, checked against
// the hardware and against brute force for what one GPU instance can keep.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <random>

#include "mig/packing.h"
#include "mig/plan.h"
#include "mig/test_states.h"

namespace gpulet::mig {
namespace {

// Fills a GPU at random, some instances with several compute instances, some empty.
void fill_instances(sim::Gpu& gpu, std::mt19937& random) {
  states::set_mig_mode(gpu);
  for (int tries = 0; tries < 8; ++tries) {
    const auto& profile = gpu.mig.profiles[random() % gpu.mig.profile_count];
    sim::GpuInstance* made = nullptr;
    const auto start = profile.placements[random() % profile.placement_count];
    if (sim::create_gpu_instance(gpu, profile.id, start, &made) != sim::MigOutcome::kOk) continue;
    for (unsigned parts = random() % 5; parts != 0; --parts) {
      const auto& compute = profile.compute_profiles[random() % profile.compute_profile_count];
      sim::ComputeInstance* part = nullptr;
      (void)sim::create_compute_instance(gpu, *made, compute.id, std::nullopt, &part);
    }
    if (random() % 3 == 0) (void)sim::destroy_compute_instance(gpu, *made, random() % 3);
  }
}

State random_state(const std::string& name, std::mt19937& random) {
  const auto machine = states::test_machine(name);
  fill_instances(machine->gpus[0], random);
  return states::state_of(machine->gpus[0]);
}

// Restores `state` on the GPU, with the same ids.
std::unique_ptr<sim::Machine> board(const std::string& name, std::uint32_t seed) {
  auto machine = states::test_machine(name);
  std::mt19937 random(seed);
  fill_instances(machine->gpus[0], random);
  return machine;
}

RC_GTEST_PROP(ComputePlan, ReachesTheLayoutWithoutTouchingInstancesInUse, ()) {
  const auto names = states::machines_with_mig();
  const auto name = *rc::gen::elementOf(names);
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const auto machine = board(name, seed);
  State from = states::state_of(machine->gpus[0]);
  std::mt19937 random(seed ^ 0x5555);
  const Layout target = current_layout(random_state(name, random));
  for (auto& instance : from.instances) {
    if (random() % 4 == 0) instance.holders = {"process " + std::to_string(instance.id)};
  }
  const auto made = make_plan(from, target);
  RC_ASSERT(made.has_value());
  if (made->is_blocked()) return;
  for (const auto& instance : from.instances) {
    if (instance.holders.empty()) continue;
    const auto kept = std::ranges::find(made->keep, instance.id, &Keep::instance);
    RC_ASSERT(kept != made->keep.end());
    RC_ASSERT(kept->compute.size() == instance.compute.size());
  }
  RC_ASSERT(states::carry_out(machine->gpus[0], *made) == "");
  const State after = states::state_of(machine->gpus[0]);
  RC_ASSERT(current_layout(after) == target);
  for (const auto& instance : after.instances) RC_ASSERT(!instance.compute.empty());
  // Nothing is left to do, and everything kept is still there.
  const auto again = make_plan(after, target);
  RC_ASSERT(again.has_value());
  RC_ASSERT(again->is_noop());
  for (const auto& kept : made->keep) {
    const auto instance = std::ranges::find(after.instances, kept.instance, &GpuInstance::id);
    RC_ASSERT(instance != after.instances.end());
    for (const auto id : kept.compute) {
      const auto before = std::ranges::find(from.instances, kept.instance, &GpuInstance::id);
      const auto old = std::ranges::find(before->compute, id, &ComputeInstance::id);
      const auto now = std::ranges::find(instance->compute, id, &ComputeInstance::id);
      RC_ASSERT(now != instance->compute.end());
      RC_ASSERT(now->uuid == old->uuid);
    }
  }
}

// A plan cut short after any number of steps is continued by a new one, which still keeps what was
// kept.
RC_GTEST_PROP(ComputePlan, ContinuesFromAnyStep, ()) {
  const auto names = states::machines_with_mig();
  const auto name = *rc::gen::elementOf(names);
  const auto seed = *rc::gen::arbitrary<std::uint32_t>();
  const auto machine = board(name, seed);
  sim::Gpu& gpu = machine->gpus[0];
  std::mt19937 random(seed ^ 0x5555);
  const Layout target = current_layout(random_state(name, random));
  auto made = make_plan(states::state_of(gpu), target);
  RC_ASSERT(made.has_value());
  const auto keep = made->keep;
  const auto cut = [&](auto& steps) { steps.resize(random() % (steps.size() + 1)); };
  switch (random() % 4) {
    case 0:
      cut(made->destroy_compute);
      made->destroy.clear();
      [[fallthrough]];
    case 1:
      cut(made->destroy);
      made->create_compute.clear();
      [[fallthrough]];
    case 2:
      cut(made->create_compute);
      made->create.clear();
      break;
    default:
      cut(made->create);
      if (!made->create.empty()) cut(made->create.back().compute);
  }
  RC_ASSERT(states::carry_out(gpu, *made) == "");
  const auto rest = make_plan(states::state_of(gpu), target);
  RC_ASSERT(rest.has_value());
  std::size_t before = 0, after = 0;
  for (const auto& kept : keep) before += kept.compute.size();
  for (const auto& kept : rest->keep) after += kept.compute.size();
  RC_ASSERT(after >= before);
  RC_ASSERT(states::carry_out(gpu, *rest) == "");
  RC_ASSERT(current_layout(states::state_of(gpu)) == target);
}

// The most compute instances that one GPU instance can keep, found by trying every subset and every
// way in which the hardware could create the others.
bool can_make(sim::Gpu& gpu, sim::GpuInstance& instance, SliceCounts& left) {
  if (std::ranges::all_of(left, [](unsigned count) { return count == 0; })) return true;
  const auto& profile = gpu.mig.profiles[instance.profile];
  for (std::uint32_t i = 0; i < profile.compute_profile_count; ++i) {
    const auto& compute = profile.compute_profiles[i];
    if (left[compute.slices] == 0) continue;
    for (unsigned start = 0; start < profile.slices; ++start) {
      sim::ComputeInstance* made = nullptr;
      if (sim::create_compute_instance(gpu, instance, compute.id, start, &made) != sim::MigOutcome::kOk)
        continue;
      const std::uint32_t id = made->id;
      --left[compute.slices];
      const bool good = can_make(gpu, instance, left);
      ++left[compute.slices];
      (void)sim::destroy_compute_instance(gpu, instance, id);
      if (good) return true;
    }
  }
  return false;
}

RC_GTEST_PROP(ComputeFit, KeepsTheMostInOneGpuInstance, ()) {
  const auto machine = states::test_machine("hgx-h100");
  sim::Gpu& gpu = machine->gpus[0];
  states::set_mig_mode(gpu);
  std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
  const unsigned ids[] = {14, 9, 5, 0};  // 2g, 3g, 4g, 7g
  sim::GpuInstance* instance = nullptr;
  RC_ASSERT(sim::create_gpu_instance(gpu, ids[random() % 4], 0, &instance) == sim::MigOutcome::kOk);
  const auto& profile = gpu.mig.profiles[instance->profile];
  for (int i = 0; i < 4; ++i) {
    const auto& compute = profile.compute_profiles[random() % profile.compute_profile_count];
    sim::ComputeInstance* made = nullptr;
    const std::uint32_t start = random() % profile.slices;
    (void)sim::create_compute_instance(gpu, *instance, compute.id, start, &made);
  }
  SliceCounts parts(profile.slices + 1);
  unsigned slices = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned size = profile.compute_profiles[random() % profile.compute_profile_count].slices;
    if (slices + size > profile.slices) continue;
    slices += size;
    ++parts[size];
  }
  const State state = states::state_of(gpu);
  const auto fit = fit_compute(*find_profile(state, profile.id), parts, {&state.instances[0]}, 0);

  std::optional<unsigned> most;
  const auto& existing = state.instances[0].compute;
  for (unsigned subset = 0; subset < 1u << existing.size(); ++subset) {
    sim::GpuInstance copy = *instance;
    SliceCounts left = parts;
    unsigned kept = 0;
    bool possible = true;
    for (std::size_t i = 0; i < existing.size(); ++i) {
      const unsigned size = existing[i].placement.size;
      if ((subset >> i & 1) == 0) {
        copy.compute[existing[i].id] = {};
      } else if (left[size] == 0) {
        possible = false;
      } else {
        --left[size];
        ++kept;
      }
    }
    if (possible && slices != 0 && can_make(gpu, copy, left)) most = std::max(most.value_or(0), kept);
  }
  RC_ASSERT(fit.has_value() == most.has_value());
  if (fit) RC_ASSERT(fit->kept == *most);
}

}  // namespace
}  // namespace gpulet::mig
