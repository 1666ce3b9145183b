#include "config/power_settings.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "config/field_reader.h"
#include "config/values.h"

namespace gpulet::config {
namespace {

using NodeKind = yaml::Node::Kind;
using yaml::Node;

// By tm_wday.
constexpr std::array<std::string_view, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
constexpr std::uint8_t kAllDays = 0x7f;

std::optional<unsigned> bounded_number(std::string_view digits, unsigned most) {
  const auto number = text::parse_unsigned(digits);
  if (!number || *number == 0 || *number > most) return std::nullopt;
  return static_cast<unsigned>(*number);
}

std::optional<std::size_t> find_day(std::string_view name) {
  const auto found = std::ranges::find(kDays, name);
  if (found == kDays.end()) return std::nullopt;
  return static_cast<std::size_t>(found - kDays.begin());
}

// "Mon" or "Fri-Mon", as bits.
std::optional<std::uint8_t> parse_days(std::string_view text) {
  const auto dash = text.find('-');
  const auto first = find_day(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : find_day(text.substr(dash + 1));
  if (!first || !last) return std::nullopt;
  unsigned days = 0;
  for (auto day = *first;; day = (day + 1) % kDays.size()) {
    days |= 1U << day;
    if (day == *last) return static_cast<std::uint8_t>(days);
  }
}

// "22:00", as minutes after midnight.
std::optional<unsigned> parse_time_of_day(std::string_view text) {
  if (text.size() != 5 || text[2] != ':') return std::nullopt;
  const auto hours = text::parse_unsigned(text.substr(0, 2));
  const auto minutes = text::parse_unsigned(text.substr(3));
  if (!hours || !minutes || *hours > 23 || *minutes > 59) return std::nullopt;
  return static_cast<unsigned>(*hours * 60 + *minutes);
}

std::string time_text(unsigned minutes) {
  const auto two_digits = [](unsigned number) { return (number < 10 ? "0" : "") + std::to_string(number); };
  return two_digits(minutes / 60) + ":" + two_digits(minutes % 60);
}

class PowerReader {
 public:
  explicit PowerReader(Problems& problems) : problems_(problems) {}

  PowerRule read_rule(const Node& node, const std::string& path) {
    const MappingReader fields(node, path, {"devices", "model", "nodeLabel", "limit", "clocks", "schedule"},
                               problems_);
    PowerRule rule;
    rule.position = yaml::position_text(problems_.file_path(), node.position);
    if (const auto* value = fields["devices"])
      rule.devices =
          read_gpu_selection(*value, fields.field_path("devices"), problems_).value_or(AllDevices{});
    if (const auto* value = fields["model"])
      rule.model = read_text(*value, fields.field_path("model"), problems_);
    if (const auto* value = fields["nodeLabel"]) {
      const auto label =
          read_parsed(*value, fields.field_path("nodeLabel"), "a label: key or key=value", parse_node_label);
      rule.node_label = label;
    }
    rule.values = read_values(fields);
    if (const auto* value = fields["schedule"])
      rule.schedule = read_schedule(*value, fields.field_path("schedule"));
    return rule;
  }

  template <class Parse>
  auto read_parsed(const Node& node, const std::string& field, const std::string& wanted, Parse parse)
      -> decltype(parse(std::string_view())) {
    auto parsed = node.kind == NodeKind::kScalar ? parse(std::string_view(node.scalar))
                                                 : decltype(parse(std::string_view()))();
    if (!parsed) problems_.add_error(node.position, field, expected_but_found(wanted, node));
    return parsed;
  }
  std::optional<PowerLimit> read_limit(const Node& node, const std::string& field) {
    return read_parsed(node, field, "watts such as 350W, or percent of the default limit such as 80%",
                       parse_power_limit);
  }

 private:
  PowerValues read_values(const MappingReader& fields) {
    PowerValues values;
    if (const auto* node = fields["limit"]) values.limit = read_limit(*node, fields.field_path("limit"));
    const auto* node = fields["clocks"];
    if (node == nullptr ||
        !expect_kind(NodeKind::kMapping, "a mapping", *node, fields.field_path("clocks"), problems_))
      return values;
    const MappingReader clocks(*node, fields.field_path("clocks"), {"graphics", "memory"}, problems_);
    const auto read = [&](std::string_view key) -> std::optional<ClockRange> {
      const auto* value = clocks[key];
      if (value == nullptr) return std::nullopt;
      return read_parsed(*value, clocks.field_path(key), "MHz such as 1200, or a range such as 210-1410",
                         parse_clock_range);
    };
    values.graphics = read("graphics");
    values.memory = read("memory");
    return values;
  }

  std::vector<PowerPeriod> read_schedule(const Node& node, const std::string& field) {
    std::vector<PowerPeriod> schedule;
    if (!expect_kind(NodeKind::kSequence, "a list of periods", node, field, problems_)) return schedule;
    if (node.items.size() > kMaxPowerPeriods) {
      problems_.add_error(node.position, field,
                          "expected at most " + std::to_string(kMaxPowerPeriods) + " periods");
      return schedule;
    }
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const std::string path = field + "[" + std::to_string(i) + "]";
      if (expect_kind(NodeKind::kMapping, "a period", node.items[i], path, problems_))
        schedule.push_back(read_period(node.items[i], path));
    }
    return schedule;
  }

  PowerPeriod read_period(const Node& node, const std::string& path) {
    const MappingReader fields(node, path, {"days", "from", "to", "limit", "clocks"}, problems_);
    PowerPeriod period;
    if (const auto* days = fields["days"]) period.days = read_days(*days, fields.field_path("days"));
    const auto* from = fields["from"];
    const auto* until = fields["to"];
    if ((from == nullptr) != (until == nullptr))
      problems_.add_error(node.position, path, "expected both from and to, or neither for whole days");
    const auto read = [&](const Node& value, std::string_view key) {
      return read_parsed(value, fields.field_path(key), "a time of day such as \"22:00\"", parse_time_of_day)
          .value_or(0);
    };
    if (from != nullptr) period.from = read(*from, "from");
    if (until != nullptr) period.until = read(*until, "to");
    period.values = read_values(fields);
    if (period.values == PowerValues{})
      problems_.add_error(node.position, path, "expected limit or clocks of the period");
    return period;
  }

  std::uint8_t read_days(const Node& node, const std::string& field) {
    if (!expect_kind(NodeKind::kSequence, "a list of days", node, field, problems_)) return kAllDays;
    unsigned days = 0;
    for (const auto& item : node.items)
      days |= read_parsed(item, field, "a day such as Mon, or days such as Mon-Fri", parse_days).value_or(0);
    if (node.items.empty()) problems_.add_error(node.position, field, "an empty list; expected at least one");
    return static_cast<std::uint8_t>(days);
  }

  Problems& problems_;
};

void add_values(YamlNode& node, const PowerValues& values) {
  if (values.limit) node.add("limit", YamlNode::text(power_limit_text(*values.limit)));
  if (!values.graphics && !values.memory) return;
  auto& clocks = node.add("clocks", {});
  if (values.graphics) clocks.add("graphics", YamlNode::text(clock_range_text(*values.graphics)));
  if (values.memory) clocks.add("memory", YamlNode::text(clock_range_text(*values.memory)));
}

YamlNode period_node(const PowerPeriod& period) {
  YamlNode node;
  if (period.days != kAllDays) {
    auto& days = node.add("days", YamlNode::list());
    days.flow = true;
    for (std::size_t day = 0; day < kDays.size(); ++day) {
      if ((period.days >> day & 1) != 0) days.items.push_back(YamlNode::text(std::string(kDays[day])));
    }
  }
  if (period.from != 0 || period.until != 0) {
    node.add("from", YamlNode::text(time_text(period.from)));
    node.add("to", YamlNode::text(time_text(period.until)));
  }
  add_values(node, period.values);
  return node;
}

}  // namespace

std::optional<PowerLimit> parse_power_limit(std::string_view text) {
  const bool is_percent = text.ends_with('%');
  if (is_percent || text.ends_with('W')) text.remove_suffix(1);
  const auto number = bounded_number(text, is_percent ? kMaxPowerPercent : kMaxPowerWatts);
  if (!number) return std::nullopt;
  return is_percent ? PowerLimit{.watts = 0, .percent = *number} : PowerLimit{.watts = *number, .percent = 0};
}

std::string power_limit_text(const PowerLimit& limit) {
  return limit.percent != 0 ? std::to_string(limit.percent) + "%" : std::to_string(limit.watts) + "W";
}

std::optional<ClockRange> parse_clock_range(std::string_view text) {
  const auto dash = text.find('-');
  const auto lowest = bounded_number(text.substr(0, dash), kMaxClockMegahertz);
  const auto highest =
      dash == std::string_view::npos ? lowest : bounded_number(text.substr(dash + 1), kMaxClockMegahertz);
  if (!lowest || !highest || *lowest > *highest) return std::nullopt;
  return ClockRange{*lowest, *highest};
}

std::string clock_range_text(const ClockRange& range) {
  return std::to_string(range.lowest) +
         (range.highest != range.lowest ? "-" + std::to_string(range.highest) : "");
}

PowerSettings read_power(const Node& node, Problems& problems) {
  const std::string section = "gpulet.power";
  PowerSettings settings;
  if (node.kind == NodeKind::kNull ||
      !expect_kind(NodeKind::kMapping, "a mapping with rules and podAnnotation", node, section, problems))
    return settings;
  settings.origin = "file " + yaml::position_text(problems.file_path(), node.position);
  PowerReader reader(problems);
  const MappingReader fields(node, section, {"rules", "podAnnotation"}, problems);
  const auto* rules = fields["rules"];
  const std::string list = fields.field_path("rules");
  if (rules != nullptr && expect_kind(NodeKind::kSequence, "a list of rules", *rules, list, problems)) {
    if (rules->items.size() > kMaxPowerRules)
      problems.add_error(rules->position, list,
                         "expected at most " + std::to_string(kMaxPowerRules) + " rules");
    for (std::size_t i = 0; i < std::min(rules->items.size(), kMaxPowerRules); ++i) {
      const std::string path = list + "[" + std::to_string(i) + "]";
      if (expect_kind(NodeKind::kMapping, "a rule", rules->items[i], path, problems))
        settings.rules.push_back(reader.read_rule(rules->items[i], path));
    }
  }
  const auto* annotation = fields["podAnnotation"];
  const std::string path = fields.field_path("podAnnotation");
  if (annotation == nullptr || !expect_kind(NodeKind::kMapping, "a mapping", *annotation, path, problems))
    return settings;
  const MappingReader pods(*annotation, path, {"enabled", "min"}, problems);
  if (const auto* value = pods["enabled"])
    settings.pod_annotation = read_bool(*value, pods.field_path("enabled"), problems).value_or(false);
  if (const auto* value = pods["min"]) settings.pod_min = reader.read_limit(*value, pods.field_path("min"));
  return settings;
}

YamlNode power_node(const PowerSettings& settings, YamlNode (*devices)(const GpuSelection&)) {
  YamlNode node;
  node.comment = settings.origin;
  auto& rules = node.add("rules", YamlNode::list());
  rules.comment = settings.origin;
  for (const auto& rule : settings.rules) {
    auto& item = rules.items.emplace_back();
    item.comment = "file " + rule.position;
    item.add("devices", devices(rule.devices));
    if (rule.model) item.add("model", YamlNode::text(*rule.model));
    if (const auto& label = rule.node_label)
      item.add("nodeLabel", YamlNode::text(label->key + (label->value ? "=" + *label->value : "")));
    add_values(item, rule.values);
    if (rule.schedule.empty()) continue;
    auto& schedule = item.add("schedule", YamlNode::list());
    for (const auto& period : rule.schedule) schedule.items.push_back(period_node(period));
  }
  auto& annotation = node.add("podAnnotation", {});
  annotation.add("enabled", YamlNode::bare(settings.pod_annotation ? "true" : "false"));
  if (settings.pod_min) annotation.add("min", YamlNode::text(power_limit_text(*settings.pod_min)));
  return node;
}

}  // namespace gpulet::config
