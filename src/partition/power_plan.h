// Which power limit and clocks each GPU is to have: by the rules of gpulet.power, their schedule, and what
// Pods ask for. Pure, but for the time zone of the process.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"
#include "config/power_settings.h"
#include "inventory/snapshot.h"

namespace gpulet::partition {

// Annotations of a Pod, read where gpulet.power.podAnnotation is enabled: "300W" or "60%", and "1200" or
// "210-1410".
inline constexpr const char* kPowerLimitAnnotation = "gpulet.io/power-limit";
inline constexpr const char* kGraphicsClockAnnotation = "gpulet.io/graphics-clock";

// Parallel to snapshot.gpus: the index of the first rule that selects the GPU, by the conditions of
// partition/rules.h.
std::vector<std::optional<std::size_t>> select_power_rules(const inventory::Snapshot& snapshot,
                                                           std::span<const config::PowerRule> rules,
                                                           const std::map<std::string, std::string>& labels);

// The first period of the rule that `now` is in; null: none.
const config::PowerPeriod* find_active_period(const config::PowerRule& rule, WallTime now);

// When to look again: no period of a rule begins or ends between `now` and then. nullopt: there is none.
// Follows a change of the local time's offset: it returns that moment if it comes first.
std::optional<WallTime> next_schedule_change(std::span<const config::PowerRule> rules, WallTime now);

struct PodPowerRequest {
  std::optional<config::PowerLimit> limit{};
  std::optional<config::ClockRange> graphics{};
  friend bool operator==(const PodPowerRequest&, const PodPowerRequest&) = default;
};
// Errors: kInvalidArgument, which names the annotation.
Result<PodPowerRequest> parse_pod_power(const std::map<std::string, std::string>& annotations);
// Of the Pods that share a GPU: what all of them ask for alike.
PodPowerRequest agreed_request(std::span<const PodPowerRequest> requests);

enum class PowerSource { kRule, kSchedule, kPod };
std::string_view power_source_name(PowerSource source);  // "rule", "schedule", "pod"

// Of one GPU.
struct PowerTarget {
  config::PowerValues values{};  // of the rule, or of its period
  bool is_limit_scheduled = false;
  PodPowerRequest pod{};
  std::optional<config::PowerLimit> pod_min{};     // PowerSettings::pod_min
  std::optional<config::PowerLimit> rule_limit{};  // the rule's own, where a period replaces it
  bool do_pods_differ = false;                     // what they ask for is not the same: none of it counts
  friend bool operator==(const PowerTarget&, const PowerTarget&) = default;
};
PowerTarget make_power_target(const config::PowerSettings& settings, const config::PowerRule& rule,
                              WallTime now, std::span<const PodPowerRequest> pods);

// What the driver takes. nullopt: not reported.
struct LimitBounds {
  MilliWatts preset{};  // the GPU's default
  MilliWatts lowest{}, highest{};
  friend bool operator==(const LimitBounds&, const LimitBounds&) = default;
};
struct PowerBounds {
  std::optional<LimitBounds> limit{};
  std::optional<config::ClockRange> graphics{}, memory{};
  friend bool operator==(const PowerBounds&, const PowerBounds&) = default;
};

struct ResolvedPower {
  std::optional<MilliWatts> limit{};  // nullopt: none is set
  PowerSource source = PowerSource::kRule;
  std::optional<config::ClockRange> graphics{}, memory{};
  std::vector<std::string> problems{};      // of the rule's values that are not applied, one line each
  std::vector<std::string> pod_problems{};  // the same of the Pods' values
  bool is_limit_kept = false;  // what is in force is not raised: the driver takes no limit of the rule
  friend bool operator==(const ResolvedPower&, const ResolvedPower&) = default;
};
// A Pod's limit counts if it is below that of the rule (without one, the default) and at least `pod_min`; its
// clocks, within those that the rule has. That a period's limit is lower is no problem. A value that the
// driver does not take is a problem, and is not applied: the rule's own limit replaces that of its period,
// and what is in force that of the rule.
ResolvedPower resolve_power(const PowerTarget& target, const PowerBounds& bounds);

std::string watts_text(MilliWatts power);  // "350W", "349.5W"

}  // namespace gpulet::partition
