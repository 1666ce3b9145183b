// What the sources report about a device, as plain values: a driver event, a line of the kernel log, a polled
// reading, an operator's command. Evidence has a time and no judgement; evidence_rules.h judges.
//
// Every source is optional. Whoever cannot read a source reports that by a SourceNotice with the reason,
// which holds until the source reports again. So the checks that do not run are known for each GPU.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"
#include "health/xid/xid_catalogue.h"

namespace gpulet::health {

inline constexpr std::uint32_t kNoInstance = 0xFFFFFFFF;  // outside MIG, as in nvmlEventData_t

// What evidence or a fault is about: a GPU, a GPU instance of it, or a compute instance of that.
struct Scope {
  DeviceUuid gpu;
  std::uint32_t gpu_instance = kNoInstance;
  std::uint32_t compute_instance = kNoInstance;

  bool is_whole_gpu() const { return gpu_instance == kNoInstance; }
  // Whether a fault of this scope affects `other`.
  bool covers(const Scope& other) const {
    if (gpu != other.gpu) return false;
    if (gpu_instance == kNoInstance) return true;
    if (gpu_instance != other.gpu_instance) return false;
    return compute_instance == kNoInstance || compute_instance == other.compute_instance;
  }
  friend auto operator<=>(const Scope&, const Scope&) = default;
};

// A compute instance without its GPU instance is ambiguous: the whole GPU, then.
inline Scope normalize_scope(Scope scope) {
  if (scope.gpu_instance == kNoInstance) scope.compute_instance = kNoInstance;
  return scope;
}

enum class Source {
  kDriverEvents,    // NVML's event set
  kKernelLog,       // /dev/kmsg
  kHandle,          // whether the driver answers for this GPU
  kRecoveryAction,  // NVML field 230
  kRowRemap,
  kRetiredPages,
  kEcc,
  kNvLink,
  kPcie,
  kViolations,
  kFabric,
  kInforom,
  kProcesses,
  kEnergy,
  kProbe,  // a test program on the GPU
  kOperator,
};
inline constexpr std::size_t kSourceCount = static_cast<std::size_t>(Source::kOperator) + 1;
std::string_view enum_name(Source source);  // "row-remap"

// An XID from an event or a line of the kernel log. Both may report the same one.
struct XidReport {
  Source source = Source::kDriverEvents;  // or kKernelLog
  std::uint64_t code = 0;
  std::optional<std::uint32_t> pid{};  // not in events
  std::string owner{};                 // the Pod's UID, if known
  std::optional<NvLink5Detail> nvlink5{};
  std::optional<unsigned> recovery_action{};  // from the line of an XID 154
};
// Events of their own types in newer drivers (nvmlEventType…).
enum class Notice {
  kSingleBitEcc,
  kDoubleBitEcc,
  kSingleBitStorm,
  kRetirement,  // DRAM rows or pages
  kRetirementFailure,
  kContainedPoison,
  kFatalPoison,
  kUnavailable,  // this and the next two: poll at once (kHandle, kRecoveryAction, a new Snapshot)
  kRecoveryChanged,
  kMigChanged,
  kClockChanged,
  kPowerChanged,
};
struct DriverNotice {
  Notice notice = Notice::kClockChanged;
};
// "GPU has fallen off the bus" in the kernel log.
struct FallenOff {};
// An SXid of an NVSwitch that this GPU is connected to.
struct SwitchFault {
  std::uint64_t code = 0;
  bool fatal = false;
};

enum class Reachability {
  kReachable,
  kLost,           // NVML_ERROR_GPU_IS_LOST, or no longer in the node
  kResetRequired,  // NVML_ERROR_RESET_REQUIRED
  kSilent,         // no answer in time, or an invalid one
  kDriverAway,     // no driver to call: says nothing about the GPU
};
// How the error of kDriverAway begins while the agent keeps the driver closed on request.
inline constexpr std::string_view kDriverReleased = "the driver is released";
// What an error of a call that finds or identifies a GPU says about it.
Reachability reachability_of(const Error& error);
struct HandleReading {
  Reachability reachability = Reachability::kReachable;
  std::string error{};  // one line, empty when reachable
};
struct RecoveryActionReading {
  unsigned action = 0;  // nvmlDeviceGpuRecoveryAction_t; 0 for none
};
struct RowRemapReading {
  bool pending = false, failed = false;
  std::uint64_t correctable = 0, uncorrectable = 0;  // rows remapped for either
};
struct RetiredPagesReading {
  bool pending = false;
  std::uint64_t single_bit = 0, double_bit = 0;
};
// Volatile uncorrected errors, by location.
enum class EccLocation { kDram, kL1Cache, kL2Cache, kRegisters, kTexture, kSharedMemory, kCbu, kSram };
inline constexpr std::size_t kEccLocationCount = static_cast<std::size_t>(EccLocation::kSram) + 1;
std::string_view enum_name(EccLocation location);  // "l2-cache"
// nullopt where the driver reports no value.
struct EccReading {
  using Counts = std::array<std::optional<std::uint64_t>, kEccLocationCount>;
  static constexpr Counts zeros() { return {0, 0, 0, 0, 0, 0, 0, 0}; }
  Counts uncorrected = zeros();
  bool sram_threshold_exceeded = false;
};
struct NvLinkReading {
  struct Link {
    unsigned index = 0;
    bool up = false;
    std::optional<std::uint64_t> errors = 0;  // CRC, replay and recovery errors since the driver was loaded
  };
  std::vector<Link> links;  // by index; those of which the driver reports no state are missing
};
struct PcieReading {
  std::optional<std::uint64_t> replays = 0;  // since the driver was loaded
  unsigned width = 0;                        // current lanes
  unsigned full_width = 0;  // lanes that both GPU and slot support; 0: neither width is known
};
// Time throttled, since the driver was loaded.
struct ViolationReading {
  Duration thermal{}, power{};
};
enum class FabricState {
  kNone,  // not part of a fabric
  kHealthy,
  kDegraded,  // less bandwidth, or accesses that time out
  kJoining,   // registration in progress: on most machines CUDA does not start yet
  kFailed,    // registration failed, or routes are unhealthy
};
struct FabricReading {
  FabricState state = FabricState::kNone;
};
struct InforomReading {
  bool valid = true;
};
// Number of processes with a context in the scope.
struct ProcessReading {
  unsigned count = 0;
};
// Since the driver was loaded; a decrease proves a reset.
struct EnergyReading {
  std::uint64_t millijoules = 0;
};
struct ProbeReading {
  bool passed = false;
  std::string error;
  std::string slow{};  // why its copies count as slow, one line; empty: they do not
};

// Whoever reset the GPU reports it.
struct ResetDone {};
enum class OperatorAction { kCordon, kUncordon };
// `gpulet cordon` and `uncordon`. Uncordon also vouches that the repair for earlier faults was done; the
// checks remain.
struct OperatorCommand {
  OperatorAction action = OperatorAction::kCordon;
  std::string reason;  // one line, or empty
};
struct SourceNotice {
  Source source = Source::kDriverEvents;
  std::optional<std::string> unavailable;  // why it cannot be read; nullopt: it can
  bool transient = false;                  // a later reading may succeed: it is waited for
};

using EvidenceBody =
    std::variant<XidReport, DriverNotice, FallenOff, SwitchFault, HandleReading, RecoveryActionReading,
                 RowRemapReading, RetiredPagesReading, EccReading, NvLinkReading, PcieReading,
                 ViolationReading, FabricReading, InforomReading, ProcessReading, EnergyReading, ProbeReading,
                 ResetDone, OperatorCommand, SourceNotice>;

struct Evidence {
  Scope scope;
  Time at{};
  EvidenceBody body;
};
// The source of the evidence; of a SourceNotice the source it is about.
Source source_of(const EvidenceBody& body);

// "reset the GPU": what a recovery action recommends. Source: nvml.h, nvmlDeviceGpuRecoveryAction_t.
std::string_view recovery_action_text(unsigned action);

}  // namespace gpulet::health
