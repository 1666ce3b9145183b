#include "nvml/mig.h"

#include <array>
#include <string_view>

#include "nvml/library.h"

// Calls a function of the Session's library, which may not have it.
#define GPULET_NVML(function, ...) invoke(session_.library_->api().function, #function, __VA_ARGS__)

namespace gpulet::nvml {
namespace {

// More placements or instances than any profile of a GPU has.
constexpr unsigned kMaxListed = 64;
constexpr std::string_view kNamePrefix = "MIG ";

nvmlGpuInstance_t gpu_instance(void* handle) { return static_cast<nvmlGpuInstance_t>(handle); }

// Source: nvml.h at each index; the texts match the names that newer drivers report.
std::string attributes_of(unsigned index) {
  switch (index) {
    case NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1:
    case NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1:
      return "+me";
    case NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX:
    case NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX:
    case NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX:
    case NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX:
      return "+gfx";
    case NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME:
    case NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:
      return "-me";
    case NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME:
    case NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME:
      return "+me.all";
    default:
      return "";
  }
}

template <class Info>
GpuInstanceProfile to_profile(const Info& info, unsigned index) {
  GpuInstanceProfile profile;
  profile.id = info.id;
  profile.index = index;
  profile.attributes = attributes_of(index);
  profile.slices = info.sliceCount;
  profile.max_instances = info.instanceCount;
  profile.multiprocessors = info.multiprocessorCount;
  profile.copy_engines = info.copyEngineCount;
  profile.decoders = info.decoderCount;
  profile.encoders = info.encoderCount;
  profile.jpegs = info.jpegCount;
  profile.ofas = info.ofaCount;
  profile.memory_mib = info.memorySizeMB;
  if constexpr (requires { info.name; }) {
    std::string_view name = info.name;
    if (name.starts_with(kNamePrefix)) name.remove_prefix(kNamePrefix.size());
    profile.name = name;
  }
  return profile;
}

// The driver predates that struct version or that function.
bool too_old(nvmlReturn_t result) {
  return result == NVML_ERROR_ARGUMENT_VERSION_MISMATCH || result == NVML_ERROR_INVALID_ARGUMENT ||
         result == NVML_ERROR_FUNCTION_NOT_FOUND;
}

// Explains "in use" and "insufficient resources" in terms of MIG.
Status explain_mig_error(Status status, const char* why) {
  if (status || status.error().code() != Code::kFailedPrecondition) return status;
  return fail(Code::kFailedPrecondition, status.error().message() + " (" + why + ")",
              status.error().subject());
}

}  // namespace

template <class Function, class... Arguments>
Status Mig::invoke(Function function, const char* name, Arguments... arguments) const {
  GPULET_TRY(session_.stale(gpu_));
  return call_nvml(session_.library_->api(), function, name, arguments...);
}

Result<void*> Mig::gpu_instance_handle(unsigned id) const {
  nvmlGpuInstance_t handle = nullptr;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetGpuInstanceById, static_cast<nvmlDevice_t>(gpu_.raw), id, &handle));
  return static_cast<void*>(handle);
}

Result<MigActivation> Mig::set_mig_mode(bool enabled) const {
  nvmlReturn_t activation = NVML_ERROR_UNKNOWN;
  GPULET_TRY(explain_mig_error(
      GPULET_NVML(nvmlDeviceSetMigMode, static_cast<nvmlDevice_t>(gpu_.raw),
                  static_cast<unsigned>(enabled ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE),
                  &activation),
      "the GPU is not idle"));
  if (activation == NVML_SUCCESS) return MigActivation::kActive;
  if (activation == NVML_ERROR_RESET_REQUIRED) return MigActivation::kResetRequired;
  if (waits_for_reset(enabled)) return MigActivation::kInUse;
  GPULET_TRY(explain_mig_error(to_status(session_.library_->api(), activation, "nvmlDeviceSetMigMode"),
                               "a process, a monitor or an instance holds the GPU"));
  return MigActivation::kActive;
}

// Ampere changes its mode by a reset: while something holds the GPU, the activation returns IN_USE and the
// mode is pending all the same.
bool Mig::waits_for_reset(bool enabled) const {
  constexpr unsigned kAmpere = 8;
  const auto compute = session_.compute_capability(gpu_);
  const auto mode = session_.mig_mode(gpu_);
  return compute && compute->major == kAmpere && mode && mode->pending == enabled && mode->current != enabled;
}

