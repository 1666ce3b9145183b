#include "partition/power_plan.h"

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "base/yaml_writer.h"
#include "partition/rules.h"

namespace gpulet::partition {
namespace {

using config::ClockRange;
using config::PowerLimit;
using config::PowerPeriod;

constexpr unsigned kDayMinutes = 24 * 60;
constexpr unsigned kWeekMinutes = 7 * kDayMinutes;
constexpr std::int64_t kWeekSeconds = std::int64_t{kWeekMinutes} * 60;

std::tm local_time(std::time_t time) {
  std::tm local{};
  ::localtime_r(&time, &local);
  return local;
}

unsigned minute_of_week(const std::tm& local) {
  return static_cast<unsigned>(local.tm_wday) * kDayMinutes + static_cast<unsigned>(local.tm_hour) * 60 +
         static_cast<unsigned>(local.tm_min);
}

unsigned length_of(const PowerPeriod& period) {
  return period.until > period.from ? period.until - period.from : period.until + kDayMinutes - period.from;
}

// Calls `use` with the minute of the week at which the period begins on each of its days.
template <class Use>
void for_each_begin(const PowerPeriod& period, Use use) {
  for (unsigned day = 0; day < 7; ++day) {
    if ((period.days >> day & 1U) != 0) use(day * kDayMinutes + period.from);
  }
}

bool is_active(const PowerPeriod& period, unsigned minute) {
  bool active = false;
  for_each_begin(period, [&](unsigned begin) {
    active = active || (minute + kWeekMinutes - begin) % kWeekMinutes < length_of(period);
  });
  return active;
}

// The first second in (`after`, `until`] whose offset from UTC is not that of `after`, of which there is one.
std::time_t find_offset_change(std::time_t after, std::time_t until) {
  const auto offset = local_time(after).tm_gmtoff;
  while (until - after > 1) {
    const auto middle = after + (until - after) / 2;
    (local_time(middle).tm_gmtoff == offset ? after : until) = middle;
  }
  return until;
}

MilliWatts milliwatts_of(const PowerLimit& limit, const LimitBounds& bounds) {
  if (limit.percent == 0) return MilliWatts{limit.watts * 1000};
  return MilliWatts{static_cast<std::uint32_t>(std::uint64_t{bounds.preset.value} * limit.percent / 100)};
}

bool is_within(const ClockRange& range, const ClockRange& outer) {
  return outer.lowest <= range.lowest && range.highest <= outer.highest;
}

// nullopt: there is none, or it is a problem, as the driver does not take it.
std::optional<MilliWatts> bounded_limit(const std::optional<PowerLimit>& wanted, const LimitBounds& bounds,
                                        ResolvedPower& resolved) {
  if (!wanted) return std::nullopt;
  const auto limit = milliwatts_of(*wanted, bounds);
  if (limit >= bounds.lowest && limit <= bounds.highest) return limit;
  resolved.problems.push_back("the power limit " + config::power_limit_text(*wanted) +
                              (wanted->percent != 0 ? ", which is " + watts_text(limit) + "," : "") +
                              " is not set: the driver takes " + watts_text(bounds.lowest) + " to " +
                              watts_text(bounds.highest));
  return std::nullopt;
}

void resolve_limit(const PowerTarget& target, const std::optional<LimitBounds>& bounds,
                   ResolvedPower& resolved) {
  const auto& wanted = target.values.limit;
  if (!wanted && !target.pod.limit) return;
  if (!bounds) {
    (wanted ? resolved.problems : resolved.pod_problems)
        .emplace_back("the driver sets no power limit on this GPU");
    return;
  }
  resolved.limit = bounded_limit(wanted, *bounds, resolved);
  if (resolved.limit) {
    resolved.source = target.is_limit_scheduled ? PowerSource::kSchedule : PowerSource::kRule;
  } else {
    resolved.limit = bounded_limit(target.rule_limit, *bounds, resolved);
  }
  resolved.is_limit_kept = wanted && !resolved.limit;
  if (!target.pod.limit) return;
  const auto limit = milliwatts_of(*target.pod.limit, *bounds);
  const auto least =
      target.pod_min ? std::max(milliwatts_of(*target.pod_min, *bounds), bounds->lowest) : bounds->lowest;
  if (limit < least) {
    resolved.pod_problems.push_back("the Pod's power limit " + config::power_limit_text(*target.pod.limit) +
                                    " does not count: the least is " + watts_text(least));
    return;
  }
  const auto& of_rule = target.is_limit_scheduled ? target.rule_limit : wanted;
  const auto most = of_rule ? milliwatts_of(*of_rule, *bounds) : bounds->preset;
  if (limit < resolved.limit.value_or(bounds->preset)) {
    resolved.limit = limit;
    resolved.source = PowerSource::kPod;
  } else if (limit > most) {
    resolved.pod_problems.push_back("the Pod's power limit " + config::power_limit_text(*target.pod.limit) +
                                    " does not count: that of the GPU is " + watts_text(most));
  }
}

std::optional<ClockRange> resolve_clocks(const std::optional<ClockRange>& wanted,
                                         const std::optional<ClockRange>& bounds, const char* kind,
                                         ResolvedPower& resolved) {
  if (!wanted || !bounds || is_within(*wanted, *bounds)) return wanted;
  resolved.problems.push_back("the " + std::string(kind) + " clocks " + config::clock_range_text(*wanted) +
                              " MHz are not set: the driver takes " + config::clock_range_text(*bounds) +
                              " MHz");
  return std::nullopt;
}

}  // namespace

std::string watts_text(MilliWatts power) {
  auto text = std::to_string(power.value / 1000);
  if (const auto rest = power.value % 1000; rest != 0) text += "." + std::to_string(1000 + rest).substr(1);
  while (text.find('.') != std::string::npos && text.ends_with('0')) text.pop_back();
  return text + "W";
}

std::vector<std::optional<std::size_t>> select_power_rules(const inventory::Snapshot& snapshot,
                                                           std::span<const config::PowerRule> rules,
                                                           const std::map<std::string, std::string>& labels) {
  std::vector<std::optional<std::size_t>> selected(snapshot.gpus.size());
  for (std::size_t r = 0; r < rules.size(); ++r) {
    const auto& rule = rules[r];
    if (rule.node_label && !has_label(*rule.node_label, labels)) continue;
    const auto* count = std::get_if<config::DeviceCount>(&rule.devices);
    std::size_t left = count != nullptr ? count->count : snapshot.gpus.size();
    std::set<DeviceUuid> seen;
    for (std::size_t g = 0; g < snapshot.gpus.size() && left > 0; ++g) {
      const auto& gpu = snapshot.gpus[g];
      if (gpu.uuid.empty() || !seen.insert(gpu.uuid).second || selected[g]) continue;
      if (!is_listed(rule.devices, gpu) || (rule.model && !is_model(*rule.model, gpu.model))) continue;
      selected[g] = r;
      --left;
    }
  }
  return selected;
}

const PowerPeriod* find_active_period(const config::PowerRule& rule, WallTime now) {
  const auto minute = minute_of_week(local_time(std::chrono::system_clock::to_time_t(now)));
  const auto found =
      std::ranges::find_if(rule.schedule, [&](const auto& period) { return is_active(period, minute); });
  return found == rule.schedule.end() ? nullptr : &*found;
}

std::optional<WallTime> next_schedule_change(std::span<const config::PowerRule> rules, WallTime now) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(now);
  const auto time = std::chrono::system_clock::to_time_t(seconds);
  const auto local = local_time(time);
  const std::int64_t second_of_week = std::int64_t{minute_of_week(local)} * 60 + std::min(local.tm_sec, 59);
  std::optional<std::int64_t> nearest;
  const auto add_boundary = [&](unsigned minute) {
    auto wait = (std::int64_t{minute} * 60 - second_of_week + 2 * kWeekSeconds) % kWeekSeconds;
    if (wait == 0) wait = kWeekSeconds;
    nearest = std::min(nearest.value_or(wait), wait);
  };
  for (const auto& rule : rules) {
    for (const auto& period : rule.schedule) {
      for_each_begin(period, [&](unsigned begin) {
        add_boundary(begin);
        add_boundary(begin + length_of(period));
      });
    }
  }
  if (!nearest) return std::nullopt;
  auto next = time + static_cast<std::time_t>(*nearest);
  if (local_time(next).tm_gmtoff != local.tm_gmtoff) next = find_offset_change(time, next);
  return std::chrono::system_clock::from_time_t(next);
}

