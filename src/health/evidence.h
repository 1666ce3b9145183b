// What is seen of a device, by every source, as plain values: a driver event, a line of the kernel's log, an
// answer to a poll, an operator's word. Each has its time; none has a judgement (machine.h makes those).
//
// Every source is optional. Whoever cannot ask one says so once, by a SourceNotice with why; it is in force
// until the source has something to say. So what is not checked is known, by device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/loop.h"
#include "health/scope.h"
#include "health/xid_catalogue.h"

namespace gpulet::health {

enum class Source {
  kDriverEvents,    // NVML's event set
  kKernelLog,       // /dev/kmsg
  kHandle,          // whether the driver answers at all for this GPU
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
  kProbe,  // a program that runs on the GPU
  kOperator,
};
inline constexpr std::size_t kSourceCount = static_cast<std::size_t>(Source::kOperator) + 1;
std::string_view name(Source source);  // "row-remap"

// XID, from an event or a line of the log. Both may tell of the same one.
struct XidReport {
  Source source = Source::kDriverEvents;  // or kKernelLog
  std::uint64_t code = 0;
  std::optional<std::uint32_t> pid{};  // events do not say
  std::string owner{};  // whose application: the Pod's UID, where whoever reports it knows; or empty
  std::optional<NvLink5Detail> nvlink5{};
  std::optional<unsigned> recovery_action{};  // what the line of an XID 154 says
};
// Events of their own types that newer drivers send (nvmlEventType…).
enum class Notice {
  kSingleBitEcc,
  kDoubleBitEcc,
  kSingleBitStorm,
  kRetirement,  // DRAM rows or pages
  kRetirementFailure,
  kContainedPoison,
  kFatalPoison,
  kUnavailable,  // and the next two: ask it now (kHandle, kRecoveryAction, a new Snapshot)
  kRecoveryChanged,
  kMigChanged,
  kClockChanged,
  kPowerChanged,
};
struct DriverNotice {
  Notice notice = Notice::kClockChanged;
};
// "GPU has fallen off the bus", in the log.
struct FallenOff {};
// An NVSwitch's SXid on a link that leads to this GPU.
struct SwitchFault {
  std::uint64_t code = 0;
  bool fatal = false;
};

enum class Answer {
  kAnswers,
  kLost,           // NVML_ERROR_GPU_IS_LOST; or it is no more in the node
  kResetRequired,  // NVML_ERROR_RESET_REQUIRED
  kSilent,         // no answer in time, or nonsense
  kDriverAway,     // no driver to ask: nothing is said of the GPU
};
struct HandleReading {
  Answer answer = Answer::kAnswers;
  std::string error{};  // one line, empty when it answers
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
inline constexpr std::size_t kEccLocations = static_cast<std::size_t>(EccLocation::kSram) + 1;
std::string_view name(EccLocation location);  // "l2-cache"
struct EccReading {
  std::array<std::uint64_t, kEccLocations> uncorrected{};
  bool sram_threshold_exceeded = false;
};
struct NvLinkReading {
  struct Link {
    unsigned index = 0;
    bool up = false;
    std::uint64_t errors = 0;  // CRC, replay and recovery together, since the driver was loaded
  };
  std::vector<Link> links;  // those of the GPU, by index
};
struct PcieReading {
  std::uint64_t replays = 0;  // since the driver was loaded
  unsigned width = 0;         // lanes now
  unsigned full_width = 0;    // lanes that GPU and slot both have
};
// Time that clocks were held down, since the driver was loaded.
struct ViolationReading {
  Duration thermal{}, power{};
};
enum class FabricState {
  kNone,  // this GPU belongs to none
  kHealthy,
  kDegraded,  // its bandwidth is less, or an access times out
  kJoining,   // not registered yet: CUDA does not start
  kFailed,    // registration failed, or routes are wrong
};
struct FabricReading {
  FabricState state = FabricState::kNone;
};
struct InforomReading {
  bool valid = true;
};
// How many processes have a context on the scope.
struct ProcessReading {
  unsigned count = 0;
};
// Since the driver was loaded: less than before proves a reset.
struct EnergyReading {
  std::uint64_t millijoules = 0;
};
struct ProbeReading {
  bool passed = false;
  std::string error;
};

// Somebody has reset it, and says so.
struct ResetDone {};
enum class Wish { kCordon, kUncordon };
// `gpulet cordon` and `uncordon`. The second also vouches that what the faults ask for was done; the checks
// remain.
struct OperatorWish {
  Wish wish = Wish::kCordon;
  std::string words;  // why, one line, or empty
};
struct SourceNotice {
  Source source = Source::kDriverEvents;
  std::optional<std::string> absent;  // why it cannot be asked; nullopt: it can
};

using Body = std::variant<XidReport, DriverNotice, FallenOff, SwitchFault, HandleReading,
                          RecoveryActionReading, RowRemapReading, RetiredPagesReading, EccReading,
                          NvLinkReading, PcieReading, ViolationReading, FabricReading, InforomReading,
                          ProcessReading, EnergyReading, ProbeReading, ResetDone, OperatorWish, SourceNotice>;

struct Evidence {
  Scope scope;
  Time at{};
  Body body;
};
// Where it comes from. A SourceNotice's is the source that it is about.
Source source_of(const Body& body);

// "reset the GPU": what a recovery action asks for. Source: nvml.h, nvmlDeviceGpuRecoveryAction_t.
std::string_view describe_recovery_action(unsigned action);

}  // namespace gpulet::health
