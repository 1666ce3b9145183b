// MIG on one GPU, as hardware does it: modes with a pending one, GPU instances on memory slices, compute
// instances on the compute slices of one, ids, UUIDs and what is refused while in use. Pure functions over
// the shared state.
#pragma once

#include <optional>

#include "sim/state/state.h"

namespace gpulet::sim {

// What a MIG operation can say; the C ABI turns each into its nvmlReturn_t.
enum class MigOutcome {
  kOk,
  kNotSupported,           // no MIG on this GPU, or its mode is off
  kInvalidArgument,        // no such profile or placement
  kInsufficientResources,  // no room left
  kInUse,                  // processes or inner instances hold it
  kResetRequired,          // the mode is pending
  kNotFound,
};

// Puts a profile's compute profiles to what hardware offers for its number of slices: 1, 2, 3, 4 and all of
// them.
void derive_compute_profiles(MigProfile& profile);

// kInUse while processes run or instances exist: the mode stays pending, as it does with kResetRequired.
MigOutcome set_mig_mode(Gpu& gpu, bool enabled);

const MigProfile* find_profile(const Gpu& gpu, std::uint32_t id);  // by the hardware's id
// The profile of that NVML_GPU_INSTANCE_PROFILE_* index.
const MigProfile* find_profile_by_index(const Gpu& gpu, std::uint32_t index);

// How many more GPU instances of the profile fit now.
std::uint32_t remaining_capacity(const Gpu& gpu, const MigProfile& profile);
// How many more compute instances of the profile fit into the GPU instance.
std::uint32_t remaining_capacity(const Gpu& gpu, const GpuInstance& instance, const ComputeProfile& profile);

// Makes a GPU instance at memory slice `start`, or where hardware would put it. On kOk `made` points into
// `gpu`.
MigOutcome create_gpu_instance(Gpu& gpu, std::uint32_t profile_id, std::optional<std::uint32_t> start,
                               GpuInstance** made);
MigOutcome destroy_gpu_instance(Gpu& gpu, std::uint32_t id);

// From one possible start of a compute instance to the next: 1, 2, 4 for three slices, else its length.
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

}  // namespace gpulet::sim
