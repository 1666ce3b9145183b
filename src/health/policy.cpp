#include "health/policy.h"

#include <algorithm>
#include <string>

namespace gpulet::health {
namespace {

constexpr std::uint64_t kSecond = 1000, kMinute = 60 * kSecond, kHour = 60 * kMinute, kDay = 24 * kHour;

constexpr Setting kSettings[] = {
    {"alive-interval", &Policy::alive_interval, kSecond, kHour,
     "how often each GPU is asked whether it answers", "one driver call a GPU more often",
     "a GPU that is lost without an event is noticed later"},
    {"poll-interval", &Policy::poll_interval, kSecond, kDay, "how often what has no event is read",
     "about ten driver calls a GPU more often; each may wake an idle GPU",
     "what only polls show is noticed later"},
    {"suspect-interval", &Policy::suspect_interval, 100, kHour, "how often a withdrawn GPU is asked",
     "more driver calls on a GPU that may hang in them", "it returns up to so much later"},
    {"hold", &Policy::hold, 0, kDay, "how long the checks must pass before a GPU is offered again",
     "a GPU that fails again soon is offered in between", "a healed GPU lies idle longer"},
    {"max-hold", &Policy::max_hold, 0, 30 * kDay, "the longest that relapses make it",
     "a GPU that relapses is offered more often", "a GPU that was repaired lies idle longer"},
    {"growth", &Policy::growth, 1, 100, "how many times longer each relapse makes it",
     "a GPU that relapses is offered more often", "a second, unrelated fault costs more"},
    {"relapse-window", &Policy::relapse_window, 0, 30 * kDay,
     "how soon after its return a fault is a relapse", "rare relapses are not seen as such",
     "unrelated faults count as relapses"},
    {"driver-word-delay", &Policy::driver_word_delay, 0, 10 * kMinute,
     "how long after a fault the driver's recovery action counts",
     "an answer from before the driver has made up its mind counts", "a GPU returns so much later"},
    {"repeat-count", &Policy::repeat_count, 0, 10'000,
     "how many different applications' errors withdraw a GPU; 0: none ever do",
     "applications that are broken in the same way withdraw a GPU", "a broken GPU fails more applications"},
    {"repeat-window", &Policy::repeat_window, kSecond, 30 * kDay, "within which they count",
     "a GPU that fails rarely is not seen", "unrelated errors add up"},
    {"retired-pages", &Policy::retired_pages, 1, 10'000, "how many retired pages flag a GPU",
     "sound GPUs are flagged", "worn memory is told of later"},
    {"nvlink-errors-per-minute", &Policy::nvlink_errors_per_minute, 1, 1'000'000'000,
     "how many link errors flag a GPU", "corrected errors flag sound GPUs", "slow links are told of later"},
    {"pcie-replays-per-minute", &Policy::pcie_replays_per_minute, 1, 1'000'000'000,
     "how many PCIe replays flag a GPU", "corrected errors flag sound GPUs",
     "a bad slot or riser is told of later"},
    {"thermal-percent", &Policy::thermal_percent, 1, 100,
     "the share of time held back by temperature that flags a GPU", "busy GPUs are flagged",
     "bad cooling is told of later"},
    {"power-percent", &Policy::power_percent, 1, 100,
     "the same for its power limit (class power, ignored by default)", "busy GPUs are flagged",
     "bad supply is told of later"},
    {"forget", &Policy::forget, kMinute, 365 * kDay, "how long a GPU that has gone is remembered",
     "a GPU that is put back begins anew", "the state file keeps what is gone"},
};

}  // namespace

Effect Policy::effect(FaultClass fault_class) const {
  const auto found = effects.find(fault_class);
  return found == effects.end() ? rule_of(fault_class).effect : found->second;
}

Duration Policy::hold_of(FaultClass fault_class, unsigned relapses) const {
  const auto& rule = rule_of(fault_class);
  const auto chosen = holds.find(fault_class);
  Duration held = rule.hold < Duration::zero() ? hold : rule.hold;
  if (chosen != holds.end()) held = chosen->second;
  if (!rule.relapses) return held;
  for (unsigned i = 0; i < relapses && held < max_hold && growth > 1; ++i) held *= growth;
  // A class's own time may be longer than what relapses lead to.
  return relapses == 0 ? held
                       : std::min(held, std::max(max_hold, chosen == holds.end() ? hold : chosen->second));
}

std::span<const Setting> settings() { return kSettings; }

std::uint64_t value_of(const Policy& policy, const Setting& setting) {
  if (const auto* duration = std::get_if<Duration Policy::*>(&setting.field)) {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(policy.*(*duration)).count());
  }
  return policy.*(std::get<unsigned Policy::*>(setting.field));
}

Status set(Policy& policy, const Setting& setting, std::uint64_t value) {
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
