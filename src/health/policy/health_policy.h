// What each fault does and what ends it (fault_rules), and every configurable interval, count, window and
// effect (Policy, policy_settings) with its default, bounds and cost. docs/health.md has the same tables; a
// test compares them. A policy changes effects and times; nothing changes which recovery condition a fault
// has.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/loop.h"
#include "base/result.h"
#include "health/evidence/evidence.h"

namespace gpulet::health {

// What a fault does, weakest first.
enum class Effect {
  kIgnore,
  kFlag,        // degraded: allocatable and reported
  kDrain,       // withdrawn; running workloads may finish
  kQuarantine,  // withdrawn
  kLose,        // withdrawn, and nothing can run on it
};
std::string_view enum_name(Effect effect);  // "quarantine"
std::optional<Effect> parse_effect(std::string_view name);

// What must happen before the checks begin to count.
enum class RecoveryCondition {
  kNone,           // only the checks
  kProcessesGone,  // no process has a context on the device
  kReset,          // a reset was seen, or the driver no longer recommends one
  kReboot,  // the node was rebooted, the GPU is back on the bus, or the driver no longer recommends a reboot
  kReadingClear,  // the source that reported the fault reports it cleared
  kOperator,      // `gpulet uncordon`
};

// What must hold without a break for the hold time before the device is allocatable again.
enum Check : unsigned {
  kCheckHandle = 1u << 0,  // the driver answers for this GPU
  kCheckAction = 1u << 1,  // no recovery action is pending
  kCheckEcc = 1u << 2,     // no new uncorrected error
  kCheckRemap = 1u << 3,   // no new remapped row, and no failed remap
  kCheckNvLink = 1u << 4,  // links that were up are up, without new errors above the limit
  kCheckFabric = 1u << 5,  // registered and healthy
  kCheckProbe = 1u << 6,   // a test program passed, where one can run
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
  kXidWatched,         // named by DP_ENABLE_HEALTHCHECKS
  kApplicationRepeat,  // errors of too many different applications
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
  kSlowCopies,
  kCordoned,
};
inline constexpr std::size_t kFaultClassCount = static_cast<std::size_t>(FaultClass::kCordoned) + 1;

struct FaultRule {
  FaultClass fault_class;
  std::string_view name;  // "xid-reset"
  Effect effect;
  RecoveryCondition condition;
  unsigned checks;                 // Check bits
  Source source;                   // whose reading ends it, for RecoveryCondition::kReadingClear
  Duration hold;                   // hold time; negative: the policy's
  bool relapses;                   // whether a return of the fault lengthens the next hold time
  bool whole_gpu;                  // the fault covers the whole GPU, whatever instance reported it
  std::string_view summary;        // "the driver requires a reset"; empty where the XID's description is used
  std::string_view recovery_text;  // "after a reset of the GPU"
};
const FaultRule& fault_rule(FaultClass fault_class);
std::span<const FaultRule> fault_rules();
std::optional<FaultClass> parse_fault_class(std::string_view name);

// The classification of an XID.
struct XidVerdict {
  std::optional<FaultClass> fault{};
  bool counts_as_application_error = false;
  bool follows_driver =
      false;            // no fault where the driver reports its recovery action, or the log has details
  bool linked = false;  // the recovery action covers it
};
// `driver_branch`: 570; 0 if unknown.
XidVerdict classify_xid(std::uint64_t code, const std::optional<NvLink5Detail>& detail,
                        unsigned driver_branch);

// For which XIDs "no recovery action" proves that the reset or reboot of the catalogue is no longer needed.
enum class RecoveryActionTrust {
  kLinked,  // those that NVIDIA's catalogue links to the recovery action, from the driver branch that it
            // names
  kAlways,
  kNever,
};

struct Policy {
  // Polling. The state machine only takes evidence; HealthPoller uses these.
  Duration liveness_interval = std::chrono::seconds(10);
  Duration poll_interval = std::chrono::seconds(60);
  Duration unhealthy_poll_interval = std::chrono::seconds(1);

  // Recovery.
  Duration recovery_hold = std::chrono::seconds(30);
  Duration max_recovery_hold = std::chrono::hours(1);
  unsigned hold_growth_factor = 2;
  Duration relapse_window = std::chrono::hours(24);
  Duration recovery_action_delay = std::chrono::seconds(2);
  RecoveryActionTrust trust_recovery_action = RecoveryActionTrust::kLinked;

  // Application errors: this many different applications within the window. 0: never.
  unsigned application_error_threshold = 3;
  Duration application_error_window = std::chrono::minutes(10);

  // Limits of faults that only flag.
  unsigned retired_pages_threshold = 60;
  unsigned nvlink_errors_per_minute = 100;
  unsigned pcie_replays_per_minute = 60;
  unsigned thermal_throttle_percent = 50;
  unsigned power_throttle_percent = 90;

  Duration removed_gpu_retention = std::chrono::hours(24 * 7);

  std::map<FaultClass, Effect> class_effects;  // where they differ from fault_rules()
  std::map<FaultClass, Duration> class_holds;

  Effect effect(FaultClass fault_class) const;
  // How long the checks must pass for this fault after this many relapses.
  Duration hold_time(FaultClass fault_class, unsigned relapses) const;
};

// One setting of the config file's `gpulet.health:`.
struct PolicySetting {
  std::string_view key;  // "poll-interval"
  std::variant<Duration Policy::*, unsigned Policy::*> field;
  std::uint64_t least, most;  // milliseconds, or the count
  std::string_view help;
  std::string_view cost_of_less;  // what a smaller value costs
  std::string_view cost_of_more;  // what a greater value costs
};
std::span<const PolicySetting> policy_settings();
// In milliseconds, or the count.
std::uint64_t policy_value(const Policy& policy, const PolicySetting& setting);
// Errors: kInvalidArgument with the bounds when `value` is out of them.
Status set_policy_value(Policy& policy, const PolicySetting& setting, std::uint64_t value);

}  // namespace gpulet::health
