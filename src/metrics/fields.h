// The table of DCGM's fields, which docs/metrics.md shows, with their NVML sources, and a sample of a node's
// GPUs as values of these fields.
//
// A field that this GPU or driver does not have is absent from the page. Fields that need DCGM itself are not
// here but in unserved_reason().
// Source: dcgm_fields.h and dcgm-exporter's etc/*.csv for ids, names, types and help; nvml.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace gpulet::metrics {

enum class Type { kGauge, kCounter, kLabel };  // kLabel: on every metric of the device
std::string_view type_name(Type type);         // the counters file's name

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
  kNvLinkCrcErrors,
  kNvLinkRecoveryErrors,
  kNvLinkReplayErrors,
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
  kNvLinkTransmittedPackets,
  kNvLinkTransmittedBytes,
  kNvLinkReceivedPackets,
  kNvLinkReceivedBytes,
  kNvLinkMalformedPackets,
  kNvLinkBufferOverruns,
  kNvLinkReceiveErrors,
  kNvLinkRemoteErrors,
  kNvLinkGeneralErrors,
  kNvLinkIntegrityErrors,
  kNvLinkTransmitDiscards,
  kNvLinkRecoveriesDone,
  kNvLinkRecoveriesFailed,
  kNvLinkRecoveries,
  kNvLinkSymbolErrors,
  kNvLinkEffectiveErrors,
  kNvLinkEccErrors,
  kXidCount,
  kClockEventCount,
  kPeerToPeer,
  // Of one link: link_fields().
  kLinkCrcFlit,
  kLinkCrcData,
  kLinkReplay,
  kLinkRecovery,
  kLinkBandwidth,
  kLinkTxBytes,
  kLinkRxBytes,
  // gpulet's own metrics of links (gpulet_page.h).
  kLinks,
};

struct FieldInfo {
  Field field;
  unsigned id;  // DCGM's
  std::string_view name;
  Type type;
  bool by_default;   // served without a counters file
  bool of_instance;  // each GPU instance has its own value
  std::string_view help;
  std::string_view
      source;  // NVML's call; "field N" is of nvmlDeviceGetFieldValues, "GPM N" of nvmlGpmMetricsGet
};

// By Field, and so by id.
std::span<const FieldInfo> fields();
const FieldInfo& field_info(Field field);  // of fields()
// Finds a field by its name, its name in dcgm-exporter 1 ("dcgm_gpu_temp") or in DCGM 4.6
// ("DCGM_FI_DEV_GPU_TEMP_CELSIUS"). Null if there is none.
const FieldInfo* find_field(std::string_view name);
// The other names of a field, sorted.
std::vector<std::string_view> other_names(Field field);

// A field of which each NVLink has its own: the number of the link is between the two parts of its name.
struct LinkFieldInfo {
  Field field;
  std::string_view before, after;  // "DCGM_FI_PROF_NVLINK_L", "_TX_BYTES"
  std::string_view source;         // as FieldInfo::source
};
// DCGM's names, then its other names for the same fields.
std::span<const LinkFieldInfo> link_fields();
inline constexpr unsigned kDcgmLinks = 18;  // DCGM has names for these
struct LinkField {
  Field field;
  unsigned link = 0;
  friend bool operator==(const LinkField&, const LinkField&) = default;
};
// "DCGM_FI_DEV_NVLINK_BANDWIDTH_L3"; nullopt for other names.
std::optional<LinkField> find_link_field(std::string_view name);

// DCGM fields that are not served: all names with the prefix, except those of fields().
struct UnservedField {
  std::string_view prefix, reason;
};
std::span<const UnservedField> unserved_fields();

// The reason why a DCGM field is not served; nullopt for served and unknown names.
std::optional<std::string_view> unserved_reason(std::string_view name);

//
//
// A sample has no values that a GPU or driver does not support. A GPU that did not answer has only its error.

// Numbers are in the unit of the field's help; labels are texts.
using Value = std::variant<std::uint64_t, double, std::string>;
using Values = std::map<Field, Value>;

// The numeric value of a field; nullopt for a text and for a field that was not read.
std::optional<double> numeric_field(const Values& values, Field field);

// One NVLink of a GPU. What is not supported or not wanted is missing.
struct LinkSample {
  unsigned index = 0;
  std::string remote;  // a GPU's UUID, a switch's PCI address, "switch" if it has none; "": unknown
  std::optional<bool> up{};
  std::optional<Bytes> transmitted{}, received{};  // data since the driver was loaded
  std::map<std::string, std::uint64_t> errors{};   // by kind: "replay"
  Values values{};                                 // of link_fields()
};

struct ProcessSample {
  unsigned pid = 0;              // the host's pid
  std::optional<Bytes> memory;   // nullopt: not reported
  double sm = 0;                 // percent of the device's time since the last sample
  std::string name{};            // the program's name from the kernel, at most 15 bytes; "": unknown
  bool is_outside_pods = false;  // known to be of no Pod; false also where that is unknown
  friend bool operator==(const ProcessSample&, const ProcessSample&) = default;
};

// Event counts within Sample::windows.
struct EventCounts {
  std::map<std::uint64_t, std::uint64_t> xids;        // by XID
  std::map<std::string, std::uint64_t> clock_events;  // by DCGM's name: number of samples with the event
  friend bool operator==(const EventCounts&, const EventCounts&) = default;
};
struct LastXid {
  std::uint64_t code = 0;   // 0: none since the start
  std::string description;  // of the catalogue (health/xid/xid_catalogue.h); empty for none
  friend bool operator==(const LastXid&, const LastXid&) = default;
};

// A MIG device. All but its processes is measured for its GPU instance.
struct MigDeviceSample {
  DeviceUuid uuid;
  unsigned compute_instance = 0;
  std::vector<ProcessSample> processes;
};
// The profile of a MIG device's GPU instance: "2g.20gb" of "1c.2g.20gb".
std::string instance_profile(const std::string& profile);
struct InstanceSample {
  unsigned id = 0;
  std::string profile;  // "1g.10gb"
  Values values;        // of fields with a value per instance
  LastXid xid;
  EventCounts counts;
  std::vector<MigDeviceSample> devices;  // by compute instance
};
struct GpuSample {
  unsigned index = 0;
  DeviceUuid uuid;
  std::string pci_bus_id;  // "00000000:1B:00.0"
  std::string model;
  std::optional<Error> error;
  bool mig = false;  // its mode
  Values values;
  std::vector<LinkSample> links;  // by index; empty unless wanted
  LastXid xid;
  EventCounts counts;
  std::map<unsigned, std::string> peers;  // by index, DCGM's status: "OK", "NotSupported", …
  std::vector<ProcessSample> processes;   // by pid; empty in MIG mode, where the MIG devices have them
  bool has_process_times = true;          // whether the driver reports the busy time of processes
  std::vector<InstanceSample> instances;  // by id
};
// Window of each of EventCounts.
struct WindowSizes {
  std::chrono::milliseconds xids{300'000}, clock_events{300'000};
};
struct Sample {
  WindowSizes windows;
  std::vector<GpuSample> gpus;  // by index
};

}  // namespace gpulet::metrics