Result<PodPowerRequest> parse_pod_power(const std::map<std::string, std::string>& annotations) {
  PodPowerRequest request;
  const auto read = [&](const char* name, const char* expected, auto parse, auto& into) -> Status {
    const auto found = annotations.find(name);
    if (found == annotations.end()) return {};
    into = parse(found->second);
    if (into) return {};
    return fail(Code::kInvalidArgument, "annotation " + std::string(name) + ": expected " + expected +
                                            ", found " + quoted_text(found->second.substr(0, 64)));
  };
  GPULET_TRY(read(kPowerLimitAnnotation, "watts such as 350W, or percent of the default limit such as 80%",
                  config::parse_power_limit, request.limit));
  GPULET_TRY(read(kGraphicsClockAnnotation, "MHz such as 1200, or a range such as 210-1410",
                  config::parse_clock_range, request.graphics));
  return request;
}

PodPowerRequest agreed_request(std::span<const PodPowerRequest> requests) {
  if (requests.empty()) return {};
  PodPowerRequest agreed = requests.front();
  for (const auto& request : requests) {
    if (request.limit != agreed.limit) agreed.limit.reset();
    if (request.graphics != agreed.graphics) agreed.graphics.reset();
  }
  return agreed;
}

std::string_view power_source_name(PowerSource source) {
  switch (source) {
    case PowerSource::kRule:
      return "rule";
    case PowerSource::kSchedule:
      return "schedule";
    case PowerSource::kPod:
      return "pod";
  }
  return "";
}

