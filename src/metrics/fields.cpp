#include "metrics/fields.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/text.h"

namespace gpulet::metrics {
namespace {

constexpr bool kDefault = true, kNamed = false;  // FieldInfo::by_default
constexpr bool kInstances = true, kGpu = false;  // FieldInfo::of_instance

constexpr FieldInfo kFields[] = {
    {Field::kDriverVersion, 1, "DCGM_FI_DRIVER_VERSION", Type::kLabel, kDefault, kGpu, "Driver Version",
     "nvmlSystemGetDriverVersion"},
    {Field::kNvmlVersion, 2, "DCGM_FI_NVML_VERSION", Type::kLabel, kNamed, kGpu, "NVML Version",
     "nvmlSystemGetNVMLVersion"},
    {Field::kCudaVersion, 5, "DCGM_FI_CUDA_DRIVER_VERSION", Type::kGauge, kNamed, kGpu,
     "CUDA version of the driver.", "nvmlSystemGetCudaDriverVersion_v2"},
    {Field::kName, 50, "DCGM_FI_DEV_NAME", Type::kLabel, kNamed, kGpu, "Device name", "nvmlDeviceGetName"},
    {Field::kBrand, 51, "DCGM_FI_DEV_BRAND", Type::kLabel, kNamed, kGpu, "Device Brand",
     "nvmlDeviceGetBrand"},
    {Field::kNvmlIndex, 52, "DCGM_FI_DEV_NVML_INDEX", Type::kLabel, kNamed, kGpu, "NVML index of the device",
     "nvmlDeviceGetHandleByIndex_v2"},
    {Field::kSerial, 53, "DCGM_FI_DEV_SERIAL", Type::kLabel, kNamed, kGpu, "Device Serial Number",
     "nvmlDeviceGetSerial"},
    {Field::kUuid, 54, "DCGM_FI_DEV_UUID", Type::kLabel, kNamed, kGpu, "Device UUID", "nvmlDeviceGetUUID"},
    {Field::kMinorNumber, 55, "DCGM_FI_DEV_MINOR_NUMBER", Type::kLabel, kNamed, kGpu,
     "Device node minor number", "nvmlDeviceGetMinorNumber"},
    {Field::kInforomOem, 56, "DCGM_FI_DEV_OEM_INFOROM_VER", Type::kLabel, kNamed, kGpu, "OEM inforom version",
     "nvmlDeviceGetInforomVersion(OEM)"},
    {Field::kPciBusId, 57, "DCGM_FI_DEV_PCI_BUSID", Type::kLabel, kNamed, kGpu, "PCI bus ID",
     "nvmlDeviceGetPciInfo_v3"},
    {Field::kMigMode, 67, "DCGM_FI_DEV_MIG_MODE", Type::kGauge, kNamed, kGpu, "MIG mode: 1 when on.",
     "nvmlDeviceGetMigMode"},
    {Field::kInforomEcc, 80, "DCGM_FI_DEV_ECC_INFOROM_VER", Type::kLabel, kNamed, kGpu, "ECC inforom version",
     "nvmlDeviceGetInforomVersion(ECC)"},
    {Field::kInforomPower, 81, "DCGM_FI_DEV_POWER_INFOROM_VER", Type::kLabel, kNamed, kGpu,
     "Power management object inforom version", "nvmlDeviceGetInforomVersion(POWER)"},
    {Field::kInforomImage, 82, "DCGM_FI_DEV_INFOROM_IMAGE_VER", Type::kLabel, kNamed, kGpu,
     "Inforom image version", "nvmlDeviceGetInforomImageVersion"},
    {Field::kVbios, 85, "DCGM_FI_DEV_VBIOS_VERSION", Type::kLabel, kNamed, kGpu,
     "VBIOS version of the device", "nvmlDeviceGetVbiosVersion"},
    {Field::kBar1Total, 90, "DCGM_FI_DEV_BAR1_TOTAL", Type::kGauge, kNamed, kGpu, "BAR1 memory (in MiB).",
     "nvmlDeviceGetBAR1MemoryInfo"},
    {Field::kBar1Used, 92, "DCGM_FI_DEV_BAR1_USED", Type::kGauge, kNamed, kGpu, "BAR1 memory used (in MiB).",
     "nvmlDeviceGetBAR1MemoryInfo"},
    {Field::kBar1Free, 93, "DCGM_FI_DEV_BAR1_FREE", Type::kGauge, kNamed, kGpu, "BAR1 memory free (in MiB).",
     "nvmlDeviceGetBAR1MemoryInfo"},
    {Field::kSmClock, 100, "DCGM_FI_DEV_SM_CLOCK", Type::kGauge, kDefault, kGpu,
     "SM clock frequency (in MHz).", "nvmlDeviceGetClockInfo(SM)"},
    {Field::kMemoryClock, 101, "DCGM_FI_DEV_MEM_CLOCK", Type::kGauge, kDefault, kGpu,
     "Memory clock frequency (in MHz).", "nvmlDeviceGetClockInfo(MEM)"},
    {Field::kVideoClock, 102, "DCGM_FI_DEV_VIDEO_CLOCK", Type::kGauge, kNamed, kGpu,
     "Video encoder and decoder clock frequency (in MHz).", "nvmlDeviceGetClockInfo(VIDEO)"},
    {Field::kAppSmClock, 110, "DCGM_FI_DEV_APP_SM_CLOCK", Type::kGauge, kNamed, kGpu,
     "SM application clock frequency (in MHz).", "nvmlDeviceGetApplicationsClock(SM)"},
    {Field::kAppMemoryClock, 111, "DCGM_FI_DEV_APP_MEM_CLOCK", Type::kGauge, kNamed, kGpu,
     "Memory application clock frequency (in MHz).", "nvmlDeviceGetApplicationsClock(MEM)"},
    {Field::kClockEvents, 112, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", Type::kGauge, kNamed, kGpu,
     "Current clock event reasons (bitmask).", "nvmlDeviceGetCurrentClocksEventReasons"},
    {Field::kMaxSmClock, 113, "DCGM_FI_DEV_MAX_SM_CLOCK", Type::kGauge, kNamed, kGpu,
     "Maximum SM clock frequency (in MHz).", "nvmlDeviceGetMaxClockInfo(SM)"},
    {Field::kMaxMemoryClock, 114, "DCGM_FI_DEV_MAX_MEM_CLOCK", Type::kGauge, kNamed, kGpu,
     "Maximum memory clock frequency (in MHz).", "nvmlDeviceGetMaxClockInfo(MEM)"},
    {Field::kMaxVideoClock, 115, "DCGM_FI_DEV_MAX_VIDEO_CLOCK", Type::kGauge, kNamed, kGpu,
     "Maximum video clock frequency (in MHz).", "nvmlDeviceGetMaxClockInfo(VIDEO)"},
    {Field::kMemoryTemp, 140, "DCGM_FI_DEV_MEMORY_TEMP", Type::kGauge, kDefault, kGpu,
     "Memory temperature (in C).", "field 82"},
    {Field::kGpuTemp, 150, "DCGM_FI_DEV_GPU_TEMP", Type::kGauge, kDefault, kGpu, "GPU temperature (in C).",
     "nvmlDeviceGetTemperature(GPU)"},
    {Field::kMaxMemoryTemp, 151, "DCGM_FI_DEV_MEM_MAX_OP_TEMP", Type::kGauge, kNamed, kGpu,
     "Maximum operating temperature of the memory (in C).", "nvmlDeviceGetTemperatureThreshold(MEM_MAX)"},
    {Field::kMaxGpuTemp, 152, "DCGM_FI_DEV_GPU_MAX_OP_TEMP", Type::kGauge, kNamed, kGpu,
     "Maximum operating temperature of the GPU (in C).", "nvmlDeviceGetTemperatureThreshold(GPU_MAX)"},
    {Field::kPower, 155, "DCGM_FI_DEV_POWER_USAGE", Type::kGauge, kDefault, kGpu, "Power draw (in W).",
     "nvmlDeviceGetPowerUsage"},
    {Field::kEnergy, 156, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Type::kCounter, kDefault, kGpu,
     "Total energy consumption since boot (in mJ).", "field 83"},
    {Field::kPowerInstant, 157, "DCGM_FI_DEV_POWER_USAGE_INSTANT", Type::kGauge, kNamed, kGpu,
     "Instantaneous power draw (in W).", "field 186"},
    {Field::kSlowdownTemp, 158, "DCGM_FI_DEV_SLOWDOWN_TEMP", Type::kGauge, kNamed, kGpu,
     "Temperature at which the GPU slows down (in C).", "nvmlDeviceGetTemperatureThreshold(SLOWDOWN)"},
    {Field::kShutdownTemp, 159, "DCGM_FI_DEV_SHUTDOWN_TEMP", Type::kGauge, kNamed, kGpu,
     "Temperature at which the GPU shuts down (in C).", "nvmlDeviceGetTemperatureThreshold(SHUTDOWN)"},
    {Field::kPowerLimit, 160, "DCGM_FI_DEV_POWER_MGMT_LIMIT", Type::kGauge, kNamed, kGpu,
     "Power limit (in W).", "nvmlDeviceGetPowerManagementLimit"},
    {Field::kPowerLimitLeast, 161, "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", Type::kGauge, kNamed, kGpu,
     "Least power limit (in W).", "nvmlDeviceGetPowerManagementLimitConstraints"},
    {Field::kPowerLimitMost, 162, "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", Type::kGauge, kNamed, kGpu,
     "Greatest power limit (in W).", "nvmlDeviceGetPowerManagementLimitConstraints"},
    {Field::kPowerLimitDefault, 163, "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", Type::kGauge, kNamed, kGpu,
     "Default power limit (in W).", "nvmlDeviceGetPowerManagementDefaultLimit"},
    {Field::kPowerLimitEnforced, 164, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", Type::kGauge, kNamed, kGpu,
     "Power limit that the driver enforces (in W).", "nvmlDeviceGetEnforcedPowerLimit"},
    {Field::kPerformanceState, 190, "DCGM_FI_DEV_PSTATE", Type::kGauge, kNamed, kGpu,
     "Performance state (P-State) 0-15, 0 is the highest.", "nvmlDeviceGetPerformanceState"},
    {Field::kFan, 191, "DCGM_FI_DEV_FAN_SPEED", Type::kGauge, kNamed, kGpu, "Fan speed (in %).",
     "nvmlDeviceGetFanSpeed"},
    {Field::kPcieTx, 200, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT", Type::kGauge, kNamed, kGpu,
     "PCIe traffic from the GPU (in KB/s) via NVML.", "nvmlDeviceGetPcieThroughput(TX)"},
    {Field::kPcieRx, 201, "DCGM_FI_DEV_PCIE_RX_THROUGHPUT", Type::kGauge, kNamed, kGpu,
     "PCIe traffic to the GPU (in KB/s) via NVML.", "nvmlDeviceGetPcieThroughput(RX)"},
    {Field::kPcieReplays, 202, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", Type::kCounter, kDefault, kGpu,
     "Total number of PCIe retries.", "nvmlDeviceGetPcieReplayCounter"},
    {Field::kGpuUtil, 203, "DCGM_FI_DEV_GPU_UTIL", Type::kGauge, kDefault, kGpu, "GPU utilization (in %).",
     "nvmlDeviceGetUtilizationRates"},
    {Field::kMemCopyUtil, 204, "DCGM_FI_DEV_MEM_COPY_UTIL", Type::kGauge, kDefault, kGpu,
     "Memory utilization (in %).", "nvmlDeviceGetUtilizationRates"},
    {Field::kEncoderUtil, 206, "DCGM_FI_DEV_ENC_UTIL", Type::kGauge, kDefault, kGpu,
     "Encoder utilization (in %).", "nvmlDeviceGetEncoderUtilization"},
    {Field::kDecoderUtil, 207, "DCGM_FI_DEV_DEC_UTIL", Type::kGauge, kDefault, kGpu,
     "Decoder utilization (in %).", "nvmlDeviceGetDecoderUtilization"},
    {Field::kXid, 230, "DCGM_FI_DEV_XID_ERRORS", Type::kGauge, kDefault, kInstances,
     "Value of the last XID error encountered.", "nvmlEventSetWait_v2"},
    {Field::kMaxPcieGeneration, 235, "DCGM_FI_DEV_PCIE_MAX_LINK_GEN", Type::kGauge, kNamed, kGpu,
     "Maximum PCIe link generation.", "nvmlDeviceGetMaxPcieLinkGeneration"},
    {Field::kMaxPcieWidth, 236, "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", Type::kGauge, kNamed, kGpu,
     "Maximum PCIe link width.", "nvmlDeviceGetMaxPcieLinkWidth"},
    {Field::kPcieGeneration, 237, "DCGM_FI_DEV_PCIE_LINK_GEN", Type::kGauge, kNamed, kGpu,
     "PCIe link generation.", "nvmlDeviceGetCurrPcieLinkGeneration"},
    {Field::kPcieWidth, 238, "DCGM_FI_DEV_PCIE_LINK_WIDTH", Type::kGauge, kNamed, kGpu, "PCIe link width.",
     "nvmlDeviceGetCurrPcieLinkWidth"},
    {Field::kViolationPower, 240, "DCGM_FI_DEV_POWER_VIOLATION", Type::kCounter, kNamed, kGpu,
     "Throttling duration due to power constraints (in ns).", "field 74"},
    {Field::kViolationThermal, 241, "DCGM_FI_DEV_THERMAL_VIOLATION", Type::kCounter, kNamed, kGpu,
     "Throttling duration due to thermal constraints (in ns).", "field 75"},
    {Field::kViolationSyncBoost, 242, "DCGM_FI_DEV_SYNC_BOOST_VIOLATION", Type::kCounter, kNamed, kGpu,
     "Throttling duration due to sync-boost constraints (in ns).", "field 76"},
    {Field::kViolationBoardLimit, 243, "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", Type::kCounter, kNamed, kGpu,
     "Throttling duration due to board limit constraints (in ns).", "field 77"},
    {Field::kViolationLowUtil, 244, "DCGM_FI_DEV_LOW_UTIL_VIOLATION", Type::kCounter, kNamed, kGpu,
     "Throttling duration due to low utilization (in ns).", "field 78"},
    {Field::kViolationReliability, 245, "DCGM_FI_DEV_RELIABILITY_VIOLATION", Type::kCounter, kNamed, kGpu,
     "Throttling duration due to reliability constraints (in ns).", "field 79"},
    {Field::kViolationAppClocks, 246, "DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION", Type::kCounter, kNamed, kGpu,
     "Throttling duration below application clocks (in ns).", "field 80"},
    {Field::kViolationBaseClocks, 247, "DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION", Type::kCounter, kNamed,
     kGpu, "Throttling duration below base clocks (in ns).", "field 81"},
    {Field::kFbTotal, 250, "DCGM_FI_DEV_FB_TOTAL", Type::kGauge, kNamed, kInstances,
     "Framebuffer memory (in MiB).", "nvmlDeviceGetMemoryInfo_v2"},
    {Field::kFbFree, 251, "DCGM_FI_DEV_FB_FREE", Type::kGauge, kDefault, kInstances,
     "Framebuffer memory free (in MiB).", "nvmlDeviceGetMemoryInfo_v2"},
    {Field::kFbUsed, 252, "DCGM_FI_DEV_FB_USED", Type::kGauge, kDefault, kInstances,
     "Framebuffer memory used (in MiB).", "nvmlDeviceGetMemoryInfo_v2"},
    {Field::kFbReserved, 253, "DCGM_FI_DEV_FB_RESERVED", Type::kGauge, kDefault, kInstances,
     "Framebuffer memory reserved (in MiB).", "nvmlDeviceGetMemoryInfo_v2"},
    {Field::kFbUsedPercent, 254, "DCGM_FI_DEV_FB_USED_PERCENT", Type::kGauge, kNamed, kInstances,
     "Share of the framebuffer memory used (0 to 1).", "nvmlDeviceGetMemoryInfo_v2"},
    {Field::kEccMode, 300, "DCGM_FI_DEV_ECC_CURRENT", Type::kGauge, kNamed, kGpu, "ECC mode: 1 when on.",
     "field 1"},
    {Field::kEccPending, 301, "DCGM_FI_DEV_ECC_PENDING", Type::kGauge, kNamed, kGpu,
     "ECC mode after the next reset.", "field 2"},
    {Field::kEccSbeVolatile, 310, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", Type::kCounter, kNamed, kGpu,
     "Total number of single-bit volatile ECC errors.", "field 3"},
    {Field::kEccDbeVolatile, 311, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Type::kCounter, kNamed, kGpu,
     "Total number of double-bit volatile ECC errors.", "field 4"},
    {Field::kEccSbeAggregate, 312, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", Type::kCounter, kNamed, kGpu,
     "Total number of single-bit persistent ECC errors.", "field 5"},
    {Field::kEccDbeAggregate, 313, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", Type::kCounter, kNamed, kGpu,
     "Total number of double-bit persistent ECC errors.", "field 6"},
    {Field::kRetiredSbe, 390, "DCGM_FI_DEV_RETIRED_SBE", Type::kCounter, kNamed, kGpu,
     "Total number of retired pages due to single-bit errors.", "field 29"},
    {Field::kRetiredDbe, 391, "DCGM_FI_DEV_RETIRED_DBE", Type::kCounter, kNamed, kGpu,
     "Total number of retired pages due to double-bit errors.", "field 30"},
    {Field::kRetiredPending, 392, "DCGM_FI_DEV_RETIRED_PENDING", Type::kCounter, kNamed, kGpu,
     "Total number of pages pending retirement.", "field 31"},
    {Field::kRemappedUncorrectable, 393, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", Type::kCounter, kDefault,
     kGpu, "Number of remapped rows for uncorrectable errors", "field 143"},
    {Field::kRemappedCorrectable, 394, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", Type::kCounter, kDefault,
     kGpu, "Number of remapped rows for correctable errors", "field 142"},
    {Field::kRemapFailure, 395, "DCGM_FI_DEV_ROW_REMAP_FAILURE", Type::kGauge, kDefault, kGpu,
     "Whether remapping of rows has failed", "field 145"},
    {Field::kRemapPending, 396, "DCGM_FI_DEV_ROW_REMAP_PENDING", Type::kGauge, kNamed, kGpu,
     "Whether remapping of rows is pending", "field 144"},
    {Field::kNvLinkCrcFlit, 409, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", Type::kCounter, kNamed,
     kGpu, "Total number of NVLink flow-control CRC errors.", "field 38"},
    {Field::kNvLinkCrcData, 419, "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", Type::kCounter, kNamed,
     kGpu, "Total number of NVLink data CRC errors.", "field 45"},
    {Field::kNvLinkReplay, 429, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", Type::kCounter, kNamed, kGpu,
     "Total number of NVLink retries.", "field 52"},
    {Field::kNvLinkRecovery, 439, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", Type::kCounter, kNamed,
     kGpu, "Total number of NVLink recovery errors.", "field 59"},
    {Field::kNvLinkBandwidth, 449, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", Type::kCounter, kDefault, kGpu,
     "Total number of NVLink bandwidth counters for all lanes.", "fields 138 and 139"},
    {Field::kNvLinkCrcErrors, 497, "DCGM_FI_DEV_NVLINK_ERROR_DL_CRC", Type::kCounter, kNamed, kGpu,
     "NVLink CRC errors, over all links.", "field 163 of each link"},
    {Field::kNvLinkRecoveryErrors, 498, "DCGM_FI_DEV_NVLINK_ERROR_DL_RECOVERY", Type::kCounter, kNamed, kGpu,
     "NVLink recovery errors, over all links.", "field 162 of each link"},
    {Field::kNvLinkReplayErrors, 499, "DCGM_FI_DEV_NVLINK_ERROR_DL_REPLAY", Type::kCounter, kNamed, kGpu,
     "NVLink replay errors, over all links.", "field 161 of each link"},
    {Field::kVgpuLicense, 526, "DCGM_FI_DEV_VGPU_LICENSE_STATUS", Type::kGauge, kDefault, kGpu,
     "vGPU License status", "nvmlDeviceGetGridLicensableFeatures_v4"},
    {Field::kGraphicsActive, 1001, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", Type::kGauge, kDefault, kInstances,
     "Ratio of time the graphics engine is active.", "GPM 1"},
    {Field::kSmActive, 1002, "DCGM_FI_PROF_SM_ACTIVE", Type::kGauge, kNamed, kInstances,
     "The ratio of cycles an SM has at least 1 warp assigned.", "GPM 2"},
    {Field::kSmOccupancy, 1003, "DCGM_FI_PROF_SM_OCCUPANCY", Type::kGauge, kNamed, kInstances,
     "The ratio of number of warps resident on an SM.", "GPM 3"},
    {Field::kTensorActive, 1004, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Type::kGauge, kDefault, kInstances,
     "Ratio of cycles the tensor (HMMA) pipe is active.", "GPM 5"},
    {Field::kDramActive, 1005, "DCGM_FI_PROF_DRAM_ACTIVE", Type::kGauge, kDefault, kInstances,
     "Ratio of cycles the device memory interface is active sending or receiving data.", "GPM 10"},
    {Field::kFp64Active, 1006, "DCGM_FI_PROF_PIPE_FP64_ACTIVE", Type::kGauge, kNamed, kInstances,
     "Ratio of cycles the fp64 pipes are active.", "GPM 11"},
    {Field::kFp32Active, 1007, "DCGM_FI_PROF_PIPE_FP32_ACTIVE", Type::kGauge, kNamed, kInstances,
     "Ratio of cycles the fp32 pipes are active.", "GPM 12"},
    {Field::kFp16Active, 1008, "DCGM_FI_PROF_PIPE_FP16_ACTIVE", Type::kGauge, kNamed, kInstances,
     "Ratio of cycles the fp16 pipes are active.", "GPM 13"},
    {Field::kPcieTxBytes, 1009, "DCGM_FI_PROF_PCIE_TX_BYTES", Type::kGauge, kDefault, kInstances,
     "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - "
     "in bytes per second.",
     "GPM 20"},
    {Field::kPcieRxBytes, 1010, "DCGM_FI_PROF_PCIE_RX_BYTES", Type::kGauge, kDefault, kInstances,
     "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in "
     "bytes per second.",
     "GPM 21"},
    {Field::kNvLinkTxBytes, 1011, "DCGM_FI_PROF_NVLINK_TX_BYTES", Type::kGauge, kNamed, kInstances,
     "The rate of data transmitted over all NVLinks in bytes per second.", "GPM 61"},
    {Field::kNvLinkRxBytes, 1012, "DCGM_FI_PROF_NVLINK_RX_BYTES", Type::kGauge, kNamed, kInstances,
     "The rate of data received over all NVLinks in bytes per second.", "GPM 60"},
    {Field::kTensorImmaActive, 1013, "DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", Type::kGauge, kNamed, kInstances,
     "Ratio of cycles the tensor (IMMA) pipe is active.", "GPM 9"},
    {Field::kTensorHmmaActive, 1014, "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", Type::kGauge, kNamed, kInstances,
     "Ratio of cycles the tensor (HMMA) pipe alone is active.", "GPM 7"},
    {Field::kTensorDfmaActive, 1015, "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", Type::kGauge, kNamed, kInstances,
     "Ratio of cycles the tensor (DFMA) pipe is active.", "GPM 6"},
    {Field::kIntegerActive, 1016, "DCGM_FI_PROF_PIPE_INT_ACTIVE", Type::kGauge, kNamed, kInstances,
     "Ratio of cycles the integer pipe is active.", "GPM 4"},
    {Field::kNvLinkTransmittedPackets, 1200, "DCGM_FI_DEV_NVLINK_COUNT_TX_PACKETS", Type::kCounter, kNamed,
     kGpu, "Packets sent, over all links.", "field 201 of each link"},
    {Field::kNvLinkTransmittedBytes, 1201, "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", Type::kCounter, kNamed, kGpu,
     "Bytes sent, over all links.", "field 202 of each link"},
    {Field::kNvLinkReceivedPackets, 1202, "DCGM_FI_DEV_NVLINK_COUNT_RX_PACKETS", Type::kCounter, kNamed, kGpu,
     "Packets received, over all links.", "field 203 of each link"},
    {Field::kNvLinkReceivedBytes, 1203, "DCGM_FI_DEV_NVLINK_COUNT_RX_BYTES", Type::kCounter, kNamed, kGpu,
     "Bytes received, over all links.", "field 204 of each link"},
    {Field::kNvLinkMalformedPackets, 1204, "DCGM_FI_DEV_NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS",
     Type::kCounter, kNamed, kGpu, "Malformed packets received, over all links.", "field 206 of each link"},
    {Field::kNvLinkBufferOverruns, 1205, "DCGM_FI_DEV_NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS", Type::kCounter,
     kNamed, kGpu, "Packets discarded for lack of a buffer, over all links.", "field 207 of each link"},
    {Field::kNvLinkReceiveErrors, 1206, "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS", Type::kCounter, kNamed, kGpu,
     "Packets received with errors, over all links.", "field 208 of each link"},
    {Field::kNvLinkRemoteErrors, 1207, "DCGM_FI_DEV_NVLINK_COUNT_RX_REMOTE_ERRORS", Type::kCounter, kNamed,
     kGpu, "Packets received that the sender had marked bad, over all links.", "field 209 of each link"},
    {Field::kNvLinkGeneralErrors, 1208, "DCGM_FI_DEV_NVLINK_COUNT_RX_GENERAL_ERRORS", Type::kCounter, kNamed,
     kGpu, "Packets received with a wrong header, over all links.", "field 210 of each link"},
    {Field::kNvLinkIntegrityErrors, 1209, "DCGM_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
     Type::kCounter, kNamed, kGpu, "Times that local errors exceeded a threshold, over all links.",
     "field 211 of each link"},
    {Field::kNvLinkTransmitDiscards, 1210, "DCGM_FI_DEV_NVLINK_COUNT_TX_DISCARDS", Type::kCounter, kNamed,
     kGpu, "Packets discarded instead of sent, over all links.", "field 212 of each link"},
    {Field::kNvLinkRecoveriesDone, 1211, "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS",
     Type::kCounter, kNamed, kGpu, "Successful recoveries, over all links.", "field 213 of each link"},
    {Field::kNvLinkRecoveriesFailed, 1212, "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
     Type::kCounter, kNamed, kGpu, "Failed recoveries, over all links.", "field 214 of each link"},
    {Field::kNvLinkRecoveries, 1213, "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", Type::kCounter, kNamed,
     kGpu, "Recoveries, over all links.", "field 215 of each link"},
    {Field::kNvLinkSymbolErrors, 1214, "DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", Type::kCounter, kNamed,
     kGpu, "Wrong symbols received, over all links.", "field 221 of each link"},
    {Field::kNvLinkEffectiveErrors, 1219, "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", Type::kCounter, kNamed,
     kGpu, "Errors after correction, over all links.", "field 219 of each link"},
    {Field::kNvLinkEccErrors, 1220, "DCGM_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL", Type::kCounter, kNamed,
     kGpu, "NVLink data ECC errors, over all links.", "field 160"},
    {Field::kXidCount, 9001, "DCGM_EXP_XID_ERRORS_COUNT", Type::kGauge, kNamed, kInstances,
     "Count of XID errors within the window.", "nvmlEventSetWait_v2"},
    {Field::kClockEventCount, 9002, "DCGM_EXP_CLOCK_EVENTS_COUNT", Type::kGauge, kNamed, kGpu,
     "Count of samples with a clock event within the window.", "nvmlDeviceGetCurrentClocksEventReasons"},
    {Field::kPeerToPeer, 9004, "DCGM_EXP_P2P_STATUS", Type::kGauge, kNamed, kGpu,
     "Whether the GPU reaches its peer: 1 when OK.", "nvmlDeviceGetP2PStatus"},
};
static_assert(std::size(kFields) == static_cast<std::size_t>(Field::kPeerToPeer) + 1);

constexpr LinkFieldInfo kLinkFields[] = {
    {Field::kLinkCrcFlit, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L", "", "fields 32 to 37, 96 to 101"},
    {Field::kLinkCrcData, "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L", "", "fields 39 to 44, 102 to 107"},
    {Field::kLinkReplay, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L", "", "field 161"},
    {Field::kLinkRecovery, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L", "", "field 162"},
    {Field::kLinkBandwidth, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L", "", "fields 138 and 139"},
    {Field::kLinkTxBytes, "DCGM_FI_PROF_NVLINK_L", "_TX_BYTES", "GPM 63 + 2 * link"},
    {Field::kLinkRxBytes, "DCGM_FI_PROF_NVLINK_L", "_RX_BYTES", "GPM 62 + 2 * link"},
    // DCGM 4.6.
    {Field::kLinkCrcFlit, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_L", "_TOTAL", ""},
    {Field::kLinkCrcData, "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_L", "_TOTAL", ""},
    {Field::kLinkReplay, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_L", "_TOTAL", ""},
    {Field::kLinkRecovery, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_L", "_TOTAL", ""},
    {Field::kLinkBandwidth, "DCGM_FI_DEV_NVLINK_THROUGHPUT_L", "", ""},
};

struct OtherName {
  std::string_view name;
  Field field;
};
// Sorted by name.
constexpr OtherName kOtherNames[] = {
    {"DCGM_FI_DEV_BOARD_POWER_WATTS", Field::kPower},
    {"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", Field::kClockEvents},
    {"DCGM_FI_DEV_GPU_PSTATE", Field::kPerformanceState},
    {"DCGM_FI_DEV_GPU_TEMP_CELSIUS", Field::kGpuTemp},
    {"DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", Field::kMemoryTemp},
    {"DCGM_FI_DEV_NVLINK_CRC_ERROR_TOTAL", Field::kNvLinkCrcErrors},
    {"DCGM_FI_DEV_NVLINK_RECOVERY_TOTAL", Field::kNvLinkRecoveryErrors},
    {"DCGM_FI_DEV_NVLINK_REPLAY_TOTAL", Field::kNvLinkReplayErrors},
    {"DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", Field::kNvLinkBandwidth},
    {"DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL", Field::kNvLinkTransmittedBytes},
    {"DCGM_FI_DEV_NVLINK_TX_PACKET_TOTAL", Field::kNvLinkTransmittedPackets},
    {"DCGM_FI_DEV_PCIE_REPLAY_TOTAL", Field::kPcieReplays},
    {"DCGM_FI_DEV_XID_ERROR", Field::kXid},
    {"DCGM_FI_PROF_DRAM_UTIL_RATIO", Field::kDramActive},
    {"DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", Field::kGraphicsActive},
    {"DCGM_FI_PROF_SM_OCCUPANCY_RATIO", Field::kSmOccupancy},
    {"DCGM_FI_PROF_SM_UTIL_RATIO", Field::kSmActive},
    {"DCGM_FI_PROF_TENSOR_UTIL_RATIO", Field::kTensorActive},
    {"dcgm_board_limit_violation", Field::kViolationBoardLimit},
    {"dcgm_dec_utilization", Field::kDecoderUtil},
    {"dcgm_ecc_dbe_aggregate_total", Field::kEccDbeAggregate},
    {"dcgm_ecc_dbe_volatile_total", Field::kEccDbeVolatile},
    {"dcgm_ecc_sbe_aggregate_total", Field::kEccSbeAggregate},
    {"dcgm_ecc_sbe_volatile_total", Field::kEccSbeVolatile},
    {"dcgm_enc_utilization", Field::kEncoderUtil},
    {"dcgm_fb_free", Field::kFbFree},
    {"dcgm_fb_used", Field::kFbUsed},
    {"dcgm_fi_prof_dram_active", Field::kDramActive},
    {"dcgm_fi_prof_gr_engine_active", Field::kGraphicsActive},
    {"dcgm_fi_prof_pcie_rx_bytes", Field::kPcieRxBytes},
    {"dcgm_fi_prof_pcie_tx_bytes", Field::kPcieTxBytes},
    {"dcgm_fi_prof_pipe_tensor_active", Field::kTensorActive},
    {"dcgm_fi_prof_sm_active", Field::kSmActive},
    {"dcgm_fi_prof_sm_occupancy", Field::kSmOccupancy},
    {"dcgm_gpu_temp", Field::kGpuTemp},
    {"dcgm_gpu_utilization", Field::kGpuUtil},
    {"dcgm_low_util_violation", Field::kViolationLowUtil},
    {"dcgm_mem_copy_utilization", Field::kMemCopyUtil},
    {"dcgm_memory_clock", Field::kMemoryClock},
    {"dcgm_memory_temp", Field::kMemoryTemp},
    {"dcgm_nvlink_bandwidth_total", Field::kNvLinkBandwidth},
    {"dcgm_nvlink_data_crc_error_count_total", Field::kNvLinkCrcData},
    {"dcgm_nvlink_flit_crc_error_count_total", Field::kNvLinkCrcFlit},
    {"dcgm_nvlink_recovery_error_count_total", Field::kNvLinkRecovery},
    {"dcgm_nvlink_replay_error_count_total", Field::kNvLinkReplay},
    {"dcgm_pcie_replay_counter", Field::kPcieReplays},
    {"dcgm_pcie_rx_throughput", Field::kPcieRx},
    {"dcgm_pcie_tx_throughput", Field::kPcieTx},
    {"dcgm_power_usage", Field::kPower},
    {"dcgm_power_violation", Field::kViolationPower},
    {"dcgm_reliability_violation", Field::kViolationReliability},
    {"dcgm_retired_pages_dbe", Field::kRetiredDbe},
    {"dcgm_retired_pages_pending", Field::kRetiredPending},
    {"dcgm_retired_pages_sbe", Field::kRetiredSbe},
    {"dcgm_sm_clock", Field::kSmClock},
    {"dcgm_sync_boost_violation", Field::kViolationSyncBoost},
    {"dcgm_thermal_violation", Field::kViolationThermal},
    {"dcgm_total_energy_consumption", Field::kEnergy},
    {"dcgm_xid_errors", Field::kXid},
};

// The first match applies.
constexpr UnservedField kAbsent[] = {
    {"DCGM_EXP_GPU_HEALTH_STATUS", "DCGM's health watches: gpulet judges health itself"},
    {"DCGM_FI_DEV_ACCOUNTING", "accounting of single processes"},
    {"DCGM_FI_DEV_C2C", "DCGM only"},
    {"DCGM_FI_DEV_CONNECTX", "network cards are not NVML's"},
    {"DCGM_FI_DEV_CPU", "Grace CPUs are not NVML's"},
    {"DCGM_FI_DEV_DIAG", "DCGM's diagnostics"},
    {"DCGM_FI_DEV_ECC", "errors by location: only their totals are served"},
    {"DCGM_FI_DEV_ENC_STATS", "encoder sessions"},
    {"DCGM_FI_DEV_FABRIC", "the NVLink fabric: a part of gpulet's health"},
    {"DCGM_FI_DEV_FBC", "frame buffer capture sessions"},
    {"DCGM_FI_DEV_NVLINK", "bit error rates and port counters"},
    {"DCGM_FI_DEV_NVSWITCH", "NVSwitches are not NVML's"},
    {"DCGM_FI_DEV_PLATFORM", "DCGM only"},
    {"DCGM_FI_DEV_VGPU", "vGPUs of a hypervisor"},
    {"DCGM_FI_IMEX", "the IMEX daemon is not NVML's"},
    {"DCGM_FI_INTERNAL", "DCGM's own"},
    {"DCGM_FI_PROF_C2C", "DCGM only"},
    {"DCGM_FI_PROF_HOSTMEM", "DCGM only"},
    {"DCGM_FI_PROF_NVDEC", "single decoders: DCGM_FI_DEV_DEC_UTIL has all"},
    {"DCGM_FI_PROF_NVJPG", "single JPEG decoders"},
    {"DCGM_FI_PROF_NVLINK", "single links: DCGM_FI_PROF_NVLINK_L0_TX_BYTES to L17 are served"},
    {"DCGM_FI_PROF_NVOFA", "single optical flow engines"},
    {"DCGM_FI_PROF_PEERMEM", "DCGM only"},
};

constexpr bool sorted(const auto& all, auto name) {
  for (std::size_t i = 1; i < std::size(all); ++i) {
    if (!(all[i - 1].*name < all[i].*name)) return false;
  }
  return true;
}
static_assert(sorted(kOtherNames, &OtherName::name) && sorted(kAbsent, &UnservedField::prefix));
static_assert(sorted(kFields, &FieldInfo::field) && sorted(kFields, &FieldInfo::id));

}  // namespace

std::string_view type_name(Type type) {
  switch (type) {
    case Type::kGauge:
      return "gauge";
    case Type::kCounter:
      return "counter";
    case Type::kLabel:
      break;
  }
  return "label";
}

std::span<const FieldInfo> fields() { return kFields; }

const FieldInfo& field_info(Field field) { return kFields[static_cast<std::size_t>(field)]; }

const FieldInfo* find_field(std::string_view name) {
  for (const auto& field : kFields) {
    if (field.name == name) return &field;
  }
  for (const auto& other : kOtherNames) {
    if (other.name == name) return &field_info(other.field);
  }
  return nullptr;
}

std::vector<std::string_view> other_names(Field field) {
  std::vector<std::string_view> names;
  for (const auto& other : kOtherNames) {
    if (other.field == field) names.push_back(other.name);
  }
  return names;
}

std::span<const LinkFieldInfo> link_fields() { return kLinkFields; }

std::optional<LinkField> find_link_field(std::string_view name) {
  for (const auto& one : kLinkFields) {
    if (!name.starts_with(one.before) || !name.ends_with(one.after)) continue;
    if (name.size() <= one.before.size() + one.after.size()) continue;
    const auto number = name.substr(one.before.size(), name.size() - one.before.size() - one.after.size());
    const auto link = text::parse_unsigned(number);
    // "L07" is no name of DCGM.
    if (link && *link < kDcgmLinks && std::to_string(*link) == number)
      return LinkField{one.field, static_cast<unsigned>(*link)};
  }
  return std::nullopt;
}

std::optional<std::string_view> unserved_reason(std::string_view name) {
  if (find_field(name) != nullptr || find_link_field(name)) return std::nullopt;
  for (const auto& one : kAbsent) {
    if (name.starts_with(one.prefix)) return one.reason;
  }
  return std::nullopt;
}

std::span<const UnservedField> unserved_fields() { return kAbsent; }

std::optional<double> numeric_field(const Values& values, Field field) {
  const auto found = values.find(field);
  if (found == values.end()) return std::nullopt;
  if (const auto* whole = std::get_if<std::uint64_t>(&found->second)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&found->second)) return *real;
  return std::nullopt;
}

std::string instance_profile(const std::string& profile) {
  const auto at = profile.find("c.");
  const bool part = at != std::string::npos && profile.find_first_not_of("0123456789") == at;
  return part ? profile.substr(at + 2) : profile;
}

}  // namespace gpulet::metrics
