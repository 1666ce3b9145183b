#include "config/health_settings.h"

#include <array>
#include <cctype>
#include <deque>
#include <string>

#include "base/text.h"
#include "config/assign.h"
#include "config/values.h"
#include "health/policy.h"

namespace gpulet::config {
namespace {

using Names = std::string_view;
// In the order of the enumerations in health/policy.h and health/rules.h.
constexpr std::array<Names, 3> kTrust = {"linked", "always", "never"};
constexpr std::array<Names, 5> kEffects = {"ignore", "flag", "drain", "quarantine", "lose"};
constexpr std::uint64_t kMillisecondsADay = 86'400'000;

// Rows refer to their texts, and these are made here.
std::string_view keep(std::string text) {
  static std::deque<std::string> kept;
  return kept.emplace_back(std::move(text));
}

// "poll-interval" → "pollInterval".
std::string camel(std::string_view key) {
  std::string out;
  bool upper = false;
  for (const char c : key) {
    if (c == '-') {
      upper = true;
      continue;
    }
    out += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = false;
  }
  return out;
}

// "poll-interval" → "GPULET_HEALTH_POLL_INTERVAL".
std::string variable(std::string_view key) {
  std::string out = "GPULET_HEALTH_";
  for (const char c : key)
    out += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

// In milliseconds, or the count: what health::set takes.
std::uint64_t number(const Value& value, bool is_duration) {
  if (!is_duration) return text::parse_unsigned(text(value)).value_or(0);
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(duration(value)).count());
}

Setting row_of(const health::Setting& setting) {
  const bool is_duration = std::holds_alternative<Duration health::Policy::*>(setting.field);
  const auto standard = value_of(health::Policy{}, setting);
  return {.flag = keep("health-" + std::string(setting.key)),
          .environment = {keep(variable(setting.key))},
          .path = keep("gpulet.health." + camel(setting.key)),
          .kind = is_duration ? Kind::kDuration : Kind::kUnsigned,
          .default_text = keep(is_duration ? format_duration(std::chrono::milliseconds(standard))
                                           : std::to_string(standard)),
          .help = setting.says,
          .bounds = Setting::Bounds{setting.least, setting.most},
          .assign = [&setting, is_duration](Config& c, const Value& v) {
            // Within its bounds, as what is assigned was found valid.
            (void)health::set(c.gpulet.health, setting, number(v, is_duration));
          }};
}

void add_class(const health::FaultRule& rule, std::vector<Setting>& rows) {
  const std::string path = "gpulet.health.classes." + std::string(rule.name);
  const auto fault_class = rule.fault_class;
  rows.push_back({.path = keep(path + ".effect"),
                  .kind = Kind::kChoice,
                  .choices = kEffects,
                  .help = "what a fault of this class does to a device",
                  .assign = [fault_class](Config& c, const Value& v) {
                    c.gpulet.health.effects[fault_class] = choice<health::Effect>(text(v), kEffects);
                  }});
  rows.push_back({.path = keep(path + ".hold"),
                  .kind = Kind::kDuration,
                  .help = "how long its checks must pass",
                  .bounds = Setting::Bounds{0, 30 * kMillisecondsADay},
                  .assign = [fault_class](Config& c, const Value& v) {
                    c.gpulet.health.holds[fault_class] = duration(v);
                  }});
}

}  // namespace

std::vector<Setting> health_settings() {
  std::vector<Setting> rows;
  for (const auto& setting : health::settings()) rows.push_back(row_of(setting));
  rows.push_back(
      {.flag = "health-trust-driver",
       .environment = {"GPULET_HEALTH_TRUST_DRIVER"},
       .path = "gpulet.health.trustDriver",
       .kind = Kind::kChoice,
       .choices = kTrust,
       .default_text = "linked",
       .help =
           "for which XIDs the driver's word proves a reset: those that NVIDIA links to it, always, never",
       .assign = [](Config& c, const Value& v) {
         c.gpulet.health.trust_driver = choice<health::TrustDriver>(text(v), kTrust);
       }});
  for (const auto& rule : health::fault_rules()) add_class(rule, rows);
  return rows;
}

}  // namespace gpulet::config
