#include <string>

#include "base/text.h"
#include "config/config.h"
#include "config/gpulet_settings.h"
#include "config/schema.h"

namespace gpulet::config {
namespace {

constexpr std::uint64_t kMostCooldown = 86'400'000, kMostResetTimeout = 1'800'000;  // milliseconds

std::vector<Setting> reset_settings() {
  return {
      {.flag = "repair-reset",
       .environment = {"GPULET_REPAIR_RESET"},
       .path = "gpulet.repair.reset.enabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "reset a GPU whose fault a reset ends, once nothing holds it",
       .assign = [](Config& c, const Value& v) { c.gpulet.repair.reset.enabled = bool_value(v); }},
      {.flag = "repair-reset-dry-run",
       .environment = {"GPULET_REPAIR_RESET_DRY_RUN"},
       .path = "gpulet.repair.reset.dryRun",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "only report which GPUs would be reset",
       .assign = [](Config& c, const Value& v) { c.gpulet.repair.reset.dry_run = bool_value(v); }},
      {.flag = "repair-reset-max-attempts",
       .environment = {"GPULET_REPAIR_RESET_MAX_ATTEMPTS"},
       .path = "gpulet.repair.reset.maxAttempts",
       .kind = Kind::kUnsigned,
       .default_text = "2",
       .help = "resets of a GPU in a day",
       .bounds = Setting::Bounds{1, 100},
       .assign =
           [](Config& c, const Value& v) {
             c.gpulet.repair.reset.max_attempts =
                 static_cast<unsigned>(text::parse_unsigned(text_value(v)).value_or(0));
           }},
      {.flag = "repair-reset-cooldown",
       .environment = {"GPULET_REPAIR_RESET_COOLDOWN"},
       .path = "gpulet.repair.reset.cooldown",
       .kind = Kind::kDuration,
       .default_text = "5m",
       .help = "between two resets of a GPU",
       .bounds = Setting::Bounds{1000, kMostCooldown},
       .assign = [](Config& c, const Value& v) { c.gpulet.repair.reset.cooldown = duration_value(v); }},
      {.flag = "repair-reset-timeout",
       .environment = {"GPULET_REPAIR_RESET_TIMEOUT"},
       .path = "gpulet.repair.reset.timeout",
       .kind = Kind::kDuration,
       .default_text = "2m",
       .help = "of nvidia-smi; no GPU is read meanwhile",
       .bounds = Setting::Bounds{1000, kMostResetTimeout},
       .assign = [](Config& c, const Value& v) { c.gpulet.repair.reset.timeout = duration_value(v); }},
  };
}

std::vector<Setting> reboot_request_settings() {
  return {
      {.flag = "repair-reboot-request",
       .environment = {"GPULET_REPAIR_REBOOT_REQUEST"},
       .path = "gpulet.repair.rebootRequest.enabled",
       .kind = Kind::kBool,
       .default_text = "false",
       .help = "request a reboot where no reset ends a fault; none is done",
       .assign = [](Config& c, const Value& v) { c.gpulet.repair.reboot_request.enabled = bool_value(v); }},
      {.flag = "repair-reboot-request-condition",
       .environment = {"GPULET_REPAIR_REBOOT_REQUEST_CONDITION"},
       .path = "gpulet.repair.rebootRequest.condition",
       .kind = Kind::kBool,
       .default_text = "true",
       .help = "set the Node condition GpuRebootRequired",
       .assign = [](Config& c, const Value& v) { c.gpulet.repair.reboot_request.condition = bool_value(v); }},
      {.flag = "repair-reboot-request-annotation",
       .environment = {"GPULET_REPAIR_REBOOT_REQUEST_ANNOTATION"},
       .path = "gpulet.repair.rebootRequest.annotation",
       .default_text = "gpulet.io/reboot-required",
       .help = "annotation of the Node, with the value true (empty: none)",
       .assign = [](Config& c,
                    const Value& v) { c.gpulet.repair.reboot_request.annotation = text_value(v); }},
      {.flag = "repair-reboot-request-sentinel-file",
       .environment = {"GPULET_REPAIR_REBOOT_REQUEST_SENTINEL_FILE"},
       .path = "gpulet.repair.rebootRequest.sentinelFile",
       .default_text = "",
       .help = "file, as kured's --reboot-sentinel (empty: none)",
       .assign = [](Config& c,
                    const Value& v) { c.gpulet.repair.reboot_request.sentinel_file = text_value(v); }},
  };
}

}  // namespace

std::vector<Setting> repair_settings() {
  auto rows = reset_settings();
  for (auto& row : reboot_request_settings()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace gpulet::config
