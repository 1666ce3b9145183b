// What each class of fault does to a device, and what brings the device back: a table of data. The same table
// is in docs/health.md. Policy (policy.h) may change effects and times; nothing changes what counts as a
// proof.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "health/evidence.h"

namespace gpulet::health {

// What a fault does, weakest first.
enum class Effect {
  kIgnore,
  kFlag,        // degraded: offered as before, and told
  kDrain,       // withdrawn; whoever is on it may finish
  kQuarantine,  // withdrawn
  kLose,        // withdrawn, and nothing can run on it
};
std::string_view name(Effect effect);  // "quarantine"
std::optional<Effect> parse_effect(std::string_view name);

// What must be proved before the checks begin to count.
enum class Want {
  kNothing,           // the checks alone
  kApplicationsGone,  // no process has a context on it any more
  kReset,             // a reset was seen, or the driver no longer asks for one
  kReboot,    // the node was rebooted, the GPU was away and is back, or the driver no longer asks for it
  kReading,   // the source that told of it says that it is over
  kOperator,  // `gpulet uncordon`
};

// What must hold, without a break, for the class's time before the device is offered again.
enum Check : unsigned {
  kCheckHandle = 1u << 0,  // the driver answers for this GPU
  kCheckAction = 1u << 1,  // no recovery action is pending
  kCheckEcc = 1u << 2,     // no new uncorrected error
  kCheckRemap = 1u << 3,   // no new remapped row, and none that failed
  kCheckNvLink = 1u << 4,  // links that were up are up, without new errors beyond the limit
  kCheckFabric = 1u << 5,  // registered, and healthy
  kCheckProbe = 1u << 6,   // a program ran on it, where one can
};
inline constexpr unsigned kCheckCount = 7;
inline constexpr unsigned kBasicChecks = kCheckHandle | kCheckAction | kCheckEcc | kCheckRemap | kCheckProbe;
Source source_of_check(unsigned index);  // of 1u << index

enum class FaultClass {
  kXidReset,
  kXidReboot,
  kXidVirtualMachine,
  kXidEcc,
  kXidNvLink,
  kXidSupport,
  kXidUnknown,
  kXidWatched,         // DP_ENABLE_HEALTHCHECKS names it
  kApplicationRepeat,  // applications' errors, of too many different ones
  kRecoveryAction,
  kRecoveryDrain,
  kResetRequired,
  kLost,
  kSilent,
  kDriverAway,
  kRowRemapPending,
  kRowRemapFailed,
  kRetiredPages,
  kEccGrowth,
  kSramThreshold,
  kCorrectableStorm,
  kNvLinkDown,
  kNvLinkErrors,
  kPcieReplays,
  kPcieWidth,
  kThermal,
  kPower,
  kFabric,
  kFabricDegraded,
  kInforom,
  kSwitch,
  kProbeFailed,
  kCordoned,
};
inline constexpr std::size_t kFaultClasses = static_cast<std::size_t>(FaultClass::kCordoned) + 1;

struct FaultRule {
  FaultClass fault_class;
  std::string_view name;  // "xid-reset"
  Effect effect;
  Want want;
  unsigned checks;              // Check bits
  Source source;                // whose reading ends it, for Want::kReading
  Duration hold;                // how long the checks must have passed; negative: the policy's
  bool relapses;                // whether its coming back makes the next quarantine longer
  bool whole_gpu;               // whatever instance it was reported for, the GPU has it
  std::string_view says;        // "the GPU must be reset"; empty where the XID's description says it
  std::string_view comes_back;  // "after a reset of the GPU"
};
const FaultRule& rule_of(FaultClass fault_class);
std::span<const FaultRule> fault_rules();
std::optional<FaultClass> parse_fault_class(std::string_view name);

// What an XID is taken for.
struct Verdict {
  std::optional<FaultClass> fault{};
  bool application = false;     // it counts among the applications' errors
  bool follows_driver = false;  // no fault where the driver tells its recovery action, or the log tells more
  bool linked = false;          // the recovery action speaks for it
};
// `driver_branch`: 570; 0 where it is not known.
Verdict judge_xid(std::uint64_t code, const std::optional<NvLink5Detail>& detail, unsigned driver_branch);

}  // namespace gpulet::health
