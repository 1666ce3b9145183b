#include "sim/state/mig.h"

#include <algorithm>

namespace gpulet::sim {
namespace {

using Slices = std::uint32_t;  // one bit a slice

Slices slices(std::uint32_t start, std::uint32_t length) { return ((1u << length) - 1u) << start; }

bool has_processes(const Gpu& gpu) {
  return std::any_of(std::begin(gpu.processes), std::end(gpu.processes),
                     [](const Process& p) { return p.pid != 0; });
}

Slices occupied(const Gpu& gpu) {
  Slices mask = 0;
  for (const GpuInstance& instance : gpu.mig.instances) {
    if (instance.used != 0) mask |= slices(instance.start, instance.length);
  }
  return mask;
}

// Memory slices that a profile of one slice may stand on: hardware has eight, of which the last has no
// compute.
Slices single_slices(const Gpu& gpu) {
  Slices mask = 0;
  for (std::uint32_t i = 0; i < gpu.mig.profile_count; ++i) {
    const MigProfile& profile = gpu.mig.profiles[i];
    if (profile.memory_slices != 1) continue;
    for (std::uint32_t j = 0; j < profile.placement_count; ++j) mask |= slices(profile.placements[j], 1);
  }
  return mask;
}

// What is shared out besides memory slices, in all and in use.
struct Engines {
  std::uint32_t compute = 0;
  std::uint32_t decoders = 0;
  std::uint32_t jpegs = 0;
  std::uint32_t ofas = 0;
};

Engines total_engines(const Gpu& gpu) {
  Engines most;
  for (std::uint32_t i = 0; i < gpu.mig.profile_count; ++i) {
    const MigProfile& profile = gpu.mig.profiles[i];
    most.compute = std::max(most.compute, profile.slices);
    most.decoders = std::max(most.decoders, profile.decoders);
    most.jpegs = std::max(most.jpegs, profile.jpegs);
    most.ofas = std::max(most.ofas, profile.ofas);
  }
  return most;
}

// How many more instances the compute slices and the engines allow, whatever the placements.
std::uint32_t engine_capacity(const Gpu& gpu, const MigProfile& profile) {
  Engines left = total_engines(gpu);
  std::uint32_t same = 0;
  const auto take = [](std::uint32_t& pool, std::uint32_t amount) { pool -= std::min(pool, amount); };
  for (const GpuInstance& instance : gpu.mig.instances) {
    if (instance.used == 0) continue;
    const MigProfile& other = gpu.mig.profiles[instance.profile];
    take(left.compute, other.slices);
    take(left.decoders, other.decoders);
    take(left.jpegs, other.jpegs);
    take(left.ofas, other.ofas);
    if (other.id == profile.id) ++same;
  }
  std::uint32_t capacity = profile.max_instances - std::min(profile.max_instances, same);
  const auto limit = [&capacity](std::uint32_t pool, std::uint32_t need) {
    if (need != 0) capacity = std::min(capacity, pool / need);
  };
  limit(left.compute, profile.slices);
  limit(left.decoders, profile.decoders);
  limit(left.jpegs, profile.jpegs);
  limit(left.ofas, profile.ofas);
  return capacity;
}

// The length of the free buddy block that holds the placement, or a large number when it spans blocks. A
// slice that no single-slice profile may use never merges with its buddy: so hardware puts 1g at 6, 4, 5,
// 0..3 and 3g at 0, then 4.
std::uint32_t block_length(Slices free, Slices single, std::uint32_t memory_slices, std::uint32_t start,
                           std::uint32_t length) {
  std::uint32_t best = 2 * memory_slices;
  for (std::uint32_t size = 1; size <= memory_slices; size *= 2) {
    if (size < length) continue;
    const std::uint32_t base = start / size * size;
    if (start + length > base + size) continue;
    const Slices block = slices(base, size);
    if ((block & ~free) != 0 || (block & ~single) != 0) continue;
    best = size;
  }
  return best;
}

std::optional<std::uint32_t> choose_start(const Gpu& gpu, const MigProfile& profile) {
  const Slices free = slices(0, gpu.mig.memory_slices) & ~occupied(gpu);
  const Slices single = single_slices(gpu);
  std::optional<std::uint32_t> chosen;
  std::uint32_t chosen_block = 0;
  for (std::uint32_t i = 0; i < profile.placement_count; ++i) {
    const std::uint32_t start = profile.placements[i];
    if ((slices(start, profile.memory_slices) & ~free) != 0) continue;
    const std::uint32_t block =
        block_length(free, single, gpu.mig.memory_slices, start, profile.memory_slices);
    if (chosen && block >= chosen_block) continue;
    chosen = start;
    chosen_block = block;
  }
  return chosen;
}

// 0 is the whole, 1 and 2 the halves, 3..6 the quarters, 7..14 the eighths, in each the upper half of the GPU
// first: so hardware numbers them (1g at slice 4 is 7, at slice 0 is 11; 3g at 4 is 1, at 0 is 2).
constexpr std::uint32_t kHighestInstanceId = 14;
std::uint32_t hardware_id(std::uint32_t memory_slices, std::uint32_t start, std::uint32_t length) {
  if (length >= memory_slices) return 0;
  std::uint32_t size = 1;
  while (size < length) size *= 2;
  const std::uint32_t parts = memory_slices / size;
  return parts - 1 + (start / size + parts / 2) % parts;
}

Slices used_compute(const GpuInstance& instance) {
  Slices mask = 0;
  for (const ComputeInstance& compute : instance.compute) {
    if (compute.used != 0) mask |= slices(compute.start, compute.length);
  }
  return mask;
}

const MigProfile& profile_of(const Gpu& gpu, const GpuInstance& instance) {
  return gpu.mig.profiles[instance.profile];
}

}  // namespace

std::uint32_t compute_stride(const ComputeProfile& profile) {
  return profile.slices == 3 ? 4 : profile.slices;
}

void derive_compute_profiles(MigProfile& profile) {
  profile.compute_profile_count = 0;
  constexpr std::uint32_t kSizes[] = {1, 2, 3, 4, 7};
  for (std::uint32_t i = 0; i < std::size(kSizes); ++i) {
    const std::uint32_t size = kSizes[i];
    // A GPU instance of four slices offers no three.
    if (size > profile.slices || (size == 3 && profile.slices == 4)) continue;
    ComputeProfile& made = profile.compute_profiles[profile.compute_profile_count++];
    made = ComputeProfile{i, i, size, 0, profile.multiprocessors / profile.slices * size};
    if (size == profile.slices) made.multiprocessors = profile.multiprocessors;
    for (std::uint32_t start = 0; start + size <= profile.slices; start += compute_stride(made))
      ++made.max_instances;
  }
}

MigOutcome set_mig_mode(Gpu& gpu, bool enabled) {
  Mig& mig = gpu.mig;
  if (mig.capable == 0) return MigOutcome::kNotSupported;
  const std::uint8_t mode = enabled ? 1 : 0;
  mig.pending = mode;
  if (mig.current == mode) return MigOutcome::kOk;
  if (has_processes(gpu) || occupied(gpu) != 0) return MigOutcome::kInUse;
  if (mig.mode_needs_reset != 0) return MigOutcome::kResetRequired;
  mig.current = mode;
  return MigOutcome::kOk;
}

const MigProfile* find_profile(const Gpu& gpu, std::uint32_t id) {
  for (std::uint32_t i = 0; i < gpu.mig.profile_count; ++i) {
    if (gpu.mig.profiles[i].id == id) return &gpu.mig.profiles[i];
  }
  return nullptr;
}

const MigProfile* find_profile_by_index(const Gpu& gpu, std::uint32_t index) {
  for (std::uint32_t i = 0; i < gpu.mig.profile_count; ++i) {
    if (gpu.mig.profiles[i].index == index) return &gpu.mig.profiles[i];
  }
  return nullptr;
}

std::uint32_t remaining_capacity(const Gpu& gpu, const MigProfile& profile) {
  // Placements of one profile have one length and rise: taking each that is free in turn takes the most.
  Slices taken = occupied(gpu);
  std::uint32_t room = 0;
  for (std::uint32_t i = 0; i < profile.placement_count; ++i) {
    const Slices place = slices(profile.placements[i], profile.memory_slices);
    if ((place & taken) != 0) continue;
    taken |= place;
    ++room;
  }
  return std::min(room, engine_capacity(gpu, profile));
}

std::uint32_t remaining_capacity(const Gpu& gpu, const GpuInstance& instance, const ComputeProfile& profile) {
  const Slices taken = used_compute(instance);
  std::uint32_t room = 0;
  for (std::uint32_t start = 0; start + profile.slices <= profile_of(gpu, instance).slices;
       start += compute_stride(profile)) {
    if ((slices(start, profile.slices) & taken) == 0) ++room;
  }
  return room;
}

MigOutcome create_gpu_instance(Gpu& gpu, std::uint32_t profile_id, std::optional<std::uint32_t> start,
                               GpuInstance** made) {
  Mig& mig = gpu.mig;
  if (mig.capable == 0 || mig.current == 0) return MigOutcome::kNotSupported;
  const MigProfile* profile = find_profile(gpu, profile_id);
  if (profile == nullptr) return MigOutcome::kInvalidArgument;
  if (start) {
    const auto* end = profile->placements + profile->placement_count;
    if (std::find(profile->placements, end, *start) == end) return MigOutcome::kInvalidArgument;
    if ((slices(*start, profile->memory_slices) & occupied(gpu)) != 0)
      return MigOutcome::kInsufficientResources;
  } else {
    start = choose_start(gpu, *profile);
  }
  if (!start || engine_capacity(gpu, *profile) == 0) return MigOutcome::kInsufficientResources;
  // Instances never overlap, so the first slice names the slot.
  GpuInstance& instance = mig.instances[*start];
  instance = {};
  instance.used = 1;
  instance.profile = static_cast<std::uint8_t>(profile - mig.profiles);
  instance.start = static_cast<std::uint8_t>(*start);
  instance.length = static_cast<std::uint8_t>(profile->memory_slices);
  instance.id = hardware_id(mig.memory_slices, *start, profile->memory_slices);
  instance.creation = ++mig.creations;
  *made = &instance;
  return MigOutcome::kOk;
}

MigOutcome destroy_gpu_instance(Gpu& gpu, std::uint32_t id) {
  GpuInstance* instance = find_gpu_instance(gpu, id);
  if (instance == nullptr) return MigOutcome::kNotFound;
  if (used_compute(*instance) != 0) return MigOutcome::kInUse;
  *instance = {};
  return MigOutcome::kOk;
}

MigOutcome create_compute_instance(Gpu& gpu, GpuInstance& instance, std::uint32_t profile_id,
                                   std::optional<std::uint32_t> start, ComputeInstance** made) {
  const MigProfile& parent = profile_of(gpu, instance);
  const auto* end = parent.compute_profiles + parent.compute_profile_count;
  const auto* profile =
      std::find_if(parent.compute_profiles, end, [&](const ComputeProfile& p) { return p.id == profile_id; });
  if (profile == end) return MigOutcome::kInvalidArgument;
  const Slices taken = used_compute(instance);
  const std::uint32_t stride = compute_stride(*profile);
  if (start && (*start % stride != 0 || *start + profile->slices > parent.slices))
    return MigOutcome::kInvalidArgument;
  for (std::uint32_t at = start.value_or(0); at + profile->slices <= parent.slices; at += stride) {
    if ((slices(at, profile->slices) & taken) != 0) {
      if (start) break;
      continue;
    }
    const auto* slot = std::find_if(std::begin(instance.compute), std::end(instance.compute),
                                    [](const ComputeInstance& c) { return c.used == 0; });
    if (slot == std::end(instance.compute)) break;
    const auto id = static_cast<std::uint32_t>(slot - instance.compute);
    ComputeInstance& compute = instance.compute[id];
    compute = {};
    compute.used = 1;
    compute.profile = static_cast<std::uint8_t>(profile - parent.compute_profiles);
    compute.start = static_cast<std::uint8_t>(at);
    compute.length = static_cast<std::uint8_t>(profile->slices);
    compute.id = id;
    compute.creation = ++gpu.mig.creations;
    set_text(compute.uuid,
             make_uuid("MIG-", std::string(gpu.uuid) + "/" + std::to_string(instance.id) + "/" +
                                   std::to_string(id) + "/" + std::to_string(compute.creation)));
    *made = &compute;
    return MigOutcome::kOk;
  }
  return MigOutcome::kInsufficientResources;
}

MigOutcome destroy_compute_instance(Gpu& gpu, GpuInstance& instance, std::uint32_t id) {
  if (id >= kMaxComputeInstances || instance.compute[id].used == 0) return MigOutcome::kNotFound;
  for (const Process& process : gpu.processes) {
    if (process.pid != 0 && process.gpu_instance == instance.id && process.compute_instance == id)
      return MigOutcome::kInUse;
  }
  instance.compute[id] = {};
  return MigOutcome::kOk;
}

const GpuInstance* find_gpu_instance(const Gpu& gpu, std::uint32_t id) {
  for (const GpuInstance& instance : gpu.mig.instances) {
    if (instance.used != 0 && instance.id == id) return &instance;
  }
  return nullptr;
}

GpuInstance* find_gpu_instance(Gpu& gpu, std::uint32_t id) {
  return const_cast<GpuInstance*>(find_gpu_instance(static_cast<const Gpu&>(gpu), id));
}

const ComputeInstance* find_compute_instance(const GpuInstance& instance, std::uint32_t id) {
  return id < kMaxComputeInstances && instance.compute[id].used != 0 ? &instance.compute[id] : nullptr;
}

std::optional<MigDevice> mig_device(const Gpu& gpu, std::uint32_t index) {
  for (std::uint32_t id = 0; id <= kHighestInstanceId; ++id) {
    const GpuInstance* instance = find_gpu_instance(gpu, id);
    if (instance == nullptr) continue;
    for (const ComputeInstance& compute : instance->compute) {
      if (compute.used != 0 && index-- == 0) return MigDevice{instance, &compute};
    }
  }
  return std::nullopt;
}

}  // namespace gpulet::sim
