#include "health/rules.h"

#include <algorithm>

namespace gpulet::health {
namespace {

using enum Want;
using enum Effect;
using enum FaultClass;
using std::chrono::minutes;

constexpr Duration kPolicys{-1};
constexpr unsigned kLinkChecks = kBasicChecks | kCheckNvLink;
constexpr unsigned kFabricChecks = kLinkChecks | kCheckFabric;
constexpr Source kNone = Source::kOperator;  // for what no reading ends

// In the order of FaultClass: class, name, effect, want, checks, source, hold, relapses, whole GPU, words.
constexpr FaultRule kRules[] = {
    {kXidReset, "xid-reset", kQuarantine, kReset, kBasicChecks, kNone, kPolicys, true, false, "",
     "after a reset of the GPU"},
    {kXidReboot, "xid-reboot", kLose, kReboot, kBasicChecks, kNone, kPolicys, true, true, "",
     "after a reboot of the node, or once the GPU is back on the bus"},
    {kXidVirtualMachine, "xid-vm", kQuarantine, kReboot, kBasicChecks, kNone, kPolicys, true, true, "",
     "after a restart of the virtual machine"},
    {kXidEcc, "xid-ecc", kQuarantine, kReset, kBasicChecks, kNone, kPolicys, true, false, "",
     "after a reset of the GPU"},
    {kXidNvLink, "xid-nvlink", kQuarantine, kReset, kFabricChecks, kNone, kPolicys, true, true, "",
     "after a reset of the GPU and of its NVLink partners"},
    {kXidSupport, "xid-support", kFlag, kReset, kBasicChecks, kNone, kPolicys, false, false, "",
     "after a reset of the GPU; ask NVIDIA's support if it returns"},
    {kXidUnknown, "xid-unknown", kQuarantine, kNothing, kBasicChecks, kNone, kPolicys, true, false, "",
     "once its checks pass"},
    {kXidWatched, "xid-watched", kQuarantine, kNothing, kBasicChecks, kNone, kPolicys, true, false, "",
     "once its checks pass"},
    {kApplicationRepeat, "application-repeat", kQuarantine, kApplicationsGone, kBasicChecks, kNone, kPolicys,
     true, false, "errors of different applications, one after the other", "once no application is on it"},
    {kRecoveryAction, "recovery-action", kQuarantine, kReading, kBasicChecks, Source::kRecoveryAction,
     kPolicys, true, true, "the driver asks to", "once the driver no longer asks for it"},
    {kRecoveryDrain, "recovery-drain", kDrain, kReading, kBasicChecks, Source::kRecoveryAction, kPolicys,
     true, true, "the driver asks to", "once the driver no longer asks for it"},
    {kResetRequired, "reset-required", kQuarantine, kReading, kBasicChecks, Source::kHandle, kPolicys, true,
     true, "the driver refuses it until it is reset", "after a reset of the GPU"},
    {kLost, "lost", kLose, kReading, kBasicChecks, Source::kHandle, kPolicys, true, true, "cannot be read",
     "once the driver answers for it again"},
    {kSilent, "silent", kQuarantine, kReading, kBasicChecks, Source::kHandle, kPolicys, true, true,
     "cannot be read", "once the driver answers for it again"},
    {kDriverAway, "driver-away", kQuarantine, kReading, kCheckHandle, Source::kHandle, Duration::zero(),
     false, true, "cannot be read", "once the driver is there"},
    {kRowRemapPending, "row-remap-pending", kFlag, kReading, 0, Source::kRowRemap, kPolicys, false, true,
     "a row is remapped at the next reset", "after a reset of the GPU, when convenient"},
    {kRowRemapFailed, "row-remap-failed", kQuarantine, kReading, kBasicChecks, Source::kRowRemap, kPolicys,
     true, true, "a row could not be remapped",
     "when the driver no longer says so: the GPU is due for replacement"},
    {kRetiredPages, "retired-pages", kFlag, kReading, 0, Source::kRetiredPages, kPolicys, false, true,
     "memory pages are retired, or due to be",
     "after a reset of the GPU; above the limit it is due for replacement"},
    {kEccGrowth, "ecc-errors", kFlag, kReading, 0, Source::kEcc, minutes(10), false, true,
     "new uncorrected memory errors", "when no new ones come"},
    {kSramThreshold, "sram-threshold", kQuarantine, kReading, kBasicChecks, Source::kEcc, kPolicys, true,
     true, "too many SRAM errors", "when the driver no longer says so: the GPU is due for diagnosis"},
    {kCorrectableStorm, "correctable-storm", kFlag, kNothing, 0, kNone, minutes(10), false, true,
     "a storm of corrected memory errors", "when no more of them come"},
    {kNvLinkDown, "nvlink-down", kFlag, kReading, 0, Source::kNvLink, kPolicys, false, true,
     "a link is down:", "once the link is up"},
    {kNvLinkErrors, "nvlink-errors", kFlag, kReading, 0, Source::kNvLink, minutes(10), false, true,
     "many errors on a link:", "when fewer errors come"},
    {kPcieReplays, "pcie-replays", kFlag, kReading, 0, Source::kPcie, minutes(10), false, true,
     "many PCIe replays", "when fewer replays come"},
    {kPcieWidth, "pcie-width", kFlag, kReading, 0, Source::kPcie, kPolicys, false, true,
     "PCIe lanes are missing:", "once all lanes are up: reseat the card"},
    {kThermal, "thermal", kFlag, kReading, 0, Source::kViolations, minutes(10), false, true,
     "held back by its temperature", "when it is cooler"},
    {kPower, "power", kIgnore, kReading, 0, Source::kViolations, minutes(10), false, true,
     "held back by its power limit", "when it needs less power"},
    {kFabric, "fabric", kQuarantine, kReading, kBasicChecks | kCheckFabric, Source::kFabric, kPolicys, true,
     true, "not in its NVLink fabric:", "once it is registered with the fabric"},
    {kFabricDegraded, "fabric-degraded", kFlag, kReading, 0, Source::kFabric, kPolicys, false, true,
     "its NVLink fabric is degraded", "once the fabric is whole"},
    {kInforom, "inforom", kFlag, kReading, 0, Source::kInforom, kPolicys, false, true,
     "its InfoROM is corrupted", "when its InfoROM is valid: ask NVIDIA's support"},
    {kSwitch, "switch", kQuarantine, kReset, kFabricChecks, kNone, kPolicys, true, true,
     "a fatal NVSwitch error", "after a reset of the switch and of its GPUs"},
    {kProbeFailed, "probe-failed", kQuarantine, kReading, kBasicChecks, Source::kProbe, kPolicys, true, false,
     "a test program failed on it", "once the test program passes"},
    {kCordoned, "cordoned", kDrain, kOperator, 0, kNone, Duration::zero(), false, false, "cordoned",
     "gpulet uncordon"},
};
static_assert(std::size(kRules) == kFaultClasses);
static_assert(std::ranges::is_sorted(kRules, {}, &FaultRule::fault_class));

constexpr std::string_view kEffectNames[] = {"ignore", "flag", "drain", "quarantine", "lose"};

Verdict judge_nvlink5(const Xid& xid, const std::optional<NvLink5Detail>& detail, unsigned branch) {
  // An event says no more than the code: the log's line or the recovery action will.
  if (!detail) return {.fault = kXidNvLink, .follows_driver = true};
  switch (nvlink5_outcome(xid.code, *detail, branch)) {
    case NvLink5Outcome::kReset:
      return {.fault = kXidNvLink};
    case NvLink5Outcome::kFollowDriver:
      return {.application = true};
    case NvLink5Outcome::kIgnore:
      return {};
  }
  return {};
}

Verdict judge_class(const Xid& xid, const std::optional<NvLink5Detail>& detail, unsigned branch) {
  switch (xid.xid_class) {
    case XidClass::kApplication:
      return {.application = true};
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
      return judge_nvlink5(xid, detail, branch);
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

std::string_view name(Effect effect) { return kEffectNames[static_cast<std::size_t>(effect)]; }

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

const FaultRule& rule_of(FaultClass fault_class) { return kRules[static_cast<std::size_t>(fault_class)]; }
std::span<const FaultRule> fault_rules() { return kRules; }

std::optional<FaultClass> parse_fault_class(std::string_view name) {
  const auto found = std::ranges::find(kRules, name, &FaultRule::name);
  if (found == std::end(kRules)) return std::nullopt;
  return found->fault_class;
}

Verdict judge_xid(std::uint64_t code, const std::optional<NvLink5Detail>& detail, unsigned driver_branch) {
  const auto* xid = find_xid(code);
  if (xid == nullptr) return {.fault = kXidUnknown};
  auto verdict = judge_class(*xid, detail, driver_branch);
  verdict.linked = xid->linked(driver_branch);
  return verdict;
}

}  // namespace gpulet::health
