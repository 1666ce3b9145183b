#include "sim/state/mig.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/text.h"

namespace gpulet::sim {
namespace {

using Slices = std::uint32_t;  // one bit per slice

Slices slice_range(std::uint32_t start, std::uint32_t length) { return ((1u << length) - 1u) << start; }

bool has_processes(const Gpu& gpu) {
  return std::any_of(std::begin(gpu.processes), std::end(gpu.processes),
                     [](const Process& p) { return p.pid != 0; });
}

Slices occupied_slices(const Gpu& gpu) {
  Slices mask = 0;
  for (const GpuInstance& instance : gpu.mig.instances) {
    if (instance.used != 0) mask |= slice_range(instance.start, instance.length);
  }
  return mask;
}

// Memory slices available to a one-slice profile: hardware has eight, the last without compute.
Slices single_slices(const Gpu& gpu) {
  Slices mask = 0;
  for (std::uint32_t i = 0; i < gpu.mig.profile_count; ++i) {
    const MigProfile& profile = gpu.mig.profiles[i];
    if (profile.memory_slices != 1) continue;
    for (std::uint32_t j = 0; j < profile.placement_count; ++j) mask |= slice_range(profile.placements[j], 1);
  }
  return mask;
}

// Engines other than memory slices: total and used.
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

// Returns how many more instances the compute slices and engines allow, regardless of placements.
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

// Returns how many slices of the largest free buddy block around the placement a one-slice profile can use. A
// block with a slice that none can use never merges with its buddy: so hardware places 1g at 6, 4, 5, 0..3,
// 2g at 4, 0, 2 and 3g at 4, 0, and 3g, 2g, 1g, 1g fits in every order that begins with 3g. Source:
// `nvidia-smi mig -cgi` and `-lgi` on A100 and H100, in NVIDIA's MIG user guide and in reports of users.
std::uint32_t usable_slices_around(Slices free, Slices single, std::uint32_t start, std::uint32_t length) {
  std::uint32_t size = 1;
  while (start / size * size + size < start + length) size *= 2;
  Slices block = slice_range(start / size * size, size);
  while ((block & ~single) == 0) {
    size *= 2;
    const Slices merged = slice_range(start / size * size, size);
    if ((merged & ~free) != 0 || (merged & ~single) != 0) break;
    block = merged;
  }
  return static_cast<std::uint32_t>(std::popcount(block & single));
}

std::optional<std::uint32_t> choose_start(const Gpu& gpu, const MigProfile& profile) {
  const Slices free = slice_range(0, gpu.mig.memory_slices) & ~occupied_slices(gpu);
  const Slices single = single_slices(gpu);
  std::optional<std::uint32_t> chosen;
  std::uint32_t fewest = 0;
  for (std::uint32_t i = 0; i < profile.placement_count; ++i) {
    const std::uint32_t start = profile.placements[i];
    if ((slice_range(start, profile.memory_slices) & ~free) != 0) continue;
    const std::uint32_t usable = usable_slices_around(free, single, start, profile.memory_slices);
    if (chosen && usable >= fewest) continue;
    chosen = start;
    fewest = usable;
  }
  return chosen;
}

// Returns hardware's number: 0 is the whole GPU, 1 and 2 the halves, 3..6 the quarters, 7..14 the eighths,
// each from the GPU's upper half (1g at slice 4 is 7, at slice 0 is 11; 3g at 4 is 1, at 0 is 2).
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
    if (compute.used != 0) mask |= slice_range(compute.start, compute.length);
  }
  return mask;
}

const MigProfile& compute_profile_of(const Gpu& gpu, const GpuInstance& instance) {
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
    // A GPU instance of four slices has no three-slice profile.
    if (size > profile.slices || (size == 3 && profile.slices == 4)) continue;
    ComputeProfile& made = profile.compute_profiles[profile.compute_profile_count++];
    made = ComputeProfile{i, i, size, 0, profile.multiprocessors / profile.slices * size};
    if (size == profile.slices) made.multiprocessors = profile.multiprocessors;
    for (std::uint32_t start = 0; start + size <= profile.slices; start += compute_stride(made))
      ++made.max_instances;
  }
}

