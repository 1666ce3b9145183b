// The driver's C functions that this room calls, as pointers of which any may be null: a driver knows those of its
// age. Only nvml/ includes this file, and with it nvml.h.
#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

namespace gpulet::nvml {

// X(the member's name and type, the name to look for when that one is missing, or nullptr). The older function of a
// pair takes the same arguments and fills no more of them.
#define GPULET_NVML_FUNCTIONS(X)                                                   \
  X(nvmlInit_v2, nullptr)                                                          \
  X(nvmlShutdown, nullptr)                                                         \
  X(nvmlErrorString, nullptr)                                                      \
  X(nvmlSystemGetDriverVersion, nullptr)                                           \
  X(nvmlSystemGetNVMLVersion, nullptr)                                             \
  X(nvmlSystemGetCudaDriverVersion_v2, "nvmlSystemGetCudaDriverVersion")           \
  X(nvmlDeviceGetCount_v2, nullptr)                                                \
  X(nvmlDeviceGetHandleByIndex_v2, nullptr)                                        \
  X(nvmlDeviceGetUUID, nullptr)                                                    \
  X(nvmlDeviceGetName, nullptr)                                                    \
  X(nvmlDeviceGetBrand, nullptr)                                                   \
  X(nvmlDeviceGetSerial, nullptr)                                                  \
  X(nvmlDeviceGetMinorNumber, nullptr)                                             \
  X(nvmlDeviceGetCudaComputeCapability, nullptr)                                   \
  X(nvmlDeviceGetMemoryInfo, nullptr)                                              \
  X(nvmlDeviceGetPciInfo_v3, nullptr)                                              \
  X(nvmlDeviceGetMigMode, nullptr)                                                 \
  X(nvmlDeviceGetMaxMigDeviceCount, nullptr)                                       \
  X(nvmlDeviceGetMigDeviceHandleByIndex, nullptr)                                  \
  X(nvmlDeviceGetGpuInstanceId, nullptr)                                           \
  X(nvmlDeviceGetComputeInstanceId, nullptr)                                       \
  X(nvmlDeviceGetAttributes_v2, "nvmlDeviceGetAttributes")                         \
  X(nvmlDeviceGetGpuInstanceById, nullptr)                                         \
  X(nvmlGpuInstanceGetInfo, nullptr)                                               \
  X(nvmlDeviceSetMigMode, nullptr)                                                 \
  X(nvmlDeviceGetGpuInstanceProfileInfoV, nullptr)                                 \
  X(nvmlDeviceGetGpuInstanceProfileInfo, nullptr)                                  \
  X(nvmlDeviceGetGpuInstancePossiblePlacements_v2,                                 \
    "nvmlDeviceGetGpuInstancePossiblePlacements")                                  \
  X(nvmlDeviceGetGpuInstances, nullptr)                                            \
  X(nvmlDeviceCreateGpuInstanceWithPlacement, nullptr)                             \
  X(nvmlGpuInstanceDestroy, nullptr)                                               \
  X(nvmlGpuInstanceGetComputeInstanceProfileInfo, nullptr)                         \
  X(nvmlGpuInstanceGetComputeInstancePossiblePlacements, nullptr)                  \
  X(nvmlGpuInstanceGetComputeInstances, nullptr)                                   \
  X(nvmlGpuInstanceGetComputeInstanceById, nullptr)                                \
  X(nvmlGpuInstanceCreateComputeInstance, nullptr)                                 \
  X(nvmlGpuInstanceCreateComputeInstanceWithPlacement, nullptr)                    \
  X(nvmlComputeInstanceGetInfo_v2, "nvmlComputeInstanceGetInfo")                   \
  X(nvmlComputeInstanceDestroy, nullptr)                                           \
  X(nvmlDeviceGetComputeRunningProcesses_v3,                                       \
    "nvmlDeviceGetComputeRunningProcesses_v2")                                     \
  X(nvmlDeviceGetGraphicsRunningProcesses_v3,                                      \
    "nvmlDeviceGetGraphicsRunningProcesses_v2")                                    \
  X(nvmlDeviceGetMPSComputeRunningProcesses_v3,                                    \
    "nvmlDeviceGetMPSComputeRunningProcesses_v2")                                  \
  X(nvmlDeviceGetComputeMode, nullptr)                                             \
  X(nvmlDeviceSetComputeMode, nullptr)                                             \
  X(nvmlDeviceGetNvLinkState, nullptr)                                             \
  X(nvmlDeviceGetNvLinkRemoteDeviceType, nullptr)                                  \
  X(nvmlDeviceGetNvLinkRemotePciInfo_v2, "nvmlDeviceGetNvLinkRemotePciInfo")       \
  X(nvmlDeviceGetGpuFabricInfoV, nullptr)                                          \
  X(nvmlDeviceGetGpuFabricInfo, nullptr)                                           \
  X(nvmlDeviceGetRemappedRows, nullptr)                                            \
  X(nvmlDeviceGetRetiredPages, nullptr)                                            \
  X(nvmlDeviceGetRetiredPagesPendingStatus, nullptr)                               \
  X(nvmlDeviceGetMemoryErrorCounter, nullptr)                                      \
  X(nvmlDeviceGetSramEccErrorStatus, nullptr)                                      \
  X(nvmlDeviceGetNvLinkErrorCounter, nullptr)                                      \
  X(nvmlDeviceGetPcieReplayCounter, nullptr)                                       \
  X(nvmlDeviceGetCurrPcieLinkWidth, nullptr)                                       \
  X(nvmlDeviceGetMaxPcieLinkWidth, nullptr)                                        \
  X(nvmlDeviceGetViolationStatus, nullptr)                                         \
  X(nvmlDeviceValidateInforom, nullptr)                                            \
  X(nvmlDeviceGetTotalEnergyConsumption, nullptr)                                  \
  X(nvmlDeviceGetMemoryInfo_v2, nullptr)                                           \
  X(nvmlDeviceGetBAR1MemoryInfo, nullptr)                                          \
  X(nvmlDeviceGetClockInfo, nullptr)                                               \
  X(nvmlDeviceGetMaxClockInfo, nullptr)                                            \
  X(nvmlDeviceGetMemoryBusWidth, nullptr)                                          \
  X(nvmlDeviceGetApplicationsClock, nullptr)                                       \
  X(nvmlDeviceGetCurrentClocksEventReasons,                                        \
    "nvmlDeviceGetCurrentClocksThrottleReasons")                                   \
  X(nvmlDeviceGetPerformanceState, nullptr)                                        \
  X(nvmlDeviceGetTemperature, nullptr)                                             \
  X(nvmlDeviceGetTemperatureThreshold, nullptr)                                    \
  X(nvmlDeviceGetFanSpeed, nullptr)                                                \
  X(nvmlDeviceGetPowerUsage, nullptr)                                              \
  X(nvmlDeviceGetPowerManagementLimit, nullptr)                                    \
  X(nvmlDeviceGetPowerManagementDefaultLimit, nullptr)                             \
  X(nvmlDeviceGetPowerManagementLimitConstraints, nullptr)                         \
  X(nvmlDeviceGetEnforcedPowerLimit, nullptr)                                      \
  X(nvmlDeviceGetUtilizationRates, nullptr)                                        \
  X(nvmlDeviceGetEncoderUtilization, nullptr)                                      \
  X(nvmlDeviceGetDecoderUtilization, nullptr)                                      \
  X(nvmlDeviceGetCurrPcieLinkGeneration, nullptr)                                  \
  X(nvmlDeviceGetMaxPcieLinkGeneration, nullptr)                                   \
  X(nvmlDeviceGetPcieThroughput, nullptr)                                          \
  X(nvmlDeviceGetGridLicensableFeatures_v4, nullptr)                               \
  X(nvmlDeviceGetP2PStatus, nullptr)                                               \
  X(nvmlDeviceGetVbiosVersion, nullptr)                                            \
  X(nvmlDeviceGetInforomVersion, nullptr)                                          \
  X(nvmlDeviceGetInforomImageVersion, nullptr)                                     \
  X(nvmlDeviceGetProcessUtilization, nullptr)                                      \
  X(nvmlGpmQueryDeviceSupport, nullptr)                                            \
  X(nvmlGpmSampleAlloc, nullptr)                                                   \
  X(nvmlGpmSampleFree, nullptr)                                                    \
  X(nvmlGpmSampleGet, nullptr)                                                     \
  X(nvmlGpmMigSampleGet, nullptr)                                                  \
  X(nvmlGpmMetricsGet, nullptr)                                                    \
  X(nvmlDeviceGetTopologyCommonAncestor, nullptr)                                  \
  X(nvmlDeviceGetFieldValues, nullptr)                                             \
  X(nvmlDeviceGetSupportedEventTypes, nullptr)                                     \
  X(nvmlDeviceRegisterEvents, nullptr)                                             \
  X(nvmlEventSetCreate, nullptr)                                                   \
  X(nvmlEventSetWait_v2, "nvmlEventSetWait")                                       \
  X(nvmlEventSetFree, nullptr)

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // asked of drivers that have nothing newer
struct Api {
#define GPULET_NVML_MEMBER(function, older) decltype(&::function) function = nullptr;
  GPULET_NVML_FUNCTIONS(GPULET_NVML_MEMBER)
#undef GPULET_NVML_MEMBER
};
#pragma GCC diagnostic pop

}  // namespace gpulet::nvml
