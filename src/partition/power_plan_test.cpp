#include "partition/power_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "partition/test_node.h"

namespace gpulet::partition {
namespace {

using namespace test;
using config::ClockRange;
using config::PowerLimit;
using config::PowerPeriod;
using config::PowerRule;
using config::PowerValues;

// Central European time needs no zone files in this form.
constexpr const char* kBerlin = "CET-1CEST,M3.5.0,M10.5.0/3";
constexpr const char* kIndia = "IST-5:30";

class TimeZone {
 public:
  explicit TimeZone(const char* zone) {
    ::setenv("TZ", zone, 1);
    ::tzset();
  }
  ~TimeZone() {
    ::unsetenv("TZ");
    ::tzset();
  }
};

// "2026-03-29 01:59:00" in UTC.
WallTime utc(const std::string& text) {
  std::tm time{};
  EXPECT_NE(::strptime(text.c_str(), "%Y-%m-%d %H:%M:%S", &time), nullptr) << text;
  return std::chrono::system_clock::from_time_t(::timegm(&time));
}
std::string utc_text(std::optional<WallTime> when) {
  if (!when) return "never";
  const auto time = std::chrono::system_clock::to_time_t(*when);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  ::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

constexpr std::uint8_t kEveryDay = 0x7f, kMonday = 2, kFriday = 32, kSaturday = 64, kSunday = 1;

PowerPeriod period(std::uint8_t days, unsigned from, unsigned until, unsigned percent = 60) {
  return {days, from, until, {PowerLimit{0, percent}}};
}
PowerRule scheduled(std::vector<PowerPeriod> periods) {
  return {.values = {PowerLimit{0, 100}}, .schedule = std::move(periods)};
}
bool is_active_at(const PowerRule& rule, const std::string& time) {
  return find_active_period(rule, utc(time)) != nullptr;
}

// 2026-11-27 is a Friday.
TEST(PowerSchedule, ANightEndsOnTheNextDay) {
  const auto rule = scheduled({period(kFriday, 22 * 60, 6 * 60)});
  for (const auto& [time, active] : std::vector<std::pair<std::string, bool>>{
           {"2026-11-27 21:59:59", false},
           {"2026-11-27 22:00:00", true},
           {"2026-11-27 23:59:59", true},
           {"2026-11-28 00:00:00", true},
           {"2026-11-28 05:59:59", true},
           {"2026-11-28 06:00:00", false},
           {"2026-11-28 22:00:00", false},
           {"2026-11-27 03:00:00", false},
       }) {
    EXPECT_EQ(is_active_at(rule, time), active) << time;
  }
  EXPECT_EQ(utc_text(next_schedule_change({&rule, 1}, utc("2026-11-27 12:00:07"))), "2026-11-27 22:00:00");
  EXPECT_EQ(utc_text(next_schedule_change({&rule, 1}, utc("2026-11-27 22:00:00"))), "2026-11-28 06:00:00");
  EXPECT_EQ(utc_text(next_schedule_change({&rule, 1}, utc("2026-11-28 06:00:00"))), "2026-12-04 22:00:00");
}

TEST(PowerSchedule, TheWeekHasNoEnd) {
  const auto rule = scheduled({period(kSaturday, 23 * 60, 60), period(kSunday, 0, 0, 50)});
  const auto percent_at = [&](const std::string& time) {
    const auto* found = find_active_period(rule, utc(time));
    return found == nullptr ? 100 : found->values.limit->percent;
  };
  EXPECT_EQ(percent_at("2026-11-28 22:59:00"), 100u);
  EXPECT_EQ(percent_at("2026-11-28 23:00:00"), 60u);
  EXPECT_EQ(percent_at("2026-11-29 00:30:00"), 60u) << "the first period that matches";
  EXPECT_EQ(percent_at("2026-11-29 01:00:00"), 50u);
  EXPECT_EQ(percent_at("2026-11-29 23:59:59"), 50u);
  EXPECT_EQ(percent_at("2026-11-30 00:00:00"), 100u);
}

TEST(PowerSchedule, ADayFromALaterHourLastsUntilThatHour) {
  const auto rule = scheduled({period(kMonday, 8 * 60, 8 * 60)});
  EXPECT_FALSE(is_active_at(rule, "2026-11-30 07:59:59"));
  EXPECT_TRUE(is_active_at(rule, "2026-12-01 07:59:59"));
  EXPECT_FALSE(is_active_at(rule, "2026-12-01 08:00:00"));
}

TEST(PowerSchedule, WithoutPeriodsNothingIsAwaited) {
  const auto rule = scheduled({});
  EXPECT_EQ(next_schedule_change({&rule, 1}, utc("2026-11-27 12:00:00")), std::nullopt);
  EXPECT_EQ(next_schedule_change({}, utc("2026-11-27 12:00:00")), std::nullopt);
}

TEST(PowerSchedule, FollowsLocalTimeOverItsChanges) {
  const TimeZone zone(kBerlin);
  const auto night = scheduled({period(kEveryDay, 22 * 60, 6 * 60)});
  // The night that is an hour shorter, and the one that is an hour longer.
  EXPECT_FALSE(is_active_at(night, "2026-03-28 20:59:59"));
  EXPECT_TRUE(is_active_at(night, "2026-03-28 21:00:00"));
  EXPECT_TRUE(is_active_at(night, "2026-03-29 03:59:59"));
  EXPECT_FALSE(is_active_at(night, "2026-03-29 04:00:00"));
  EXPECT_TRUE(is_active_at(night, "2026-10-25 04:59:59"));
  EXPECT_FALSE(is_active_at(night, "2026-10-25 05:00:00"));
  EXPECT_EQ(utc_text(next_schedule_change({&night, 1}, utc("2026-03-28 21:00:00"))), "2026-03-29 01:00:00")
      << "the offset changes";
  EXPECT_EQ(utc_text(next_schedule_change({&night, 1}, utc("2026-03-29 01:00:00"))), "2026-03-29 04:00:00");
  // From 02:30 to 02:45 does not exist on that day; twice on the other.
  const auto skipped = scheduled({period(kEveryDay, 150, 165)});
  EXPECT_FALSE(is_active_at(skipped, "2026-03-29 00:59:59"));
  EXPECT_FALSE(is_active_at(skipped, "2026-03-29 01:00:00"));
  EXPECT_TRUE(is_active_at(skipped, "2026-10-25 00:30:00"));
  EXPECT_FALSE(is_active_at(skipped, "2026-10-25 00:45:00"));
  EXPECT_TRUE(is_active_at(skipped, "2026-10-25 01:30:00"));
}

// Whoever looks only when told to misses no change: not of a day, a week or the local time.
RC_GTEST_PROP(PowerSchedule, NoPeriodBeginsOrEndsBeforeTheNextLook, ()) {
  const TimeZone zone(*rc::gen::element("UTC0", kBerlin, kIndia));
  std::vector<PowerPeriod> periods;
  for (int count = *rc::gen::inRange(1, 4); count > 0; --count) {
    periods.push_back(period(static_cast<std::uint8_t>(*rc::gen::inRange(1, 128)),
                             static_cast<unsigned>(*rc::gen::inRange(0, 1440)),
                             static_cast<unsigned>(*rc::gen::inRange(0, 1440)),
                             static_cast<unsigned>(count)));
  }
  const auto rule = scheduled(periods);
  const auto start = *rc::gen::element("2026-03-27 00:00:00", "2026-10-23 00:00:00", "2026-06-01 00:00:00");
  auto now = utc(start) + std::chrono::seconds(*rc::gen::inRange(0, 3 * 86'400));
  const auto next = next_schedule_change({&rule, 1}, now);
  RC_ASSERT(next.has_value());
  RC_ASSERT(*next > now);
  RC_ASSERT(*next <= now + std::chrono::days(7));
  const auto* active = find_active_period(rule, now);
  for (; now < *next; now += std::chrono::seconds(59)) RC_ASSERT(find_active_period(rule, now) == active);
  RC_ASSERT(find_active_period(rule, *next - std::chrono::seconds(1)) == active);
}

PowerRule rule_for(config::GpuSelection devices, std::optional<std::string> model = std::nullopt) {
  return {.devices = std::move(devices), .model = std::move(model)};
}

TEST(PowerRules, TheFirstThatSelectsAGpuApplies) {
  const auto seen =
      node({gpu(0, "NVIDIA H100 80GB HBM3"), gpu(1, "NVIDIA H100 80GB HBM3"), gpu(2, "NVIDIA L40S")});
  std::vector<PowerRule> rules = {rule_for(config::GpuRefs{{.first = 1, .last = 1, .uuid = {}}}),
                                  rule_for(config::DeviceCount{1}, "*H100*"), rule_for(config::AllDevices{})};
  using Selected = std::vector<std::optional<std::size_t>>;
  EXPECT_EQ(select_power_rules(seen, rules, {}), (Selected{1, 0, 2}));
  rules[2].node_label = config::NodeLabel{"pool", "night"};
  EXPECT_EQ(select_power_rules(seen, rules, {}), (Selected{1, 0, std::nullopt}));
  EXPECT_EQ(select_power_rules(seen, rules, {{"pool", "night"}}), (Selected{1, 0, 2}));
  EXPECT_EQ(select_power_rules(seen, {}, {}), (Selected{std::nullopt, std::nullopt, std::nullopt}));
}

TEST(PowerTargets, APeriodReplacesValuesEachForItself) {
  config::PowerSettings settings;
  const PowerRule rule{.values = {PowerLimit{500, 0}, ClockRange{210, 1980}, ClockRange{2619, 2619}},
                       .schedule = {{kEveryDay, 0, 0, {PowerLimit{0, 60}, ClockRange{210, 1200}}}}};
  const auto target = make_power_target(settings, rule, utc("2026-11-27 12:00:00"), {});
  EXPECT_EQ(target.values, (PowerValues{PowerLimit{0, 60}, ClockRange{210, 1200}, ClockRange{2619, 2619}}));
  EXPECT_TRUE(target.is_limit_scheduled);
  EXPECT_EQ(target.rule_limit, (PowerLimit{500, 0}));
}

TEST(PowerTargets, PodsCountWhereTheyAreEnabledAndAgree) {
  config::PowerSettings settings{.pod_min = PowerLimit{0, 50}};
  const PodPowerRequest low{PowerLimit{300, 0}, ClockRange{1200, 1200}}, other{PowerLimit{300, 0}};
  const auto pods_of = [&](std::vector<PodPowerRequest> pods) {
    return make_power_target(settings, {}, utc("2026-11-27 12:00:00"), pods).pod;
  };
  const auto differ = [&](std::vector<PodPowerRequest> pods) {
    return make_power_target(settings, {}, utc("2026-11-27 12:00:00"), pods).do_pods_differ;
  };
  EXPECT_FALSE(differ({low, {}})) << "they are not enabled";
  EXPECT_EQ(pods_of({low}), PodPowerRequest{});
  settings.pod_annotation = true;
  EXPECT_EQ(pods_of({low}), low);
  EXPECT_EQ(pods_of({low, low}), low);
  EXPECT_EQ(pods_of({low, other}), other);
  EXPECT_EQ(pods_of({low, {}}), PodPowerRequest{});
  EXPECT_EQ(pods_of({}), PodPowerRequest{});
  EXPECT_FALSE(differ({low, low}));
  EXPECT_TRUE(differ({low, other}));
  EXPECT_TRUE(differ({low, {}}));
}

TEST(PowerTargets, AnnotationsAreParsed) {
  const auto read = parse_pod_power(
      {{"gpulet.io/power-limit", "60%"}, {"gpulet.io/graphics-clock", "210-1200"}, {"other", "x"}});
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, (PodPowerRequest{PowerLimit{0, 60}, ClockRange{210, 1200}}));
  EXPECT_EQ(*parse_pod_power({}), PodPowerRequest{});
  EXPECT_EQ(parse_pod_power({{"gpulet.io/power-limit", "low"}}).error().message(),
            "annotation gpulet.io/power-limit: expected watts such as 350W, or percent of the default limit "
            "such as 80%, found \"low\"");
  EXPECT_EQ(parse_pod_power({{"gpulet.io/graphics-clock", "1 GHz"}}).error().code(), Code::kInvalidArgument);
}

const PowerBounds kH100{LimitBounds{{700'000}, {200'000}, {700'000}}, ClockRange{210, 1980},
                        ClockRange{1593, 2619}};

std::string resolved_text(const ResolvedPower& power) {
  std::string text = power.limit ? watts_text(*power.limit) + " " : "none ";
  text += power_source_name(power.source);
  if (power.graphics) text += " " + config::clock_range_text(*power.graphics);
  if (power.memory) text += " memory " + config::clock_range_text(*power.memory);
  if (power.is_limit_kept) text += " kept";
  for (const auto& problem : power.problems) text += "; " + problem;
  for (const auto& problem : power.pod_problems) text += "; of the Pod: " + problem;
  return text;
}

TEST(PowerBounds, DecideWhatIsApplied) {
  const auto rule = [](PowerLimit limit) { return PowerTarget{.values = {limit}}; };
  const auto with_pod = [](std::optional<PowerLimit> limit, PowerLimit pod, std::optional<PowerLimit> least) {
    return PowerTarget{.values = {limit}, .pod = {pod}, .pod_min = least};
  };
  for (const auto& [target, text] : std::vector<std::pair<PowerTarget, std::string>>{
           {{}, "none rule"},
           {rule({500, 0}), "500W rule"},
           {rule({0, 55}), "385W rule"},
           {{.values = {PowerLimit{0, 33}}, .is_limit_scheduled = true}, "231W schedule"},
           {rule({199, 0}), "none rule kept; the power limit 199W is not set: the driver takes 200W to 700W"},
           {rule({0, 101}),
            "none rule kept; the power limit 101%, which is 707W, is not set: the driver takes 200W to 700W"},
           {{.values = {PowerLimit{199, 0}}, .is_limit_scheduled = true, .rule_limit = PowerLimit{500, 0}},
            "500W rule; the power limit 199W is not set: the driver takes 200W to 700W"},
           {with_pod({{199, 0}}, {300, 0}, {}),
            "300W pod kept; the power limit 199W is not set: the driver takes 200W to 700W"},
           {with_pod({{500, 0}}, {300, 0}, {}), "300W pod"},
           {with_pod({{500, 0}}, {500, 0}, {}), "500W rule"},
           {with_pod({{500, 0}}, {600, 0}, {}),
            "500W rule; of the Pod: the Pod's power limit 600W does not count: that of the GPU is 500W"},
           {with_pod({}, {800, 0}, {}),
            "none rule; of the Pod: the Pod's power limit 800W does not count: that of the GPU is 700W"},
           {{.values = {PowerLimit{300, 0}},
             .is_limit_scheduled = true,
             .pod = {PowerLimit{400, 0}},
             .rule_limit = PowerLimit{500, 0}},
            "300W schedule"},
           {{.values = {PowerLimit{500, 0}}, .do_pods_differ = true},
            "500W rule; of the Pod: the Pods of the GPU ask for different power limits or clocks: only "
            "those that they agree on count"},
           {with_pod({}, {600, 0}, {}), "600W pod"},
           {with_pod({}, {0, 100}, {}), "none rule"},
           {with_pod({{500, 0}}, {300, 0}, {{0, 50}}),
            "500W rule; of the Pod: the Pod's power limit 300W does not count: the least is 350W"},
           {with_pod({}, {100, 0}, {{50, 0}}),
            "none rule; of the Pod: the Pod's power limit 100W does not count: the least is 200W"},
           {{.values = {{}, ClockRange{1200, 1410}, ClockRange{2619, 2619}}},
            "none rule 1200-1410 memory 2619"},
           {{.values = {{}, ClockRange{100, 1410}}},
            "none rule; the graphics clocks 100-1410 MHz are not set: the driver takes 210-1980 MHz"},
           {{.values = {{}, {}, ClockRange{3000, 3000}}},
            "none rule; the memory clocks 3000 MHz are not set: the driver takes 1593-2619 MHz"},
           {{.values = {{}, ClockRange{1200, 1410}}, .pod = {{}, ClockRange{1300, 1300}}}, "none rule 1300"},
           {{.values = {{}, ClockRange{1200, 1410}}, .pod = {{}, ClockRange{1500, 1500}}},
            "none rule 1200-1410; of the Pod: the Pod's graphics clocks 1500 MHz do not count: they must be "
            "within "
            "1200-1410 MHz"},
           {{.pod = {{}, ClockRange{3000, 3000}}},
            "none rule; of the Pod: the Pod's graphics clocks 3000 MHz do not count: the GPU's rule sets "
            "none"},
           {{.values = {{}, ClockRange{100, 1410}}, .pod = {{}, ClockRange{1300, 1300}}},
            "none rule; the graphics clocks 100-1410 MHz are not set: the driver takes 210-1980 MHz; of the "
            "Pod: the Pod's graphics clocks 1300 MHz do not count: the GPU's rule sets none"},
       }) {
    EXPECT_EQ(resolved_text(resolve_power(target, kH100)), text);
  }
  EXPECT_EQ(resolved_text(resolve_power(rule({500, 0}), {})),
            "none rule; the driver sets no power limit on this GPU");
  EXPECT_EQ(resolved_text(resolve_power({.values = {{}, ClockRange{9, 9}}}, {})), "none rule 9")
      << "the driver decides";
}

RC_GTEST_PROP(PowerBounds, HoldForEveryTarget, ()) {
  const auto limit = [] {
    return *rc::gen::element(std::optional<PowerLimit>{}, std::optional(PowerLimit{0, 30}),
                             std::optional(PowerLimit{0, 70}), std::optional(PowerLimit{650, 0}),
                             std::optional(PowerLimit{9'000, 0}), std::optional(PowerLimit{1, 0}));
  };
  const PowerTarget target{.values = {limit()}, .pod = {limit()}, .pod_min = limit()};
  const auto resolved = resolve_power(target, kH100);
  if (resolved.limit) {
    RC_ASSERT(resolved.limit->value >= 200'000u && resolved.limit->value <= 700'000u);
    const auto by_rule = resolve_power({.values = target.values}, kH100);
    RC_ASSERT(*resolved.limit <= by_rule.limit.value_or(MilliWatts{700'000}));
  }
  if (!target.values.limit && !target.pod.limit) RC_ASSERT(!resolved.limit);
}

TEST(PowerText, HasNoFractionOfZero) {
  EXPECT_EQ(watts_text({350'000}), "350W");
  EXPECT_EQ(watts_text({349'500}), "349.5W");
  EXPECT_EQ(watts_text({1}), "0.001W");
}

}  // namespace
}  // namespace gpulet::partition