MigOutcome set_mig_mode(Gpu& gpu, bool enabled, bool is_held) {
  Mig& mig = gpu.mig;
  if (mig.capable == 0) return MigOutcome::kNotSupported;
  const std::uint8_t mode = enabled ? 1 : 0;
  mig.pending = mode;
  if (mig.current == mode) return MigOutcome::kOk;
  if (is_held || has_processes(gpu) || occupied_slices(gpu) != 0) return MigOutcome::kInUse;
  if (mig.mode_needs_reset == 0) {
    mig.current = mode;
    return MigOutcome::kOk;
  }
  if (mig.passthrough != 0) return MigOutcome::kResetRequired;
  reset_idle_gpu(gpu);
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
  // Placements of a profile have one length and increase: a greedy choice of free ones is maximal.
  Slices taken = occupied_slices(gpu);
  std::uint32_t room = 0;
  for (std::uint32_t i = 0; i < profile.placement_count; ++i) {
    const Slices place = slice_range(profile.placements[i], profile.memory_slices);
    if ((place & taken) != 0) continue;
    taken |= place;
    ++room;
  }
  return std::min(room, engine_capacity(gpu, profile));
}

std::uint32_t remaining_capacity(const Gpu& gpu, const GpuInstance& instance, const ComputeProfile& profile) {
  const Slices taken = used_compute(instance);
  std::uint32_t room = 0;
  for (std::uint32_t start = 0; start + profile.slices <= compute_profile_of(gpu, instance).slices;
       start += compute_stride(profile)) {
    if ((slice_range(start, profile.slices) & taken) == 0) ++room;
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
    if ((slice_range(*start, profile->memory_slices) & occupied_slices(gpu)) != 0)
      return MigOutcome::kInsufficientResources;
  } else {
    start = choose_start(gpu, *profile);
  }
  if (!start || engine_capacity(gpu, *profile) == 0) return MigOutcome::kInsufficientResources;
  // Instances never overlap, so the first slice is the slot.
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
  const MigProfile& parent = compute_profile_of(gpu, instance);
  const auto* end = parent.compute_profiles + parent.compute_profile_count;
  const auto* profile =
      std::find_if(parent.compute_profiles, end, [&](const ComputeProfile& p) { return p.id == profile_id; });
  if (profile == end) return MigOutcome::kInvalidArgument;
  const Slices taken = used_compute(instance);
  const std::uint32_t stride = compute_stride(*profile);
  if (start && (*start % stride != 0 || *start + profile->slices > parent.slices))
    return MigOutcome::kInvalidArgument;
  for (std::uint32_t at = start.value_or(0); at + profile->slices <= parent.slices; at += stride) {
    if ((slice_range(at, profile->slices) & taken) != 0) {
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

namespace {

constexpr std::uint32_t kFirstMinor = 3;
constexpr std::uint32_t kGpus = 32;
constexpr std::uint32_t kGpuInstances = 15;
constexpr std::uint32_t kPerGpuInstance = 1 + 8;  // itself and its compute instances
constexpr mode_t kAccessMode = 0444;

void write_capability(const std::string& directory, std::uint32_t minor) {
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  std::ofstream(directory + "/access") << capability_text(minor, kAccessMode);
}

// Removes the directories "<prefix><number>" in `directory` whose number is not in `needed`.
void remove_others(const std::string& directory, std::string_view prefix,
                   const std::set<std::uint64_t>& needed) {
  std::error_code error;
  std::vector<std::filesystem::path> gone;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (!text::starts_with(name, prefix)) continue;
    const auto number = text::parse_unsigned(std::string_view(name).substr(prefix.size()));
    if (number && !needed.contains(*number)) gone.push_back(entry.path());
  }
  for (const auto& path : gone) std::filesystem::remove_all(path, error);
}

// Creates the device nodes of this GPU's capabilities and removes stale ones.
void sync_nodes(const std::string& directory, std::uint32_t gpu_minor,
                const std::set<std::uint64_t>& needed) {
  const std::uint64_t first = gpu_instance_minor(gpu_minor, 0);
  const std::uint64_t end = first + std::uint64_t{kGpuInstances} * kPerGpuInstance;
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) return;
  std::set<std::uint64_t> keep = needed;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    constexpr std::string_view kPrefix = "nvidia-cap";
    const auto number = text::starts_with(name, kPrefix)
                            ? text::parse_unsigned(std::string_view(name).substr(kPrefix.size()))
                            : std::nullopt;
    if (number && (*number < first || *number >= end)) keep.insert(*number);
  }
  remove_others(directory, "nvidia-cap", keep);
  for (const std::uint64_t minor : needed) {
    const std::string path = directory + "/nvidia-cap" + std::to_string(minor);
    if (mknod(path.c_str(), S_IFCHR | kAccessMode, makedev(kCapsMajor, static_cast<unsigned>(minor))) == 0)
      chmod(path.c_str(), kAccessMode);
  }
}

}  // namespace