// NOT_SUPPORTED means that the GPU does not have the profile, so only other errors lead to an older
// struct version.
Result<std::optional<GpuInstanceProfile>> Mig::profile_at(unsigned index) const {
  GPULET_TRY(session_.stale(gpu_));
  const Api& api = session_.library_->api();
  auto* const device = static_cast<nvmlDevice_t>(gpu_.raw);
  const char* function_name = "nvmlDeviceGetGpuInstanceProfileInfoV";
  nvmlReturn_t result = NVML_ERROR_FUNCTION_NOT_FOUND;
  if (api.nvmlDeviceGetGpuInstanceProfileInfoV != nullptr) {
    nvmlGpuInstanceProfileInfo_v3_t third{};
    third.version = nvmlGpuInstanceProfileInfo_v3;
    result = call_counted(api.nvmlDeviceGetGpuInstanceProfileInfoV, function_name, device, index,
                          reinterpret_cast<nvmlGpuInstanceProfileInfo_v2_t*>(&third));
    if (result == NVML_SUCCESS) return to_profile(third, index);
    if (too_old(result)) {
      nvmlGpuInstanceProfileInfo_v2_t second{};
      second.version = nvmlGpuInstanceProfileInfo_v2;
      result = call_counted(api.nvmlDeviceGetGpuInstanceProfileInfoV, function_name, device, index, &second);
      if (result == NVML_SUCCESS) return to_profile(second, index);
    }
  }
  if (too_old(result) && api.nvmlDeviceGetGpuInstanceProfileInfo != nullptr) {
    function_name = "nvmlDeviceGetGpuInstanceProfileInfo";
    nvmlGpuInstanceProfileInfo_t first{};
    result = call_counted(api.nvmlDeviceGetGpuInstanceProfileInfo, function_name, device, index, &first);
    if (result == NVML_SUCCESS) return to_profile(first, index);
  }
  // An index unknown to the driver is a profile that it does not have.
  if (result == NVML_ERROR_NOT_SUPPORTED || too_old(result)) return std::nullopt;
  return fail(to_status(api, result, function_name).error());
}

Result<std::vector<GpuInstanceProfile>> Mig::gpu_instance_profiles() const {
  std::vector<GpuInstanceProfile> all;
  for (unsigned index = 0; index < NVML_GPU_INSTANCE_PROFILE_COUNT; ++index) {
    GPULET_TRY_ASSIGN(auto profile, profile_at(index));
    if (profile) all.push_back(std::move(*profile));
  }
  return all;
}

Result<std::vector<Placement>> Mig::gpu_instance_placements(unsigned profile) const {
  std::array<nvmlGpuInstancePlacement_t, kMaxListed> places{};
  unsigned count = kMaxListed;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetGpuInstancePossiblePlacements_v2, static_cast<nvmlDevice_t>(gpu_.raw),
                         profile, places.data(), &count));
  std::vector<Placement> all;
  for (unsigned i = 0; i < count && i < kMaxListed; ++i) all.push_back({places[i].start, places[i].size});
  return all;
}

Result<std::vector<Instance>> Mig::gpu_instances(unsigned profile) const {
  std::array<nvmlGpuInstance_t, kMaxListed> handles{};
  unsigned count = kMaxListed;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetGpuInstances, static_cast<nvmlDevice_t>(gpu_.raw), profile,
                         handles.data(), &count));
  std::vector<Instance> all;
  for (unsigned i = 0; i < count && i < kMaxListed; ++i) {
    nvmlGpuInstanceInfo_t info{};
    GPULET_TRY(GPULET_NVML(nvmlGpuInstanceGetInfo, handles[i], &info));
    all.push_back({info.id, info.profileId, {info.placement.start, info.placement.size}});
  }
  return all;
}

Result<unsigned> Mig::create_gpu_instance(unsigned profile, Placement placement) const {
  const nvmlGpuInstancePlacement_t place{placement.start, placement.size};
  nvmlGpuInstance_t handle = nullptr;
  GPULET_TRY(explain_mig_error(GPULET_NVML(nvmlDeviceCreateGpuInstanceWithPlacement,
                                           static_cast<nvmlDevice_t>(gpu_.raw), profile, &place, &handle),
                               "no room at this placement for a GPU instance of this profile"));
  nvmlGpuInstanceInfo_t info{};
  GPULET_TRY(GPULET_NVML(nvmlGpuInstanceGetInfo, handle, &info));
  return info.id;
}

Status Mig::destroy_gpu_instance(unsigned id) const {
  GPULET_TRY_ASSIGN(void* const handle, gpu_instance_handle(id));
  return explain_mig_error(GPULET_NVML(nvmlGpuInstanceDestroy, gpu_instance(handle)),
                           "a process or a compute instance holds the GPU instance");
}

Result<std::vector<ComputeInstanceProfile>> Mig::compute_profiles(unsigned id) const {
  GPULET_TRY_ASSIGN(void* const handle, gpu_instance_handle(id));
  std::vector<ComputeInstanceProfile> all;
  for (unsigned index = 0; index < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; ++index) {
    nvmlComputeInstanceProfileInfo_t info{};
    const auto status =
        GPULET_NVML(nvmlGpuInstanceGetComputeInstanceProfileInfo, gpu_instance(handle), index,
                    static_cast<unsigned>(NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED), &info);
    if (status) {
      all.push_back({info.id, info.sliceCount, info.instanceCount});
      continue;
    }
    const Code code = status.error().code();
    // Not supported: the GPU instance has no compute instances of that size. An index unknown to an
    // older driver is reported as invalid, as an invalid handle would be.
    if (code != Code::kUnsupported && !(code == Code::kInvalidArgument && !all.empty()))
      return fail(status.error());
  }
  return all;
}

