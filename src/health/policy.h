// Every interval, count, window and effect of the health rules, with its default, its bounds and what
// changing it costs.
#pragma once

#include <map>
#include <span>
#include <string_view>
#include <variant>

#include "base/loop.h"
#include "base/result.h"
#include "health/rules.h"

namespace gpulet::health {

// For which XIDs "no recovery action" proves that the reset or reboot that the catalogue asks for is no
// longer wanted.
enum class TrustDriver {
  kLinked,  // those that NVIDIA's catalogue links to the recovery action, from the driver branch that it
            // names
  kAlways,
  kNever,
};

struct Policy {
  // Asking. The machine only takes what comes; these are for whoever asks the driver.
  Duration alive_interval = std::chrono::seconds(10);
  Duration poll_interval = std::chrono::seconds(60);
  Duration suspect_interval = std::chrono::seconds(1);

  // Coming back.
  Duration hold = std::chrono::seconds(30);
  Duration max_hold = std::chrono::hours(1);
  unsigned growth = 2;
  Duration relapse_window = std::chrono::hours(24);
  Duration driver_word_delay = std::chrono::seconds(2);
  TrustDriver trust_driver = TrustDriver::kLinked;

  // Applications' errors: so many different ones within the window. 0: never.
  unsigned repeat_count = 3;
  Duration repeat_window = std::chrono::minutes(10);

  // Limits of what only flags.
  unsigned retired_pages = 60;
  unsigned nvlink_errors_per_minute = 100;
  unsigned pcie_replays_per_minute = 60;
  unsigned thermal_percent = 50;
  unsigned power_percent = 90;

  // How long a GPU that is no more in the node is remembered.
  Duration forget = std::chrono::hours(24 * 7);

  std::map<FaultClass, Effect> effects;  // where they differ from fault_rules()
  std::map<FaultClass, Duration> holds;

  Effect effect(FaultClass fault_class) const;
  // How long the checks must pass for this fault on a GPU that has relapsed so often.
  Duration hold_of(FaultClass fault_class, unsigned relapses) const;
};

// One setting of the file's `gpulet.health:`.
struct Setting {
  std::string_view key;  // "poll-interval"
  std::variant<Duration Policy::*, unsigned Policy::*> field;
  std::uint64_t least, most;  // milliseconds, or the count
  std::string_view says;
  std::string_view less;  // what a smaller value costs or loses
  std::string_view more;  // what a greater one does
};
std::span<const Setting> settings();
// The setting's value in milliseconds, or the count.
std::uint64_t value_of(const Policy& policy, const Setting& setting);
// Sets it. kInvalidArgument when it is out of bounds, with both.
Status set(Policy& policy, const Setting& setting, std::uint64_t value);

}  // namespace gpulet::health