std::uint32_t gpu_instance_minor(std::uint32_t gpu_minor, std::uint32_t gpu_instance) {
  return kFirstMinor + (gpu_minor * kGpuInstances + gpu_instance) * kPerGpuInstance;
}

std::uint32_t compute_instance_minor(std::uint32_t gpu_minor, std::uint32_t gpu_instance,
                                     std::uint32_t compute_instance) {
  return gpu_instance_minor(gpu_minor, gpu_instance) + 1 + compute_instance;
}

std::string mig_minors_text() {
  std::string text =
      "config " + std::to_string(kConfigMinor) + "\nmonitor " + std::to_string(kMonitorMinor) + "\n";
  for (std::uint32_t gpu = 0; gpu < kGpus; ++gpu) {
    for (std::uint32_t gi = 0; gi < kGpuInstances; ++gi) {
      const std::string name = "gpu" + std::to_string(gpu) + "/gi" + std::to_string(gi);
      text += name + "/access " + std::to_string(gpu_instance_minor(gpu, gi)) + "\n";
      for (std::uint32_t ci = 0; ci + 1 < kPerGpuInstance; ++ci) {
        text += name + "/ci" + std::to_string(ci) + "/access " +
                std::to_string(compute_instance_minor(gpu, gi, ci)) + "\n";
      }
    }
  }
  return text;
}

std::string capability_text(std::uint32_t minor, std::uint32_t mode) {
  return "DeviceFileMinor: " + std::to_string(minor) + "\nDeviceFileMode: " + std::to_string(mode) +
         "\nDeviceFileModify: 1\n";
}

void sync_capabilities(const std::string& root, const Gpu& gpu) {
  const std::string directory =
      root + "/proc/driver/nvidia/capabilities/gpu" + std::to_string(gpu.minor) + "/mig";
  std::error_code error;
  if (root.empty() || gpu.minor >= kGpus || !std::filesystem::is_directory(directory, error)) return;
  std::set<std::uint64_t> instances;
  std::set<std::uint64_t> minors;
  for (const GpuInstance& instance : gpu.mig.instances) {
    if (instance.used == 0) continue;
    instances.insert(instance.id);
    const std::string own = directory + "/gi" + std::to_string(instance.id);
    const std::uint32_t minor = gpu_instance_minor(gpu.minor, instance.id);
    minors.insert(minor);
    write_capability(own, minor);
    std::set<std::uint64_t> computes;
    for (const ComputeInstance& compute : instance.compute) {
      if (compute.used == 0) continue;
      computes.insert(compute.id);
      const std::uint32_t compute_minor = compute_instance_minor(gpu.minor, instance.id, compute.id);
      minors.insert(compute_minor);
      write_capability(own + "/ci" + std::to_string(compute.id), compute_minor);
    }
    remove_others(own, "ci", computes);
  }
  remove_others(directory, "gi", instances);
  sync_nodes(root + "/dev/nvidia-caps", gpu.minor, minors);
}

std::string driver_root_of_state(const std::string& state_path) {
  const std::string suffix = "/" + std::string(kStatePathInRoot);
  if (!state_path.ends_with(suffix)) return {};
  const std::string root = state_path.substr(0, state_path.size() - suffix.size());
  return root.empty() ? "/." : root;
}

}  // namespace gpulet::sim