Result<std::vector<Placement>> Mig::compute_placements(unsigned id, unsigned profile) const {
  GPULET_TRY_ASSIGN(void* const handle, gpu_instance_handle(id));
  std::array<nvmlComputeInstancePlacement_t, kMaxListed> places{};
  unsigned count = kMaxListed;
  GPULET_TRY(GPULET_NVML(nvmlGpuInstanceGetComputeInstancePossiblePlacements, gpu_instance(handle), profile,
                         places.data(), &count));
  std::vector<Placement> all;
  for (unsigned i = 0; i < count && i < kMaxListed; ++i) all.push_back({places[i].start, places[i].size});
  return all;
}

Result<std::vector<Instance>> Mig::compute_instances(unsigned id, unsigned profile) const {
  GPULET_TRY_ASSIGN(void* const handle, gpu_instance_handle(id));
  std::array<nvmlComputeInstance_t, kMaxListed> handles{};
  unsigned count = kMaxListed;
  GPULET_TRY(
      GPULET_NVML(nvmlGpuInstanceGetComputeInstances, gpu_instance(handle), profile, handles.data(), &count));
  std::vector<Instance> all;
  for (unsigned i = 0; i < count && i < kMaxListed; ++i) {
    nvmlComputeInstanceInfo_t info{};
    GPULET_TRY(GPULET_NVML(nvmlComputeInstanceGetInfo_v2, handles[i], &info));
    all.push_back({info.id, info.profileId, {info.placement.start, info.placement.size}});
  }
  return all;
}

Result<unsigned> Mig::create_compute_instance(unsigned id, unsigned profile,
                                              std::optional<Placement> placement) const {
  GPULET_TRY_ASSIGN(void* const handle, gpu_instance_handle(id));
  nvmlComputeInstance_t made = nullptr;
  constexpr const char* kNoRoom = "no room in the GPU instance for a compute instance of this profile";
  if (placement && session_.library_->api().nvmlGpuInstanceCreateComputeInstanceWithPlacement != nullptr) {
    const nvmlComputeInstancePlacement_t place{placement->start, placement->size};
    GPULET_TRY(explain_mig_error(GPULET_NVML(nvmlGpuInstanceCreateComputeInstanceWithPlacement,
                                             gpu_instance(handle), profile, &place, &made),
                                 kNoRoom));
  } else {
    GPULET_TRY(explain_mig_error(
        GPULET_NVML(nvmlGpuInstanceCreateComputeInstance, gpu_instance(handle), profile, &made), kNoRoom));
  }
  nvmlComputeInstanceInfo_t info{};
  GPULET_TRY(GPULET_NVML(nvmlComputeInstanceGetInfo_v2, made, &info));
  return info.id;
}

Status Mig::destroy_compute_instance(unsigned id, unsigned compute) const {
  GPULET_TRY_ASSIGN(void* const handle, gpu_instance_handle(id));
  nvmlComputeInstance_t found = nullptr;
  GPULET_TRY(GPULET_NVML(nvmlGpuInstanceGetComputeInstanceById, gpu_instance(handle), compute, &found));
  return explain_mig_error(GPULET_NVML(nvmlComputeInstanceDestroy, found),
                           "a process holds the compute instance");
}

Result<Mig::MigDevice> Mig::device_at(unsigned index) const {
  GPULET_TRY_ASSIGN(const Device handle, session_.mig_device(gpu_, index));
  MigDevice found;
  GPULET_TRY_ASSIGN(found.gpu_instance, session_.gpu_instance_id(handle));
  GPULET_TRY_ASSIGN(found.compute_instance, session_.compute_instance_id(handle));
  GPULET_TRY_ASSIGN(found.uuid, session_.device_uuid(handle));
  return found;
}

Result<std::vector<Mig::MigDevice>> Mig::mig_devices() const {
  std::vector<MigDevice> all;
  GPULET_TRY_ASSIGN(const unsigned count, session_.max_mig_devices(gpu_));
  for (unsigned i = 0; i < count; ++i) {
    auto found = device_at(i);
    if (found) {
      all.push_back(std::move(*found));
      continue;
    }
    // Not there, or destroyed during the call.
    const Code code = found.error().code();
    if (code != Code::kNotFound && code != Code::kInvalidArgument) return fail(found.error());
  }
  return all;
}

}  // namespace gpulet::nvml

#undef GPULET_NVML
