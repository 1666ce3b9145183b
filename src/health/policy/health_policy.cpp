#include "health/policy/health_policy.h"

#include <algorithm>
#include <string>

namespace gpulet::health {
namespace {

using enum RecoveryCondition;
using enum Effect;
using enum FaultClass;
using std::chrono::minutes;

constexpr Duration kPolicyHold{-1};
constexpr unsigned kLinkChecks = kBasicChecks | kCheckNvLink;
constexpr unsigned kFabricChecks = kLinkChecks | kCheckFabric;
constexpr Source kNoSource = Source::kOperator;  // for faults that no reading ends

// In the order of FaultClass; columns as in FaultRule.
constexpr FaultRule kRules[] = {
    {kXidReset, "xid-reset", kQuarantine, kReset, kBasicChecks, kNoSource, kPolicyHold, true, false, "",
     "after a reset of the GPU"},
    {kXidReboot, "xid-reboot", kLose, kReboot, kBasicChecks, kNoSource, kPolicyHold, true, true, "",
     "after a reboot of the node, or once the GPU is back on the bus"},
    {kXidVirtualMachine, "xid-vm", kQuarantine, kReboot, kBasicChecks, kNoSource, kPolicyHold, true, true, "",
     "after a restart of the virtual machine"},
    {kXidEcc, "xid-ecc", kQuarantine, kReset, kBasicChecks, kNoSource, kPolicyHold, true, false, "",
     "after a reset of the GPU"},
    {kXidNvLink, "xid-nvlink", kQuarantine, kReset, kFabricChecks, kNoSource, kPolicyHold, true, true, "",
     "after a reset of the GPU and of its NVLink partners"},
    {kXidSupport, "xid-support", kFlag, kReset, kBasicChecks, kNoSource, kPolicyHold, false, false, "",
     "after a reset of the GPU; contact NVIDIA support if it returns"},
    {kXidUnknown, "xid-unknown", kQuarantine, kNone, kBasicChecks, kNoSource, kPolicyHold, true, false, "",
     "once its checks pass"},
    {kXidWatched, "xid-watched", kQuarantine, kNone, kBasicChecks, kNoSource, kPolicyHold, true, false, "",
     "once its checks pass"},
    {kApplicationRepeat, "application-repeat", kQuarantine, kProcessesGone, kBasicChecks, kNoSource,
     kPolicyHold, true, false, "errors of several different applications", "once no process uses it"},
    {kRecoveryAction, "recovery-action", kQuarantine, kReadingClear, kBasicChecks, Source::kRecoveryAction,
     kPolicyHold, true, true, "the driver asks to", "once the driver no longer asks for it"},
    {kRecoveryDrain, "recovery-drain", kDrain, kReadingClear, kBasicChecks, Source::kRecoveryAction,
     kPolicyHold, true, true, "the driver asks to", "once the driver no longer asks for it"},
    {kResetRequired, "reset-required", kQuarantine, kReadingClear, kBasicChecks, Source::kHandle, kPolicyHold,
     true, true, "the driver requires a reset", "after a reset of the GPU"},
    {kLost, "lost", kLose, kReadingClear, kBasicChecks, Source::kHandle, kPolicyHold, true, true,
     "cannot be read", "once the driver answers for it again"},
    {kSilent, "silent", kQuarantine, kReadingClear, kBasicChecks, Source::kHandle, kPolicyHold, true, true,
     "cannot be read", "once the driver answers for it again"},
    {kDriverAway, "driver-away", kQuarantine, kReadingClear, kCheckHandle, Source::kHandle, Duration::zero(),
     false, true, "cannot be read", "once the driver is available"},
    {kRowRemapPending, "row-remap-pending", kFlag, kReadingClear, 0, Source::kRowRemap, kPolicyHold, false,
     true, "a row remap is pending until the next reset", "after a reset of the GPU, when convenient"},
    {kRowRemapFailed, "row-remap-failed", kQuarantine, kReadingClear, kBasicChecks, Source::kRowRemap,
     kPolicyHold, true, true, "a row could not be remapped",
     "once the driver no longer reports it; replace the GPU"},
    {kRetiredPages, "retired-pages", kFlag, kReadingClear, 0, Source::kRetiredPages, kPolicyHold, false, true,
     "memory pages are retired or pending retirement",
     "after a reset of the GPU; above the threshold, replace the GPU"},
    {kEccGrowth, "ecc-errors", kFlag, kReadingClear, 0, Source::kEcc, minutes(10), false, true,
     "new uncorrected memory errors", "once no new errors occur"},
    {kSramThreshold, "sram-threshold", kQuarantine, kReadingClear, kBasicChecks, Source::kEcc, kPolicyHold,
     true, true, "too many SRAM errors", "once the driver no longer reports it; have the GPU diagnosed"},
    {kCorrectableStorm, "correctable-storm", kFlag, kNone, 0, kNoSource, minutes(10), false, true,
     "a storm of corrected memory errors", "once no more storms occur"},
    {kNvLinkDown, "nvlink-down", kFlag, kReadingClear, 0, Source::kNvLink, kPolicyHold, false, true,
     "a link is down:", "once the link is up"},
    {kNvLinkErrors, "nvlink-errors", kFlag, kReadingClear, 0, Source::kNvLink, minutes(10), false, true,
     "many errors on a link:", "once the error rate drops"},
    {kPcieReplays, "pcie-replays", kFlag, kReadingClear, 0, Source::kPcie, minutes(10), false, true,
     "many PCIe replays", "once the replay rate drops"},
    {kPcieWidth, "pcie-width", kFlag, kReadingClear, 0, Source::kPcie, kPolicyHold, false, true,
     "PCIe lanes are missing:", "once all lanes are up: reseat the card"},
    {kThermal, "thermal", kFlag, kReadingClear, 0, Source::kViolations, minutes(10), false, true,
     "throttled by temperature", "once it is cooler"},
    {kPower, "power", kIgnore, kReadingClear, 0, Source::kViolations, minutes(10), false, true,
     "throttled by its power limit", "once it needs less power"},
    {kFabric, "fabric", kQuarantine, kReadingClear, kBasicChecks | kCheckFabric, Source::kFabric, kPolicyHold,
     true, true, "not registered with its NVLink fabric:", "once it is registered with the fabric"},
    {kFabricDegraded, "fabric-degraded", kFlag, kReadingClear, 0, Source::kFabric, kPolicyHold, false, true,
     "its NVLink fabric is degraded:", "once the fabric is healthy"},
    {kInforom, "inforom", kFlag, kReadingClear, 0, Source::kInforom, kPolicyHold, false, true,
     "its InfoROM is corrupted", "once its InfoROM is valid; contact NVIDIA support"},
    {kSwitch, "switch", kQuarantine, kReset, kFabricChecks, kNoSource, kPolicyHold, true, true,
     "a fatal NVSwitch error", "after a reset of the switch and of its GPUs"},
    {kProbeFailed, "probe-failed", kQuarantine, kReadingClear, kBasicChecks, Source::kProbe, kPolicyHold,
     true, false, "a test program failed on it", "once the test program passes"},
    {kSlowCopies, "slow-copies", kQuarantine, kReadingClear, kBasicChecks, Source::kProbe, kPolicyHold, true,
     false, "its copies are slow:", "once a preflight finds them fast again"},
    {kCordoned, "cordoned", kDrain, kOperator, 0, kNoSource, Duration::zero(), false, false, "cordoned",
     "gpulet uncordon"},
};
static_assert(std::size(kRules) == kFaultClassCount);
static_assert(std::ranges::is_sorted(kRules, {}, &FaultRule::fault_class));

constexpr std::string_view kEffectNames[] = {"ignore", "flag", "drain", "quarantine", "lose"};

XidVerdict classify_nvlink5(const Xid& xid, const std::optional<NvLink5Detail>& detail, unsigned branch) {
  // An event has only the code: the log line or the recovery action decides.
  if (!detail) return {.fault = kXidNvLink, .follows_driver = true};
  switch (nvlink5_outcome(xid.code, *detail, branch)) {
    case NvLink5Outcome::kReset:
      return {.fault = kXidNvLink};
    case NvLink5Outcome::kFollowDriver:
      return {.counts_as_application_error = true};
    case NvLink5Outcome::kIgnore:
      return {};
  }
  return {};
}

XidVerdict classify_xid_class(const Xid& xid, const std::optional<NvLink5Detail>& detail, unsigned branch) {
  switch (xid.xid_class) {
    case XidClass::kApplication:
      return {.counts_as_application_error = true};
    case XidClass::kIgnore:
    case XidClass::kInformation:
      return {};
    case XidClass::kGpuReset:
      return {.fault = kXidReset};
    case XidClass::kReboot:
      return {.fault = kXidReboot};
    case XidClass::kVirtualMachine:
      return {.fault = kXidVirtualMachine};
    case XidClass::kNvLink:
      return {.fault = kXidNvLink};
    case XidClass::kNvLink5:
      return classify_nvlink5(xid, detail, branch);
    case XidClass::kEcc:
      return {.fault = kXidEcc};
    case XidClass::kSoftware:
    case XidClass::kSupport:
    case XidClass::kUnclassified:
      return {.fault = kXidSupport};
    case XidClass::kCheckUvm:
      return {.fault = kXidReset, .follows_driver = true};
  }
  return {};
}

}  // namespace

std::string_view enum_name(Effect effect) { return kEffectNames[static_cast<std::size_t>(effect)]; }

std::optional<Effect> parse_effect(std::string_view name) {
  const auto found = std::ranges::find(kEffectNames, name);
  if (found == std::end(kEffectNames)) return std::nullopt;
  return static_cast<Effect>(found - std::begin(kEffectNames));
}

Source source_of_check(unsigned index) {
  static constexpr Source kSources[kCheckCount] = {
      Source::kHandle, Source::kRecoveryAction, Source::kEcc,  Source::kRowRemap,
      Source::kNvLink, Source::kFabric,         Source::kProbe};
  return kSources[index];
}

const FaultRule& fault_rule(FaultClass fault_class) { return kRules[static_cast<std::size_t>(fault_class)]; }
std::span<const FaultRule> fault_rules() { return kRules; }

std::optional<FaultClass> parse_fault_class(std::string_view name) {
  const auto found = std::ranges::find(kRules, name, &FaultRule::name);
  if (found == std::end(kRules)) return std::nullopt;
  return found->fault_class;
}

XidVerdict classify_xid(std::uint64_t code, const std::optional<NvLink5Detail>& detail,
                        unsigned driver_branch) {
  const auto* xid = find_xid(code);
  if (xid == nullptr) return {.fault = kXidUnknown};
  auto verdict = classify_xid_class(*xid, detail, driver_branch);
  verdict.linked = xid->is_linked(driver_branch);
  return verdict;
}

namespace {

constexpr std::uint64_t kSecond = 1000, kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;

constexpr PolicySetting kPolicySettings[] = {
    {"liveness-interval", &Policy::liveness_interval, kSecond, kHour,
     "interval at which each GPU is checked for an answer", "one driver call per GPU more often",
     "a GPU lost without an event is noticed later"},
    {"poll-interval", &Policy::poll_interval, kSecond, kDay, "interval of all polls of a healthy GPU",
     "about ten driver calls per GPU more often; each may wake an idle GPU",
     "what only polls show is noticed later"},
    {"unhealthy-poll-interval", &Policy::unhealthy_poll_interval, 100, kHour,
     "interval of all polls of a withdrawn GPU", "more calls on a GPU that may hang in them",
     "the GPU returns up to this much later"},
    {"recovery-hold", &Policy::recovery_hold, 0, kDay, "time that the checks must pass before a GPU returns",
     "a GPU that soon fails again is used in between", "a recovered GPU idles longer"},
    {"max-recovery-hold", &Policy::max_recovery_hold, 0, 30 * kDay,
     "upper limit of the hold time after relapses", "a relapsing GPU is used more often",
     "a repaired GPU idles longer"},
    {"hold-growth-factor", &Policy::hold_growth_factor, 1, 100,
     "factor by which each relapse multiplies the hold time", "a relapsing GPU is used more often",
     "a second, unrelated fault costs more"},
    {"relapse-window", &Policy::relapse_window, 0, 30 * kDay, "a fault this soon after a return is a relapse",
     "rare relapses are missed", "unrelated faults count as relapses"},
    {"recovery-action-delay", &Policy::recovery_action_delay, 0, 10 * kMinute,
     "delay after a fault before the driver's recovery action counts",
     "an answer from before the driver's decision counts", "a GPU returns this much later"},
    {"application-error-threshold", &Policy::application_error_threshold, 0, 10'000,
     "number of different failing applications that withdraws a GPU; 0: never",
     "applications with the same bug withdraw a GPU", "a broken GPU fails more applications"},
    {"application-error-window", &Policy::application_error_window, kSecond, 30 * kDay,
     "time window of the application error threshold", "a GPU that fails rarely is missed",
     "unrelated errors add up"},
    {"retired-pages-threshold", &Policy::retired_pages_threshold, 1, 10'000,
     "number of retired pages that flags a GPU", "sound GPUs are flagged", "worn memory is reported later"},
    {"nvlink-errors-per-minute", &Policy::nvlink_errors_per_minute, 1, 1'000'000'000,
     "NVLink errors per minute that flag a GPU", "corrected errors flag sound GPUs",
     "slow links are reported later"},
    {"pcie-replays-per-minute", &Policy::pcie_replays_per_minute, 1, 1'000'000'000,
     "PCIe replays per minute that flag a GPU", "corrected errors flag sound GPUs",
     "a bad slot or riser is reported later"},
    {"thermal-throttle-percent", &Policy::thermal_throttle_percent, 1, 100,
     "share of time throttled by temperature that flags a GPU", "busy GPUs are flagged",
     "bad cooling is reported later"},
    {"power-throttle-percent", &Policy::power_throttle_percent, 1, 100,
     "share of time throttled by the power limit that flags a GPU (class power, ignored by default)",
     "busy GPUs are flagged", "bad power supply is reported later"},
    {"removed-gpu-retention", &Policy::removed_gpu_retention, kMinute, 365 * kDay,
     "time that a removed GPU is remembered", "a GPU that is put back starts clean",
     "the state file keeps removed GPUs"},
};

}  // namespace

Effect Policy::effect(FaultClass fault_class) const {
  const auto found = class_effects.find(fault_class);
  return found == class_effects.end() ? fault_rule(fault_class).effect : found->second;
}

Duration Policy::hold_time(FaultClass fault_class, unsigned relapses) const {
  const auto& rule = fault_rule(fault_class);
  const auto chosen = class_holds.find(fault_class);
  Duration held = rule.hold < Duration::zero() ? recovery_hold : rule.hold;
  if (chosen != class_holds.end()) held = chosen->second;
  if (!rule.relapses) return held;
  for (unsigned i = 0; i < relapses && held < max_recovery_hold && hold_growth_factor > 1; ++i)
    held *= hold_growth_factor;
  // A class's own hold time may exceed the maximum.
  return relapses == 0
             ? held
             : std::min(held, std::max(max_recovery_hold,
                                       chosen == class_holds.end() ? recovery_hold : chosen->second));
}

std::span<const PolicySetting> policy_settings() { return kPolicySettings; }

std::uint64_t policy_value(const Policy& policy, const PolicySetting& setting) {
  if (const auto* duration = std::get_if<Duration Policy::*>(&setting.field)) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(policy.*(*duration)).count());
  }
  return policy.*(std::get<unsigned Policy::*>(setting.field));
}

Status set_policy_value(Policy& policy, const PolicySetting& setting, std::uint64_t value) {
  const auto* duration = std::get_if<Duration Policy::*>(&setting.field);
  if (value < setting.least || value > setting.most) {
    const std::string unit = duration ? " ms" : "";
    return fail(Code::kInvalidArgument,
                std::to_string(value) + unit + " is not between " + std::to_string(setting.least) + " and " +
                    std::to_string(setting.most) + unit,
                std::string(setting.key));
  }
  if (duration) {
    policy.*(*duration) = std::chrono::milliseconds(value);
  } else {
    policy.*(std::get<unsigned Policy::*>(setting.field)) = static_cast<unsigned>(value);
  }
  return {};
}

}  // namespace gpulet::health
