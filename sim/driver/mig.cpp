// MIG: modes, MIG devices, GPU instances and compute instances.
#include "sim/driver/mig.h"

#include <algorithm>
#include <string>

using namespace gpulet::sim;

namespace {

nvmlReturn_t instance_attributes(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(attributes)) return error;
  if (!call.is_mig()) return NVML_ERROR_NOT_SUPPORTED;
  const MigProfile& profile = call.mig_profile();
  const ComputeProfile& compute = profile.compute_profiles[call.compute_instance().profile];
  attributes->multiprocessorCount = compute.multiprocessors;
  attributes->sharedCopyEngineCount = profile.copy_engines;
  attributes->sharedDecoderCount = profile.decoders;
  attributes->sharedEncoderCount = profile.encoders;
  attributes->sharedJpegCount = profile.jpegs;
  attributes->sharedOfaCount = profile.ofas;
  attributes->gpuInstanceSliceCount = profile.slices;
  attributes->computeInstanceSliceCount = compute.slices;
  attributes->memorySizeMB = profile.memory_mib;
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t* activation) {
  const MigEdit call(device);
  if (const auto error = call.entry_error(activation)) return error;
  if (mode > NVML_DEVICE_MIG_ENABLE) return NVML_ERROR_INVALID_ARGUMENT;
  // The right to configure MIG covers instances only.
  if (!is_administrator()) return NVML_ERROR_NO_PERMISSION;
  const bool is_held = !check_unused_by_others(call.machine(), call.gpu_index());
  const nvmlReturn_t result =
      to_nvml(set_mig_mode(call.gpu_state(), mode == NVML_DEVICE_MIG_ENABLE, is_held));
  if (result == NVML_ERROR_NOT_SUPPORTED) return result;
  // Sets the pending mode; `activation` returns whether it took effect.
  *activation = result;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* current, unsigned int* pending) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(current, pending)) return error;
  if (call.gpu_state().mig.capable == 0) return NVML_ERROR_NOT_SUPPORTED;
  *current = call.gpu_state().mig.current;
  *pending = call.gpu_state().mig.pending;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* is_mig) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(is_mig)) return error;
  *is_mig = call.is_mig() ? 1 : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int* id) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(id)) return error;
  if (!call.is_mig()) return NVML_ERROR_INVALID_ARGUMENT;
  *id = call.gpu_instance().id;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int* id) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(id)) return error;
  if (!call.is_mig()) return NVML_ERROR_INVALID_ARGUMENT;
  *id = call.compute_instance().id;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(count)) return error;
  const Mig& mig = call.gpu_state().mig;
  *count = 0;
  if (mig.current == 0) return NVML_SUCCESS;
  for (std::uint32_t i = 0; i < mig.profile_count; ++i) *count = std::max(*count, mig.profiles[i].slices);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t* mig) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(mig)) return error;
  if (call.gpu_state().mig.capable == 0) return NVML_ERROR_NOT_SUPPORTED;
  const auto found = visible_mig_device(call.gpu_state(), index);
  if (!found) return NVML_ERROR_NOT_FOUND;
  *mig = call.mig_handle(*found->gpu_instance, *found->compute_instance);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t* device) {
  const GpuCall call(mig, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(device)) return error;
  if (!call.is_mig()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = call.gpu_handle();
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  return instance_attributes(device, attributes);
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t* attributes) {
  return instance_attributes(device, attributes);
}

// GPU instances: profiles, placements, creation, destruction.

namespace {

// Fills the members that all versions of the struct share.
template <class Info>
void fill_profile(const MigProfile& profile, Info* info) {
  info->id = profile.id;
  info->sliceCount = profile.slices;
  info->instanceCount = profile.max_instances;
  info->multiprocessorCount = profile.multiprocessors;
  info->copyEngineCount = profile.copy_engines;
  info->decoderCount = profile.decoders;
  info->encoderCount = profile.encoders;
  info->jpegCount = profile.jpegs;
  info->ofaCount = profile.ofas;
  info->memorySizeMB = profile.memory_mib;
}

unsigned int peer_to_peer(const MigProfile& profile) {
  return (profile.capabilities & NVML_GPU_INSTANCE_PROFILE_CAPS_P2P) != 0 ? 1 : 0;
}

nvmlReturn_t find_by_index(const GpuCall& call, unsigned int index, const MigProfile** profile) {
  if (index >= NVML_GPU_INSTANCE_PROFILE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  if (call.gpu_state().mig.capable == 0) return NVML_ERROR_NOT_SUPPORTED;
  *profile = find_profile_by_index(call.gpu_state(), index);
  return *profile == nullptr ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

// Finds a profile by id. `needs_mode`: MIG mode must be on.
nvmlReturn_t find_by_id(const Gpu& gpu, unsigned int id, bool needs_mode, const MigProfile** profile) {
  if (gpu.mig.capable == 0 || (needs_mode && gpu.mig.current == 0)) return NVML_ERROR_NOT_SUPPORTED;
  *profile = find_profile(gpu, id);
  return *profile == nullptr ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t put_versioned(const MigProfile& profile, nvmlGpuInstanceProfileInfo_v2_t* info) {
  const std::string name = std::string("MIG ") + profile.name;
  if (info->version == nvmlGpuInstanceProfileInfo_v2) {
    fill_profile(profile, info);
    info->isP2pSupported = peer_to_peer(profile);
    return put_text(name.c_str(), info->name, sizeof(info->name));
  }
  if (info->version == nvmlGpuInstanceProfileInfo_v3) {
    auto* third = reinterpret_cast<nvmlGpuInstanceProfileInfo_v3_t*>(info);
    fill_profile(profile, third);
    third->capabilities = profile.capabilities;
    return put_text(name.c_str(), third->name, sizeof(third->name));
  }
  return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

nvmlReturn_t list_placements(nvmlDevice_t device, unsigned int id, nvmlGpuInstancePlacement_t* places,
                             unsigned int* count) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(count)) return error;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_id(call.gpu_state(), id, false, &profile)) return missing;
  *count = profile->placement_count;
  if (places == nullptr) return NVML_SUCCESS;
  for (unsigned int i = 0; i < profile->placement_count; ++i)
    places[i] = {profile->placements[i], profile->memory_slices};
  return NVML_SUCCESS;
}

nvmlReturn_t create_instance(nvmlDevice_t device, unsigned int id, std::optional<std::uint32_t> start,
                             nvmlGpuInstance_t* result) {
  const MigEdit call(device);
  if (const auto error = call.entry_error(result)) return error;
  GpuInstance* made = nullptr;
  const nvmlReturn_t outcome = to_nvml(create_gpu_instance(call.gpu_state(), id, start, &made));
  if (outcome == NVML_SUCCESS) *result = call.gpu_instance_handle(*made);
  return publish_instances(call, outcome);
}

}  // namespace

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int index,
                                                 nvmlGpuInstanceProfileInfo_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_index(call, index, &profile)) return missing;
  fill_profile(*profile, info);
  info->isP2pSupported = peer_to_peer(*profile);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int index,
                                                  nvmlGpuInstanceProfileInfo_v2_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_index(call, index, &profile)) return missing;
  return put_versioned(*profile, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstanceProfileInfo_v2_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_id(call.gpu_state(), id, false, &profile)) return missing;
  return put_versioned(*profile, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                        nvmlGpuInstancePlacement_t* places,
                                                        unsigned int* count) {
  return list_placements(device, id, places, count);
}
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t* places,
                                                           unsigned int* count) {
  return list_placements(device, id, places, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                       unsigned int* count) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(count)) return error;
  if (const auto refused = check_mig_config(call)) return refused;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_id(call.gpu_state(), id, true, &profile)) return missing;
  *count = remaining_capacity(call.gpu_state(), *profile);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t* instance) {
  return create_instance(device, id, std::nullopt, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t* placement,
                                                      nvmlGpuInstance_t* instance) {
  if (placement == nullptr) {
    const auto error = GpuCall(device).entry_error();
    return error != NVML_SUCCESS ? error : NVML_ERROR_INVALID_ARGUMENT;
  }
  return create_instance(device, id, placement->start, instance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
  const MigEdit call(instance);
  if (const auto error = call.entry_error()) return error;
  return publish_instances(call, to_nvml(destroy_gpu_instance(call.gpu_state(), call.gpu_instance().id)));
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t* instances,
                                       unsigned int* count) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(instances, count)) return error;
  if (const auto refused = check_mig_config(call)) return refused;
  const MigProfile* profile = nullptr;
  // With MIG off, there are none.
  if (const auto missing = find_by_id(call.gpu_state(), id, false, &profile)) return missing;
  *count = 0;
  for (const GpuInstance& instance : call.gpu_state().mig.instances) {
    if (instance.used != 0 && &call.gpu_state().mig.profiles[instance.profile] == profile) {
      instances[(*count)++] = call.gpu_instance_handle(instance);
    }
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t* instance) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(instance)) return error;
  if (const auto refused = check_mig_config(call)) return refused;
  if (call.gpu_state().mig.capable == 0) return NVML_ERROR_NOT_SUPPORTED;
  const GpuInstance* found = find_gpu_instance(call.gpu_state(), id);
  if (found == nullptr) return NVML_ERROR_NOT_FOUND;
  *instance = call.gpu_instance_handle(*found);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t* info) {
  const GpuCall call(instance);
  if (const auto error = call.entry_error(info)) return error;
  const GpuInstance& found = call.gpu_instance();
  *info = {call.gpu_handle(), found.id, call.mig_profile().id, {found.start, found.length}};
  return NVML_SUCCESS;
}

