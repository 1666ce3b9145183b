// What can be measured of a GPU, under DCGM's names, and where NVML has it: the one table of the metrics
// room. docs/metrics.md shows it; a test holds the two together.
//
// A field that this GPU or driver does not have is absent from the page. Fields that need DCGM itself are not
// here but in reason_absent().
// Source: dcgm_fields.h and dcgm-exporter's etc/*.csv for ids, names, types and help; nvml.h.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace gpulet::metrics {

enum class Type { kGauge, kCounter, kLabel };  // kLabel: on every metric of the device
std::string_view name(Type type);              // as a counters file has it

enum class Field {
  kDriverVersion,
  kNvmlVersion,
  kCudaVersion,
  kName,
  kBrand,
  kNvmlIndex,
  kSerial,
  kUuid,
  kMinorNumber,
  kInforomOem,
  kPciBusId,
  kMigMode,
  kInforomEcc,
  kInforomPower,
  kInforomImage,
  kVbios,
  kBar1Total,
  kBar1Used,
  kBar1Free,
  kSmClock,
  kMemoryClock,
  kVideoClock,
  kAppSmClock,
  kAppMemoryClock,
  kClockEvents,
  kMaxSmClock,
  kMaxMemoryClock,
  kMaxVideoClock,
  kMemoryTemp,
  kGpuTemp,
  kMaxMemoryTemp,
  kMaxGpuTemp,
  kPower,
  kEnergy,
  kPowerInstant,
  kSlowdownTemp,
  kShutdownTemp,
  kPowerLimit,
  kPowerLimitLeast,
  kPowerLimitMost,
  kPowerLimitDefault,
  kPowerLimitEnforced,
  kPerformanceState,
  kFan,
  kPcieTx,
  kPcieRx,
  kPcieReplays,
  kGpuUtil,
  kMemCopyUtil,
  kEncoderUtil,
  kDecoderUtil,
  kXid,
  kMaxPcieGeneration,
  kMaxPcieWidth,
  kPcieGeneration,
  kPcieWidth,
  kViolationPower,
  kViolationThermal,
  kViolationSyncBoost,
  kViolationBoardLimit,
  kViolationLowUtil,
  kViolationReliability,
  kViolationAppClocks,
  kViolationBaseClocks,
  kFbTotal,
  kFbFree,
  kFbUsed,
  kFbReserved,
  kFbUsedPercent,
  kEccMode,
  kEccPending,
  kEccSbeVolatile,
  kEccDbeVolatile,
  kEccSbeAggregate,
  kEccDbeAggregate,
  kRetiredSbe,
  kRetiredDbe,
  kRetiredPending,
  kRemappedUncorrectable,
  kRemappedCorrectable,
  kRemapFailure,
  kRemapPending,
  kNvLinkCrcFlit,
  kNvLinkCrcData,
  kNvLinkReplay,
  kNvLinkRecovery,
  kNvLinkBandwidth,
  kVgpuLicense,
  kGraphicsActive,
  kSmActive,
  kSmOccupancy,
  kTensorActive,
  kDramActive,
  kFp64Active,
  kFp32Active,
  kFp16Active,
  kPcieTxBytes,
  kPcieRxBytes,
  kNvLinkTxBytes,
  kNvLinkRxBytes,
  kTensorImmaActive,
  kTensorHmmaActive,
  kTensorDfmaActive,
  kIntegerActive,
  kXidCount,
  kClockEventCount,
  kPeerToPeer,
};

struct FieldInfo {
  Field field;
  unsigned id;  // DCGM's
  std::string_view name;
  Type type;
  bool by_default;   // served without a counters file
  bool of_instance;  // each GPU instance has its own
  std::string_view help;
  std::string_view
      source;  // NVML's call; "field N" is of nvmlDeviceGetFieldValues, "GPM N" of nvmlGpmMetricsGet
};

// By Field, and so by id.
std::span<const FieldInfo> fields();
const FieldInfo& info(Field field);
// By its name or one that it had: those of dcgm-exporter 1 ("dcgm_gpu_temp"), those of DCGM 4.6
// ("DCGM_FI_DEV_GPU_TEMP_CELSIUS"). Null when it is none.
const FieldInfo* find_field(std::string_view name);
// The other names of a field, sorted.
std::vector<std::string_view> other_names(Field field);

// What DCGM has and is not served: all names that begin so, but those of fields().
struct Absent {
  std::string_view begins, reason;
};
std::span<const Absent> absent();

// Why a name of DCGM's is not served; nullopt for one that is, and for what is not known.
std::optional<std::string_view> reason_absent(std::string_view name);

}  // namespace gpulet::metrics
