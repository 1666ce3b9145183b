// Finds and loads the driver's library libnvidia-ml.so.1: from the library directories of
// base/driver_root.h below the container's driver root, else by the loader's own search. And calls its C
// functions, any of which a driver may lack. Only .cpp files of src/nvml include this file, and with
// it nvml.h.
#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "nvml/return_codes.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// X(member name and type, older name to fall back to or nullptr). The older function of a pair
// takes the same arguments and fills no more fields.
#define GPULET_NVML_FUNCTIONS(X)                                                                 \
  X(nvmlInit_v2, nullptr)                                                                        \
  X(nvmlShutdown, nullptr)                                                                       \
  X(nvmlErrorString, nullptr)                                                                    \
  X(nvmlSystemGetDriverVersion, nullptr)                                                         \
  X(nvmlSystemGetNVMLVersion, nullptr)                                                           \
  X(nvmlSystemGetCudaDriverVersion_v2, nullptr)                                                  \
  X(nvmlSystemGetCudaDriverVersion, nullptr)                                                     \
  X(nvmlDeviceGetCount_v2, nullptr)                                                              \
  X(nvmlDeviceGetHandleByIndex_v2, nullptr)                                                      \
  X(nvmlDeviceGetUUID, nullptr)                                                                  \
  X(nvmlDeviceGetName, nullptr)                                                                  \
  X(nvmlDeviceGetBrand, nullptr)                                                                 \
  X(nvmlDeviceGetVirtualizationMode, nullptr)                                                    \
  X(nvmlDeviceGetDisplayMode, nullptr)                                                           \
  X(nvmlDeviceGetDisplayActive, nullptr)                                                         \
  X(nvmlDeviceGetSerial, nullptr)                                                                \
  X(nvmlDeviceGetMinorNumber, nullptr)                                                           \
  X(nvmlDeviceGetCudaComputeCapability, nullptr)                                                 \
  X(nvmlDeviceGetMemoryInfo, nullptr)                                                            \
  X(nvmlDeviceGetPciInfo_v3, nullptr)                                                            \
  X(nvmlDeviceGetMigMode, nullptr)                                                               \
  X(nvmlDeviceGetMaxMigDeviceCount, nullptr)                                                     \
  X(nvmlDeviceGetMigDeviceHandleByIndex, nullptr)                                                \
  X(nvmlDeviceGetGpuInstanceId, nullptr)                                                         \
  X(nvmlDeviceGetComputeInstanceId, nullptr)                                                     \
  X(nvmlDeviceGetAttributes_v2, "nvmlDeviceGetAttributes")                                       \
  X(nvmlDeviceGetGpuInstanceById, nullptr)                                                       \
  X(nvmlGpuInstanceGetInfo, nullptr)                                                             \
  X(nvmlDeviceSetMigMode, nullptr)                                                               \
  X(nvmlDeviceGetGpuInstanceProfileInfoV, nullptr)                                               \
  X(nvmlDeviceGetGpuInstanceProfileInfo, nullptr)                                                \
  X(nvmlDeviceGetGpuInstancePossiblePlacements_v2, "nvmlDeviceGetGpuInstancePossiblePlacements") \
  X(nvmlDeviceGetGpuInstances, nullptr)                                                          \
  X(nvmlDeviceCreateGpuInstanceWithPlacement, nullptr)                                           \
  X(nvmlGpuInstanceDestroy, nullptr)                                                             \
  X(nvmlGpuInstanceGetComputeInstanceProfileInfo, nullptr)                                       \
  X(nvmlGpuInstanceGetComputeInstancePossiblePlacements, nullptr)                                \
  X(nvmlGpuInstanceGetComputeInstances, nullptr)                                                 \
  X(nvmlGpuInstanceGetComputeInstanceById, nullptr)                                              \
  X(nvmlGpuInstanceCreateComputeInstance, nullptr)                                               \
  X(nvmlGpuInstanceCreateComputeInstanceWithPlacement, nullptr)                                  \
  X(nvmlComputeInstanceGetInfo_v2, "nvmlComputeInstanceGetInfo")                                 \
  X(nvmlComputeInstanceDestroy, nullptr)                                                         \
  X(nvmlDeviceGetComputeRunningProcesses_v3, "nvmlDeviceGetComputeRunningProcesses_v2")          \
  X(nvmlDeviceGetGraphicsRunningProcesses_v3, "nvmlDeviceGetGraphicsRunningProcesses_v2")        \
  X(nvmlDeviceGetMPSComputeRunningProcesses_v3, "nvmlDeviceGetMPSComputeRunningProcesses_v2")    \
  X(nvmlDeviceGetComputeMode, nullptr)                                                           \
  X(nvmlDeviceSetComputeMode, nullptr)                                                           \
  X(nvmlDeviceGetNvLinkState, nullptr)                                                           \
  X(nvmlDeviceGetNvLinkRemoteDeviceType, nullptr)                                                \
  X(nvmlDeviceGetNvLinkRemotePciInfo_v2, "nvmlDeviceGetNvLinkRemotePciInfo")                     \
  X(nvmlDeviceGetGpuFabricInfoV, nullptr)                                                        \
  X(nvmlDeviceGetGpuFabricInfo, nullptr)                                                         \
  X(nvmlDeviceGetRemappedRows, nullptr)                                                          \
  X(nvmlDeviceGetRetiredPages, nullptr)                                                          \
  X(nvmlDeviceGetRetiredPagesPendingStatus, nullptr)                                             \
  X(nvmlDeviceGetMemoryErrorCounter, nullptr)                                                    \
  X(nvmlDeviceGetSramEccErrorStatus, nullptr)                                                    \
  X(nvmlDeviceGetNvLinkErrorCounter, nullptr)                                                    \
  X(nvmlDeviceGetPcieReplayCounter, nullptr)                                                     \
  X(nvmlDeviceGetCurrPcieLinkWidth, nullptr)                                                     \
  X(nvmlDeviceGetMaxPcieLinkWidth, nullptr)                                                      \
  X(nvmlDeviceGetViolationStatus, nullptr)                                                       \
  X(nvmlDeviceValidateInforom, nullptr)                                                          \
  X(nvmlDeviceGetTotalEnergyConsumption, nullptr)                                                \
  X(nvmlDeviceGetMemoryInfo_v2, nullptr)                                                         \
  X(nvmlDeviceSetMemoryLimits_v1, nullptr)                                                       \
  X(nvmlDeviceGetMemoryLimits_v1, nullptr)                                                       \
  X(nvmlDeviceGetBAR1MemoryInfo, nullptr)                                                        \
  X(nvmlDeviceGetClockInfo, nullptr)                                                             \
  X(nvmlDeviceGetMaxClockInfo, nullptr)                                                          \
  X(nvmlDeviceGetMemoryBusWidth, nullptr)                                                        \
  X(nvmlDeviceGetApplicationsClock, nullptr)                                                     \
  X(nvmlDeviceGetCurrentClocksEventReasons, "nvmlDeviceGetCurrentClocksThrottleReasons")         \
  X(nvmlDeviceGetPerformanceState, nullptr)                                                      \
  X(nvmlDeviceGetTemperature, nullptr)                                                           \
  X(nvmlDeviceGetTemperatureThreshold, nullptr)                                                  \
  X(nvmlDeviceGetFanSpeed, nullptr)                                                              \
  X(nvmlDeviceGetPowerUsage, nullptr)                                                            \
  X(nvmlDeviceGetPowerManagementLimit, nullptr)                                                  \
  X(nvmlDeviceGetPowerManagementDefaultLimit, nullptr)                                           \
  X(nvmlDeviceGetPowerManagementLimitConstraints, nullptr)                                       \
  X(nvmlDeviceGetEnforcedPowerLimit, nullptr)                                                    \
  X(nvmlDeviceSetPowerManagementLimit, nullptr)                                                  \
  X(nvmlDeviceSetGpuLockedClocks, nullptr)                                                       \
  X(nvmlDeviceResetGpuLockedClocks, nullptr)                                                     \
  X(nvmlDeviceSetMemoryLockedClocks, nullptr)                                                    \
  X(nvmlDeviceResetMemoryLockedClocks, nullptr)                                                  \
  X(nvmlDeviceGetSupportedMemoryClocks, nullptr)                                                 \
  X(nvmlDeviceGetSupportedGraphicsClocks, nullptr)                                               \
  X(nvmlDeviceGetUtilizationRates, nullptr)                                                      \
  X(nvmlDeviceGetEncoderUtilization, nullptr)                                                    \
  X(nvmlDeviceGetDecoderUtilization, nullptr)                                                    \
  X(nvmlDeviceGetCurrPcieLinkGeneration, nullptr)                                                \
  X(nvmlDeviceGetMaxPcieLinkGeneration, nullptr)                                                 \
  X(nvmlDeviceGetPcieThroughput, nullptr)                                                        \
  X(nvmlDeviceGetGridLicensableFeatures_v4, nullptr)                                             \
  X(nvmlDeviceGetP2PStatus, nullptr)                                                             \
  X(nvmlDeviceGetVbiosVersion, nullptr)                                                          \
  X(nvmlDeviceGetInforomVersion, nullptr)                                                        \
  X(nvmlDeviceGetInforomImageVersion, nullptr)                                                   \
  X(nvmlDeviceGetProcessUtilization, nullptr)                                                    \
  X(nvmlGpmQueryDeviceSupport, nullptr)                                                          \
  X(nvmlGpmSampleAlloc, nullptr)                                                                 \
  X(nvmlGpmSampleFree, nullptr)                                                                  \
  X(nvmlGpmSampleGet, nullptr)                                                                   \
  X(nvmlGpmMigSampleGet, nullptr)                                                                \
  X(nvmlGpmMetricsGet, nullptr)                                                                  \
  X(nvmlDeviceGetTopologyCommonAncestor, nullptr)                                                \
  X(nvmlDeviceGetFieldValues, nullptr)                                                           \
  X(nvmlDeviceGetSupportedEventTypes, nullptr)                                                   \
  X(nvmlDeviceRegisterEvents, nullptr)                                                           \
  X(nvmlEventSetCreate, nullptr)                                                                 \
  X(nvmlEventSetWait_v2, "nvmlEventSetWait")                                                     \
  X(nvmlEventSetFree, nullptr)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // only used with drivers that have nothing newer