// Compute instances of one GPU instance.

namespace {

template <class Info>
void fill_compute_profile(const MigProfile& parent, const ComputeProfile& profile, Info* info) {
  info->id = profile.id;
  info->sliceCount = profile.slices;
  info->instanceCount = profile.max_instances;
  info->multiprocessorCount = profile.multiprocessors;
  info->sharedCopyEngineCount = parent.copy_engines;
  info->sharedDecoderCount = parent.decoders;
  info->sharedEncoderCount = parent.encoders;
  info->sharedJpegCount = parent.jpegs;
  info->sharedOfaCount = parent.ofas;
}

std::string compute_profile_name(const MigProfile& parent, const ComputeProfile& profile) {
  const std::string part = profile.slices == parent.slices ? "" : std::to_string(profile.slices) + "c.";
  return "MIG " + part + parent.name;
}

template <class Matches>
const ComputeProfile* find_compute_profile(const MigProfile& parent, Matches matches) {
  for (std::uint32_t i = 0; i < parent.compute_profile_count; ++i) {
    if (matches(parent.compute_profiles[i])) return &parent.compute_profiles[i];
  }
  return nullptr;
}

nvmlReturn_t find_compute_by_index(const GpuCall& call, unsigned int index, unsigned int engine,
                                   const ComputeProfile** profile) {
  if (index >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engine >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  *profile =
      find_compute_profile(call.mig_profile(), [index](const ComputeProfile& p) { return p.index == index; });
  return *profile == nullptr ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t find_compute_by_id(const GpuCall& call, unsigned int id, const ComputeProfile** profile) {
  *profile = find_compute_profile(call.mig_profile(), [id](const ComputeProfile& p) { return p.id == id; });
  return *profile == nullptr ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t create_compute(nvmlGpuInstance_t instance, unsigned int id, std::optional<std::uint32_t> start,
                            nvmlComputeInstance_t* result) {
  const MigEdit call(instance);
  if (const auto error = call.entry_error(result)) return error;
  ComputeInstance* made = nullptr;
  const nvmlReturn_t outcome =
      to_nvml(create_compute_instance(call.gpu_state(), call.gpu_instance(), id, start, &made));
  if (outcome == NVML_SUCCESS) *result = call.compute_instance_handle(call.gpu_instance(), *made);
  return publish_instances(call, outcome);
}

nvmlReturn_t compute_instance_info(nvmlComputeInstance_t instance, bool with_placement,
                                   nvmlComputeInstanceInfo_t* info) {
  const GpuCall call(instance);
  if (const auto error = call.entry_error(info)) return error;
  const ComputeInstance& found = call.compute_instance();
  info->device = call.gpu_handle();
  info->gpuInstance = call.gpu_instance_handle(call.gpu_instance());
  info->id = found.id;
  info->profileId = call.mig_profile().compute_profiles[found.profile].id;
  // The version 1 struct ends before this member.
  if (with_placement) info->placement = {found.start, found.length};
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int index,
                                                          unsigned int engine,
                                                          nvmlComputeInstanceProfileInfo_t* info) {
  const GpuCall call(instance);
  if (const auto error = call.entry_error(info)) return error;
  const ComputeProfile* profile = nullptr;
  if (const auto missing = find_compute_by_index(call, index, engine, &profile)) return missing;
  fill_compute_profile(call.mig_profile(), *profile, info);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int index,
                                                           unsigned int engine,
                                                           nvmlComputeInstanceProfileInfo_v2_t* info) {
  const GpuCall call(instance);
  if (const auto error = call.entry_error(info)) return error;
  const ComputeProfile* profile = nullptr;
  if (const auto missing = find_compute_by_index(call, index, engine, &profile)) return missing;
  const std::string name = compute_profile_name(call.mig_profile(), *profile);
  if (info->version == nvmlComputeInstanceProfileInfo_v2) {
    fill_compute_profile(call.mig_profile(), *profile, info);
    return put_text(name.c_str(), info->name, sizeof(info->name));
  }
  if (info->version == nvmlComputeInstanceProfileInfo_v3) {
    auto* third = reinterpret_cast<nvmlComputeInstanceProfileInfo_v3_t*>(info);
    fill_compute_profile(call.mig_profile(), *profile, third);
    third->capabilities = 0;
    return put_text(name.c_str(), third->name, sizeof(third->name));
  }
  return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int id,
                                                                unsigned int* count) {
  const GpuCall call(instance);
  if (const auto error = call.entry_error(count)) return error;
  if (const auto refused = check_mig_config(call)) return refused;
  const ComputeProfile* profile = nullptr;
  if (const auto missing = find_compute_by_id(call, id, &profile)) return missing;
  *count = remaining_capacity(call.gpu_state(), call.gpu_instance(), *profile);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int id,
                                                                 nvmlComputeInstancePlacement_t* places,
                                                                 unsigned int* count) {
  const GpuCall call(instance);
  if (const auto error = call.entry_error(count)) return error;
  if (const auto refused = check_mig_config(call)) return refused;
  const ComputeProfile* profile = nullptr;
  if (const auto missing = find_compute_by_id(call, id, &profile)) return missing;
  *count = profile->max_instances;
  if (places == nullptr) return NVML_SUCCESS;
  for (unsigned int i = 0; i < profile->max_instances; ++i)
    places[i] = {i * compute_stride(*profile), profile->slices};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int id,
                                                  nvmlComputeInstance_t* result) {
  return create_compute(instance, id, std::nullopt, result);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(
    nvmlGpuInstance_t instance, unsigned int id, const nvmlComputeInstancePlacement_t* placement,
    nvmlComputeInstance_t* result) {
  if (placement == nullptr) {
    const auto error = GpuCall(instance).entry_error();
    return error != NVML_SUCCESS ? error : NVML_ERROR_INVALID_ARGUMENT;
  }
  return create_compute(instance, id, placement->start, result);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance) {
  const MigEdit call(instance);
  if (const auto error = call.entry_error()) return error;
  return publish_instances(call, to_nvml(destroy_compute_instance(call.gpu_state(), call.gpu_instance(),
                                                                  call.compute_instance().id)));
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int id,
                                                nvmlComputeInstance_t* instances, unsigned int* count) {
  const GpuCall call(instance);
  if (const auto error = call.entry_error(instances, count)) return error;
  if (const auto refused = check_mig_config(call)) return refused;
  const ComputeProfile* profile = nullptr;
  if (const auto missing = find_compute_by_id(call, id, &profile)) return missing;
  *count = 0;
  for (const ComputeInstance& compute : call.gpu_instance().compute) {
    if (compute.used != 0 && &call.mig_profile().compute_profiles[compute.profile] == profile) {
      instances[(*count)++] = call.compute_instance_handle(call.gpu_instance(), compute);
    }
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                   nvmlComputeInstance_t* result) {
  const GpuCall call(instance);
  if (const auto error = call.entry_error(result)) return error;
  if (const auto refused = check_mig_config(call)) return refused;
  const ComputeInstance* found = find_compute_instance(call.gpu_instance(), id);
  if (found == nullptr) return NVML_ERROR_NOT_FOUND;
  *result = call.compute_instance_handle(call.gpu_instance(), *found);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t* info) {
  return compute_instance_info(instance, false, info);
}
nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t* info) {
  return compute_instance_info(instance, true, info);
}
