#include "agent/power/power_record.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"

namespace gpulet::agent {
namespace {

using config::ClockRange;
using partition::ResolvedPower;

constexpr MilliWatts kPreset{700'000};

PowerReading reading_of(std::uint32_t watts, std::uint64_t session = 1) {
  return {.session = session,
          .limit = MilliWatts{watts * 1000},
          .bounds = {partition::LimitBounds{kPreset, {200'000}, kPreset}}};
}
ResolvedPower limit_of(std::uint32_t watts) { return {.limit = MilliWatts{watts * 1000}}; }
PowerRecord recorded(std::uint32_t before, std::vector<MilliWatts> set) {
  return {.before = MilliWatts{before * 1000}, .set = std::move(set)};
}

TEST(PowerStep, ALimitIsSetOnceAndRecordedBefore) {
  const auto step = plan_power_step({}, limit_of(500), reading_of(700), {});
  EXPECT_EQ(step.writes, PowerWrites{.limit = MilliWatts{500'000}});
  EXPECT_EQ(step.record, recorded(700, {{500'000}}));
  EXPECT_EQ(step.after, step.record);
  const auto again = plan_power_step(step.after, limit_of(500), reading_of(500), {});
  EXPECT_TRUE(again.writes.is_empty()) << "also by the next agent";
  EXPECT_EQ(again.after, step.after);
  const auto equal = plan_power_step({}, limit_of(700), reading_of(700), {});
  EXPECT_TRUE(equal.writes.is_empty());
  EXPECT_EQ(equal.after, recorded(700, {{700'000}}));
}

TEST(PowerStep, BothLimitsAreRecordedWhileOneReplacesTheOther) {
  const auto step = plan_power_step(recorded(700, {{500'000}}), limit_of(400), reading_of(500), {});
  EXPECT_EQ(step.record, recorded(700, {{500'000}, {400'000}}));
  EXPECT_EQ(step.after, recorded(700, {{400'000}}));
  for (const auto watts : {500u, 400u}) {
    const auto restored = plan_power_step(step.record, {}, reading_of(watts), {});
    EXPECT_EQ(restored.writes, PowerWrites{.limit = kPreset}) << watts << ": the agent was killed";
    EXPECT_TRUE(restored.after.is_empty());
  }
}

TEST(PowerStep, WhatWasThereBeforeIsRestored) {
  const auto step = plan_power_step(recorded(600, {{500'000}}), {}, reading_of(500), {});
  EXPECT_EQ(step.writes, PowerWrites{.limit = MilliWatts{600'000}});
  EXPECT_EQ(step.record, recorded(600, {{500'000}})) << "until it is restored";
  EXPECT_TRUE(step.after.is_empty());
  for (const auto watts : {450u, 600u, 700u}) {
    const auto left = plan_power_step(recorded(600, {{500'000}}), {}, reading_of(watts), {});
    EXPECT_TRUE(left.writes.is_empty()) << watts << ": another program's";
    EXPECT_TRUE(left.after.is_empty());
  }
}

TEST(PowerStep, AnotherProgramsLimitIsNotFought) {
  const auto record = recorded(600, {{500'000}});
  const PowerApplied applied{1, limit_of(500)};
  const auto drift = plan_power_step(record, limit_of(500), reading_of(450), applied);
  EXPECT_TRUE(drift.writes.is_empty());
  EXPECT_EQ(drift.drift, "another program has set the power limit to 450W: gpulet's is 500W");
  EXPECT_EQ(drift.after, record);
  const PowerWrites set{.limit = MilliWatts{500'000}};
  EXPECT_EQ(plan_power_step(record, limit_of(500), reading_of(450), {}).writes, set) << "of a new agent";
  EXPECT_EQ(plan_power_step(record, limit_of(500), reading_of(450, 2), applied).writes, set)
      << "a new session";
  EXPECT_EQ(plan_power_step(record, limit_of(500), reading_of(700), applied).writes, set)
      << "the GPU was reset";
  EXPECT_EQ(plan_power_step(record, limit_of(400), reading_of(450), applied).writes,
            PowerWrites{.limit = MilliWatts{400'000}})
      << "the rule is another one";
}

TEST(PowerStep, ClocksAreLockedAgainInANewSessionOnly) {
  const ResolvedPower wanted{.graphics = ClockRange{1200, 1410}};
  const auto step = plan_power_step({}, wanted, reading_of(700), {});
  EXPECT_EQ(step.writes, (PowerWrites{.graphics = ClockWrite{ClockRange{1200, 1410}}}));
  EXPECT_TRUE(step.record.graphics && step.after.graphics && !step.after.memory);
  const PowerApplied applied{1, wanted};
  EXPECT_TRUE(plan_power_step(step.after, wanted, reading_of(700), applied).writes.is_empty());
  EXPECT_EQ(plan_power_step(step.after, wanted, reading_of(700, 2), applied).writes, step.writes);
  const auto unlocked = plan_power_step(step.after, {}, reading_of(700), applied);
  EXPECT_EQ(unlocked.writes, PowerWrites{.graphics = ClockWrite{}});
  EXPECT_TRUE(unlocked.record.graphics);
  EXPECT_TRUE(unlocked.after.is_empty());
  EXPECT_TRUE(plan_power_step({}, {}, reading_of(700), applied).writes.is_empty())
      << "locked by somebody else";
}

TEST(PowerStep, AResetThatTookTheLimitTookTheLocks) {
  const ResolvedPower wanted{.limit = MilliWatts{500'000}, .memory = ClockRange{2619, 2619}};
  const PowerRecord record{.before = kPreset, .set = {{500'000}}, .memory = true};
  EXPECT_EQ(plan_power_step(record, wanted, reading_of(700), PowerApplied{1, wanted}).writes,
            (PowerWrites{.limit = MilliWatts{500'000}, .memory = ClockWrite{ClockRange{2619, 2619}}}));
}

TEST(PowerStep, AKeptLimitIsLeftAlone) {
  const auto step = plan_power_step(recorded(700, {{500'000}}), {.is_limit_kept = true}, reading_of(500), {});
  EXPECT_TRUE(step.writes.is_empty());
  EXPECT_EQ(step.after, recorded(700, {{500'000}}));
}

TEST(PowerStep, WithoutTheRecordTheDefaultIsRestored) {
  EXPECT_EQ(plan_power_step({}, limit_of(400), reading_of(500), {}, true).after, recorded(700, {{400'000}}));
}

TEST(PowerStep, AGpuWithoutLimitsIsLeftAlone) {
  const PowerReading none{.session = 1};
  EXPECT_TRUE(plan_power_step({}, {}, none, {}).writes.is_empty());
  EXPECT_TRUE(plan_power_step({}, limit_of(500), none, {}).writes.is_empty());
}

// After any chain of targets, and of crashes before or after a write, the last step without a target restores
// the first limit.
RC_GTEST_PROP(PowerStep, TheFirstLimitIsRestoredAfterAnyChain, ()) {
  const std::uint32_t first = static_cast<std::uint32_t>(*rc::gen::element(700, 600));
  std::uint32_t current = first;
  PowerRecord record;
  std::optional<PowerApplied> applied;
  for (int steps = *rc::gen::inRange(0, 8); steps >= 0; --steps) {
    const auto watts = steps == 0 ? 0 : *rc::gen::element(0, 300, 400, 500, 600, 700);
    const auto wanted = watts == 0 ? ResolvedPower{} : limit_of(static_cast<std::uint32_t>(watts));
    const auto step = plan_power_step(record, wanted, reading_of(current), applied);
    record = step.record;
    const int crash = steps == 0 ? 2 : *rc::gen::inRange(0, 3);
    applied.reset();
    if (crash == 0) continue;  // before the write
    if (step.writes.limit) current = step.writes.limit->value / 1000;
    if (crash == 1) continue;  // after it
    record = step.after;
    applied = PowerApplied{1, wanted};
  }
  RC_ASSERT(current == first);
  RC_ASSERT(record.is_empty());
}

const PowerRecords kRecords = {{DeviceUuid("GPU-a"), recorded(700, {{500'000}, {400'000}})},
                               {DeviceUuid("GPU-b"), {.graphics = true, .memory = true}}};

TEST(PowerRecords, AreReadAsTheyWereWritten) {
  const std::string path = testing::TempDir() + "power_records/power.json";
  std::filesystem::remove_all(testing::TempDir() + "power_records");
  EXPECT_EQ(load_power_records(path).value(), PowerRecords{});
  ASSERT_TRUE(save_power_records(path, kRecords));
  EXPECT_EQ(load_power_records(path).value(), kRecords);
  EXPECT_EQ(read_file(path).value(),
            R"({"gpus":{"GPU-a":{"beforeMilliwatts":700000,"setMilliwatts":[500000,400000]},)"
            R"("GPU-b":{"graphicsClocks":true,"memoryClocks":true}},"version":1})"
            "\n");
  ASSERT_TRUE(save_power_records(path, {}));
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(save_power_records(path, {}));
}

TEST(PowerRecords, MistakesAreRefused) {
  const auto gpu = [](const std::string& record) {
    return R"({"version":1,"gpus":{"GPU-a":)" + record + "}}";
  };
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"", "not a JSON object"},
           {"[]", "not a JSON object"},
           {R"({"version":2,"gpus":{}})", "version: expected 1"},
           {R"({"version":1})", "gpus: expected at most 256 GPUs"},
           {gpu("3"), "GPU-a: expected an object"},
           {gpu("{}"), "GPU-a: expected a change"},
           {gpu(R"({"memoryClocks":1})"), "GPU-a.memoryClocks: expected true"},
           {gpu(R"({"beforeMilliwatts":-1})"), "GPU-a.beforeMilliwatts: expected milliwatts"},
           {gpu(R"({"beforeMilliwatts":1})"),
            "GPU-a: expected both or none of beforeMilliwatts and setMilliwatts"},
           {gpu(R"({"beforeMilliwatts":1,"setMilliwatts":[]})"),
            "GPU-a.setMilliwatts: expected one or two limits"},
           {gpu(R"({"beforeMilliwatts":1,"setMilliwatts":[4294967296]})"),
            "GPU-a.setMilliwatts: expected milliwatts"},
           {gpu(R"({"other":1})"), "GPU-a: unknown field \"other\""},
           {std::string(kMaxPowerFileBytes + 1, ' '), "expected at most 262144 bytes, found 262145"},
       }) {
    const auto parsed = parse_power_records(text);
    ASSERT_FALSE(parsed) << text.substr(0, 99);
    EXPECT_EQ(parsed.error().message(), error);
  }
}

}  // namespace
}  // namespace gpulet::agent