// Pointers are null where the driver does not have the function.
struct Api {
#define GPULET_NVML_MEMBER(function, older) decltype(&::function) function = nullptr;
  GPULET_NVML_FUNCTIONS(GPULET_NVML_MEMBER)
#undef GPULET_NVML_MEMBER
};
#pragma GCC diagnostic pop

inline constexpr std::string_view kLibraryName = "libnvidia-ml.so.1";

// One loaded copy. The destructor unloads it, so every caller of its functions holds a shared_ptr.
class Library {
 public:
  // Loads the library by its resolved path ("…/libnvidia-ml.so.570.124.06"). After a driver update
  // the loader must not return the old library, which may still be loaded under the same name.
  // `driver_root`: "/driver-root", "/", or a path that does not exist.
  // `directories`: searched first, inside the driver root, with or without its path in front.
  // `name`: only for tests, which must not find the driver of the machine that they run on.
  // Errors: kUnavailable, with the directories searched and the loader's message.
  // Source: k8s-device-plugin, --driver-root-ctr-path.
  static Result<std::shared_ptr<const Library>> load_library(
      const std::string& driver_root, const std::vector<std::string>& directories = {},
      const std::string& name = std::string(kLibraryName));
  ~Library();
  Library(const Library&) = delete;

  // Functions that this driver does not have are null.
  const Api& api() const { return *api_; }
  const std::string& library_path() const { return path_; }

 private:
  Library(void* handle, std::string path);
  void* handle_;
  std::string path_;
  std::unique_ptr<const Api> api_;
};

// An error like "nvmlDeviceGetName: GPU is lost", with the code of find_return_code().
Status to_status(const Api& api, nvmlReturn_t result, const char* function);

// Calls a function that the driver has, and counts the call. `name` must have static storage.
template <class Function, class... Arguments>
nvmlReturn_t call_counted(Function function, const char* name, Arguments... arguments) {
  const nvmlReturn_t result = function(arguments...);
  count_call(name, result);
  return result;
}

template <class Function, class... Arguments>
Status call_nvml(const Api& api, Function function, const char* name, Arguments... arguments) {
  if (function == nullptr)
    return fail(Code::kUnsupported, std::string(name) + ": this driver has no such function");
  return to_status(api, call_counted(function, name, arguments...), name);
}

// The value of a field that is no negative number. Driver branch 545 reports a wrong type for the memory's
// temperature.
std::uint64_t field_number(const nvmlFieldValue_t& field);

// A device as the driver's functions take it.
inline nvmlDevice_t raw(Device device) { return static_cast<nvmlDevice_t>(device.raw); }

}  // namespace gpulet::nvml
