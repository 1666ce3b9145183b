// Compute instances of one GPU instance.
#include <string>

#include "sim/driver/mig.h"

using namespace gpulet::sim;

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

std::string name_of(const MigProfile& parent, const ComputeProfile& profile) {
  const std::string part = profile.slices == parent.slices ? "" : std::to_string(profile.slices) + "c.";
  return "MIG " + part + parent.name;
}

template <class Matches>
const ComputeProfile* find(const MigProfile& parent, Matches matches) {
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
  *profile = find(call.profile(), [index](const ComputeProfile& p) { return p.index == index; });
  return *profile == nullptr ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t find_compute_by_id(const GpuCall& call, unsigned int id, const ComputeProfile** profile) {
  *profile = find(call.profile(), [id](const ComputeProfile& p) { return p.id == id; });
  return *profile == nullptr ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t create_compute(nvmlGpuInstance_t instance, unsigned int id, std::optional<std::uint32_t> start,
                            nvmlComputeInstance_t* result) {
  const MigEdit call(instance);
  if (const auto refused = call.refused(result)) return refused;
  ComputeInstance* made = nullptr;
  const nvmlReturn_t outcome =
      to_nvml(create_compute_instance(call.gpu(), call.gpu_instance(), id, start, &made));
  if (outcome == NVML_SUCCESS) *result = call.compute_instance_handle(call.gpu_instance(), *made);
  return show_instances(call, outcome);
}

nvmlReturn_t info_of(nvmlComputeInstance_t instance, bool with_placement, nvmlComputeInstanceInfo_t* info) {
  const GpuCall call(instance);
  if (const auto refused = call.refused(info)) return refused;
  const ComputeInstance& found = call.compute_instance();
  info->device = call.gpu_handle();
  info->gpuInstance = call.gpu_instance_handle(call.gpu_instance());
  info->id = found.id;
  info->profileId = call.profile().compute_profiles[found.profile].id;
  // The first version's struct ends before it.
  if (with_placement) info->placement = {found.start, found.length};
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int index,
                                                          unsigned int engine,
                                                          nvmlComputeInstanceProfileInfo_t* info) {
  const GpuCall call(instance);
  if (const auto refused = call.refused(info)) return refused;
  const ComputeProfile* profile = nullptr;
  if (const auto missing = find_compute_by_index(call, index, engine, &profile)) return missing;
  fill_compute_profile(call.profile(), *profile, info);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int index,
                                                           unsigned int engine,
                                                           nvmlComputeInstanceProfileInfo_v2_t* info) {
  const GpuCall call(instance);
  if (const auto refused = call.refused(info)) return refused;
  const ComputeProfile* profile = nullptr;
  if (const auto missing = find_compute_by_index(call, index, engine, &profile)) return missing;
  const std::string name = name_of(call.profile(), *profile);
  if (info->version == nvmlComputeInstanceProfileInfo_v2) {
    fill_compute_profile(call.profile(), *profile, info);
    return put_text(name.c_str(), info->name, sizeof(info->name));
  }
  if (info->version == nvmlComputeInstanceProfileInfo_v3) {
    auto* third = reinterpret_cast<nvmlComputeInstanceProfileInfo_v3_t*>(info);
    fill_compute_profile(call.profile(), *profile, third);
    third->capabilities = 0;
    return put_text(name.c_str(), third->name, sizeof(third->name));
  }
  return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int id,
                                                                unsigned int* count) {
  const GpuCall call(instance);
  if (const auto refused = call.refused(count)) return refused;
  const ComputeProfile* profile = nullptr;
  if (const auto missing = find_compute_by_id(call, id, &profile)) return missing;
  *count = remaining_capacity(call.gpu(), call.gpu_instance(), *profile);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int id,
                                                                 nvmlComputeInstancePlacement_t* places,
                                                                 unsigned int* count) {
  const GpuCall call(instance);
  if (const auto refused = call.refused(count)) return refused;
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
    const auto refused = GpuCall(instance).refused();
    return refused != NVML_SUCCESS ? refused : NVML_ERROR_INVALID_ARGUMENT;
  }
  return create_compute(instance, id, placement->start, result);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance) {
  const MigEdit call(instance);
  if (const auto refused = call.refused()) return refused;
  return show_instances(
      call, to_nvml(destroy_compute_instance(call.gpu(), call.gpu_instance(), call.compute_instance().id)));
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int id,
                                                nvmlComputeInstance_t* instances, unsigned int* count) {
  const GpuCall call(instance);
  if (const auto refused = call.refused(instances, count)) return refused;
  const ComputeProfile* profile = nullptr;
  if (const auto missing = find_compute_by_id(call, id, &profile)) return missing;
  *count = 0;
  for (const ComputeInstance& compute : call.gpu_instance().compute) {
    if (compute.used != 0 && &call.profile().compute_profiles[compute.profile] == profile) {
      instances[(*count)++] = call.compute_instance_handle(call.gpu_instance(), compute);
    }
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                   nvmlComputeInstance_t* result) {
  const GpuCall call(instance);
  if (const auto refused = call.refused(result)) return refused;
  const ComputeInstance* found = find_compute_instance(call.gpu_instance(), id);
  if (found == nullptr) return NVML_ERROR_NOT_FOUND;
  *result = call.compute_instance_handle(call.gpu_instance(), *found);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t* info) {
  return info_of(instance, false, info);
}
nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t* info) {
  return info_of(instance, true, info);
}
