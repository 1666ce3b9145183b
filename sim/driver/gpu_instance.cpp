// GPU instances: profiles, placements, creation, destruction.
#include <string>

#include "sim/driver/mig.h"

using namespace gpulet::sim;

namespace {

// The members that all versions of the struct share.
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
  if (call.gpu().mig.capable == 0) return NVML_ERROR_NOT_SUPPORTED;
  *profile = find_profile_by_index(call.gpu(), index);
  return *profile == nullptr ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

// Of a profile id, on a GPU whose MIG mode matters when `needs_mode`.
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

nvmlReturn_t placements(nvmlDevice_t device, unsigned int id, nvmlGpuInstancePlacement_t* places,
                        unsigned int* count) {
  const GpuCall call(device);
  if (const auto refused = call.refused(count)) return refused;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_id(call.gpu(), id, false, &profile)) return missing;
  *count = profile->placement_count;
  if (places == nullptr) return NVML_SUCCESS;
  for (unsigned int i = 0; i < profile->placement_count; ++i)
    places[i] = {profile->placements[i], profile->memory_slices};
  return NVML_SUCCESS;
}

nvmlReturn_t create(nvmlDevice_t device, unsigned int id, std::optional<std::uint32_t> start,
                    nvmlGpuInstance_t* result) {
  const MigEdit call(device);
  if (const auto refused = call.refused(result)) return refused;
  GpuInstance* made = nullptr;
  const nvmlReturn_t outcome = to_nvml(create_gpu_instance(call.gpu(), id, start, &made));
  if (outcome == NVML_SUCCESS) *result = call.gpu_instance_handle(*made);
  return show_instances(call, outcome);
}

}  // namespace

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int index,
                                                 nvmlGpuInstanceProfileInfo_t* info) {
  const GpuCall call(device);
  if (const auto refused = call.refused(info)) return refused;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_index(call, index, &profile)) return missing;
  fill_profile(*profile, info);
  info->isP2pSupported = peer_to_peer(*profile);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int index,
                                                  nvmlGpuInstanceProfileInfo_v2_t* info) {
  const GpuCall call(device);
  if (const auto refused = call.refused(info)) return refused;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_index(call, index, &profile)) return missing;
  return put_versioned(*profile, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                      nvmlGpuInstanceProfileInfo_v2_t* info) {
  const GpuCall call(device);
  if (const auto refused = call.refused(info)) return refused;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_id(call.gpu(), id, false, &profile)) return missing;
  return put_versioned(*profile, info);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                        nvmlGpuInstancePlacement_t* places,
                                                        unsigned int* count) {
  return placements(device, id, places, count);
}
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t* places,
                                                           unsigned int* count) {
  return placements(device, id, places, count);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id,
                                                       unsigned int* count) {
  const GpuCall call(device);
  if (const auto refused = call.refused(count)) return refused;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_id(call.gpu(), id, true, &profile)) return missing;
  *count = remaining_capacity(call.gpu(), *profile);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t* instance) {
  return create(device, id, std::nullopt, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t* placement,
                                                      nvmlGpuInstance_t* instance) {
  if (placement == nullptr) {
    const auto refused = GpuCall(device).refused();
    return refused != NVML_SUCCESS ? refused : NVML_ERROR_INVALID_ARGUMENT;
  }
  return create(device, id, placement->start, instance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
  const MigEdit call(instance);
  if (const auto refused = call.refused()) return refused;
  return show_instances(call, to_nvml(destroy_gpu_instance(call.gpu(), call.gpu_instance().id)));
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t* instances,
                                       unsigned int* count) {
  const GpuCall call(device);
  if (const auto refused = call.refused(instances, count)) return refused;
  const MigProfile* profile = nullptr;
  if (const auto missing = find_by_id(call.gpu(), id, true, &profile)) return missing;
  *count = 0;
  for (const GpuInstance& instance : call.gpu().mig.instances) {
    if (instance.used != 0 && &call.gpu().mig.profiles[instance.profile] == profile) {
      instances[(*count)++] = call.gpu_instance_handle(instance);
    }
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t* instance) {
  const GpuCall call(device);
  if (const auto refused = call.refused(instance)) return refused;
  if (call.gpu().mig.current == 0) return NVML_ERROR_NOT_SUPPORTED;
  const GpuInstance* found = find_gpu_instance(call.gpu(), id);
  if (found == nullptr) return NVML_ERROR_NOT_FOUND;
  *instance = call.gpu_instance_handle(*found);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t* info) {
  const GpuCall call(instance);
  if (const auto refused = call.refused(info)) return refused;
  const GpuInstance& found = call.gpu_instance();
  *info = {call.gpu_handle(), found.id, call.profile().id, {found.start, found.length}};
  return NVML_SUCCESS;
}
