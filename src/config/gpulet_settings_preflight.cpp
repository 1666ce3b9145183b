#include <string>

#include "base/text.h"
#include "config/config.h"
#include "config/gpulet_settings.h"
#include "config/schema.h"

namespace gpulet::config {
namespace {

constexpr std::uint64_t kMostPreflightTime = 600'000, kMostRetryInterval = 86'400'000;  // milliseconds

unsigned preflight_number(const Value& value) {
  return static_cast<unsigned>(text::parse_unsigned(text_value(value)).value_or(0));
}

std::vector<Setting> preflight_choices() {
  return {
      {.flag = "preflight",
       .environment = {"GPULET_PREFLIGHT"},
       .path = "gpulet.preflight.enabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "check idle GPUs before they are offered",
       .assign = [](Config& c, const Value& v) { c.gpulet.preflight.enabled = bool_value(v); }},
      {.flag = "preflight-when",
       .environment = {"GPULET_PREFLIGHT_WHEN"},
       .path = "gpulet.preflight.when",
       .kind = Kind::kChoices,
       .choices = preflight::kOccasionNames,
       .default_text = "boot,return",
       .help = "after the node's boot; after a fault",
       .assign =
           [](Config& c, const Value& v) {
             auto& policy = c.gpulet.preflight;
             policy.at_boot = policy.on_return = false;
             for (const auto& item : list_value(v))
               (item == preflight::kOccasionNames[0] ? policy.at_boot : policy.on_return) = true;
           }},
      {.flag = "preflight-checks",
       .environment = {"GPULET_PREFLIGHT_CHECKS"},
       .path = "gpulet.preflight.checks",
       .kind = Kind::kChoices,
       .choices = preflight::kCheckNames,
       .default_text = "memory,compute,host-copy,peer-copy",
       .help = "what is checked",
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.preflight.checks.clear();
             for (const auto& item : list_value(v))
               c.gpulet.preflight.checks.push_back(
                   enum_value<preflight::Check>(item, preflight::kCheckNames));
           }},
  };
}

}  // namespace

std::vector<Setting> preflight_settings() {
  auto rows = preflight_choices();
  std::vector<Setting> limits = {
      {.flag = "preflight-memory-mib",
       .environment = {"GPULET_PREFLIGHT_MEMORY_MIB"},
       .path = "gpulet.preflight.memoryMib",
       .kind = Kind::kUnsigned,
       .default_text = "4096",
       .help = "of each GPU to check",
       .bounds = Setting::Bounds{64, 1'048'576},
       .assign = [](Config& c, const Value& v) { c.gpulet.preflight.memory_mib = preflight_number(v); }},
      {.flag = "preflight-timeout",
       .environment = {"GPULET_PREFLIGHT_TIMEOUT"},
       .path = "gpulet.preflight.timeout",
       .kind = Kind::kDuration,
       .default_text = "30s",
       .help = "of one run on a GPU",
       .bounds = Setting::Bounds{10'000,  // a start of CUDA on a large machine is no hang
                                 kMostPreflightTime},
       .assign = [](Config& c, const Value& v) { c.gpulet.preflight.timeout = duration_value(v); }},
      {.flag = "preflight-retry-interval",
       .environment = {"GPULET_PREFLIGHT_RETRY_INTERVAL"},
       .path = "gpulet.preflight.retryInterval",
       .kind = Kind::kDuration,
       .default_text = "10m",
       .help = "between checks of a failed GPU",
       .bounds = Setting::Bounds{1000, kMostRetryInterval},
       .assign = [](Config& c, const Value& v) { c.gpulet.preflight.retry_interval = duration_value(v); }},
  };
  for (auto& row : limits) rows.push_back(std::move(row));
  return rows;
}

}  // namespace gpulet::config