PowerTarget make_power_target(const config::PowerSettings& settings, const config::PowerRule& rule,
                              WallTime now, std::span<const PodPowerRequest> pods) {
  PowerTarget target{.values = rule.values};
  if (const auto* period = find_active_period(rule, now)) {
    const auto& values = period->values;
    target.is_limit_scheduled = values.limit.has_value();
    if (values.limit) {
      target.rule_limit = rule.values.limit;
      target.values.limit = values.limit;
    }
    if (values.graphics) target.values.graphics = values.graphics;
    if (values.memory) target.values.memory = values.memory;
  }
  if (settings.pod_annotation) {
    target.pod = agreed_request(pods);
    target.do_pods_differ = std::ranges::any_of(pods, [&](const auto& pod) { return pod != target.pod; });
    target.pod_min = settings.pod_min;
  }
  return target;
}

ResolvedPower resolve_power(const PowerTarget& target, const PowerBounds& bounds) {
  ResolvedPower resolved;
  resolve_limit(target, bounds.limit, resolved);
  if (target.do_pods_differ)
    resolved.pod_problems.emplace_back(
        "the Pods of the GPU ask for different power limits or clocks: only those that they agree on count");
  resolved.graphics = resolve_clocks(target.values.graphics, bounds.graphics, "graphics", resolved);
  resolved.memory = resolve_clocks(target.values.memory, bounds.memory, "memory", resolved);
  const auto& pod = target.pod.graphics;
  if (!pod) return resolved;
  if (!resolved.graphics) {
    resolved.pod_problems.push_back("the Pod's graphics clocks " + config::clock_range_text(*pod) +
                                    " MHz do not count: the GPU's rule sets none");
  } else if (!is_within(*pod, *resolved.graphics)) {
    resolved.pod_problems.push_back("the Pod's graphics clocks " + config::clock_range_text(*pod) +
                                    " MHz do not count: they must be within " +
                                    config::clock_range_text(*resolved.graphics) + " MHz");
  } else {
    resolved.graphics = pod;
  }
  return resolved;
}

}  // namespace gpulet::partition
