// MIG on one GPU, like hardware: current and pending mode, GPU instances on memory slices, compute instances
// on their compute slices, ids, UUIDs, and what is refused while in use. Pure functions over the shared
// state.
#pragma once

#include <optional>
#include <string>

#include "sim/state/state.h"

namespace gpulet::sim {

// Results of MIG operations; the C ABI converts them to nvmlReturn_t.
enum class MigOutcome {
  kOk,
  kNotSupported,           // no MIG on this GPU, or MIG mode is off
  kInvalidArgument,        // no such profile or placement
  kInsufficientResources,  // no capacity left
  kInUse,                  // processes or inner instances use it
  kResetRequired,          // the mode is pending
  kNotFound,
};

// Sets a profile's compute profiles to those of hardware for its slices: 1, 2, 3, 4 and all.
void derive_compute_profiles(MigProfile& profile);

// Sets the mode. kInUse while processes run, instances exist or others hold the GPU (`is_held`); it stays
// pending then. On Ampere the driver resets the idle GPU, except in a VM with pass-through: kResetRequired,
// and the mode stays pending. Source: nvml.h, nvmlDeviceSetMigMode; MIG User Guide, "Enable MIG Mode".
MigOutcome set_mig_mode(Gpu& gpu, bool enabled, bool is_held = false);

const MigProfile* find_profile(const Gpu& gpu, std::uint32_t id);  // by the hardware's id
// Finds a profile by its NVML_GPU_INSTANCE_PROFILE_* index.
const MigProfile* find_profile_by_index(const Gpu& gpu, std::uint32_t index);

// Returns how many more GPU instances of the profile fit.
std::uint32_t remaining_capacity(const Gpu& gpu, const MigProfile& profile);
// Returns how many more compute instances of the profile fit into the GPU instance.
std::uint32_t remaining_capacity(const Gpu& gpu, const GpuInstance& instance, const ComputeProfile& profile);

// Creates a GPU instance at memory slice `start`, or where hardware would place it. On kOk `made` points into
// `gpu`.
MigOutcome create_gpu_instance(Gpu& gpu, std::uint32_t profile_id, std::optional<std::uint32_t> start,
                               GpuInstance** made);
MigOutcome destroy_gpu_instance(Gpu& gpu, std::uint32_t id);

// Returns the step between possible starts of a compute instance: 1, 2, 4 for three slices, else its length.
std::uint32_t compute_stride(const ComputeProfile& profile);
MigOutcome create_compute_instance(Gpu& gpu, GpuInstance& instance, std::uint32_t profile_id,
                                   std::optional<std::uint32_t> start, ComputeInstance** made);
MigOutcome destroy_compute_instance(Gpu& gpu, GpuInstance& instance, std::uint32_t id);

GpuInstance* find_gpu_instance(Gpu& gpu, std::uint32_t id);
const GpuInstance* find_gpu_instance(const Gpu& gpu, std::uint32_t id);
const ComputeInstance* find_compute_instance(const GpuInstance& instance, std::uint32_t id);

// MIG devices in the order of NVML's index: by GPU instance id, then compute instance id.
struct MigDevice {
  const GpuInstance* gpu_instance;
  const ComputeInstance* compute_instance;
};
std::optional<MigDevice> mig_device(const Gpu& gpu, std::uint32_t index);

// MIG outside NVML: the static table of minors, the tree /proc/driver/nvidia/capabilities of the instances,
// and their nodes /dev/nvidia-caps/nvidia-capN. They are here and not in sim/root because the library creates
// them with an instance, in any process. Source: NVIDIA's MIG user guide, "Device Nodes and Capabilities".

inline constexpr std::uint32_t kCapsMajor = 506;  // dynamic on hardware: see /proc/devices
inline constexpr std::uint32_t kConfigMinor = 1;
inline constexpr std::uint32_t kMonitorMinor = 2;

std::uint32_t gpu_instance_minor(std::uint32_t gpu_minor, std::uint32_t gpu_instance);
std::uint32_t compute_instance_minor(std::uint32_t gpu_minor, std::uint32_t gpu_instance,
                                     std::uint32_t compute_instance);

// Returns /proc/driver/nvidia-caps/mig-minors: every possible GPU, GPU instance and compute instance, 4322
// lines.
std::string mig_minors_text();

// Returns a capability's file: minor and mode of its node.
std::string capability_text(std::uint32_t minor, std::uint32_t mode);

// Updates the two trees below `root` to the GPU's instances. Skips a missing tree and what it has no
// permission for, as in a container with a read-only driver root.
void sync_capabilities(const std::string& root, const Gpu& gpu);

// Returns the driver root that contains a state file; empty if it is elsewhere. "/" is "/.".
std::string driver_root_of_state(const std::string& state_path);

}  // namespace gpulet::sim
