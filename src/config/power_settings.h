// `gpulet.power`: rules for the power limit and the clocks of each GPU. The first rule that selects a GPU
// applies; a GPU without a rule is left alone. Plain values, their parsers and their reader;
// partition/power_plan.h and the agent's power_controller.h apply them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/yaml_writer.h"
#include "config/partition_rules.h"

namespace gpulet::config {

// One of the two is set: watts, or percent of the GPU's default limit.
struct PowerLimit {
  unsigned watts = 0, percent = 0;
  friend bool operator==(const PowerLimit&, const PowerLimit&) = default;
};
inline constexpr unsigned kMaxPowerWatts = 100'000, kMaxPowerPercent = 1000;
// "350", "350W" or "80%". nullopt for another text, 0, and what exceeds the two limits above.
std::optional<PowerLimit> parse_power_limit(std::string_view text);
std::string power_limit_text(const PowerLimit& limit);  // "350W", "80%"

// In MHz, both included.
struct ClockRange {
  unsigned lowest = 0, highest = 0;
  friend bool operator==(const ClockRange&, const ClockRange&) = default;
};
inline constexpr unsigned kMaxClockMegahertz = 100'000;
// "1200" or "210-1410". nullopt for another text, 0, and a range that ends before it begins.
std::optional<ClockRange> parse_clock_range(std::string_view text);
std::string clock_range_text(const ClockRange& range);  // "1200", "210-1410"

// nullopt: the driver's own.
struct PowerValues {
  std::optional<PowerLimit> limit{};
  std::optional<ClockRange> graphics{}, memory{};
  friend bool operator==(const PowerValues&, const PowerValues&) = default;
};

// When `values` replace those of the rule, each for itself. In the time zone of the agent's process.
struct PowerPeriod {
  std::uint8_t days = 0x7f;      // on which it begins: a bit for each, Sunday is 1
  unsigned from = 0, until = 0;  // minutes after midnight; equal: the whole day; `until` before `from`: it
                                 // ends on the next day
  PowerValues values{};
  friend bool operator==(const PowerPeriod&, const PowerPeriod&) = default;
};

struct PowerRule {
  GpuSelection devices = AllDevices{};
  std::optional<std::string> model{};  // as of PartitionRule
  std::optional<NodeLabel> node_label{};
  PowerValues values{};
  std::vector<PowerPeriod> schedule{};  // first match wins
  std::string position{};               // "file:line:column", for messages; not compared
  friend bool operator==(const PowerRule& a, const PowerRule& b) {
    return a.devices == b.devices && a.model == b.model && a.node_label == b.node_label &&
           a.values == b.values && a.schedule == b.schedule;
  }
};

struct PowerSettings {
  std::vector<PowerRule> rules{};
  // A Pod's annotations may lower the limit of its GPU's rule, down to `pod_min` (unset: the driver's
  // minimum), and lock the graphics clocks within those of the rule.
  bool pod_annotation = false;
  std::optional<PowerLimit> pod_min{};
  std::string origin{};  // "file x.yaml:3:5", of the section; not compared
  friend bool operator==(const PowerSettings& a, const PowerSettings& b) {
    return a.rules == b.rules && a.pod_annotation == b.pod_annotation && a.pod_min == b.pod_min;
  }
};

inline constexpr std::size_t kMaxPowerRules = 256;
inline constexpr std::size_t kMaxPowerPeriods = 64;  // of a rule

// Reads the section. Adds to `problems` what is wrong; the result is then invalid.
PowerSettings read_power(const yaml::Node& node, Problems& problems);
// As read_power() reads it. `devices`: the node of a rule's selection.
YamlNode power_node(const PowerSettings& settings, YamlNode (*devices)(const GpuSelection&));

}  // namespace gpulet::config
