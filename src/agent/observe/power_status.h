// What the agent shows of the power limits that it sets (agent/power/power_controller.h): the member "power"
// of /api/node (agent/observe/page_json.h), absent where it sets none. Limits are in milliwatts:
//
//   [{"gpu": "GPU-5a…", "limit": 500000, "enforced": 450000, "source": "schedule", "problems": ["…"]}]
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/types.h"

namespace gpulet::agent {

struct GpuPowerStatus {
  DeviceUuid gpu;
  std::optional<MilliWatts> limit{};     // as last read; nullopt: none is to be set
  std::optional<MilliWatts> enforced{};  // by the driver, if lower
  std::string source{};                  // partition::power_source_name(); empty without a limit
  std::vector<std::string> problems{};   // one line each
  friend bool operator==(const GpuPowerStatus&, const GpuPowerStatus&) = default;
};

nlohmann::ordered_json power_status_json(const std::vector<GpuPowerStatus>& statuses);
// Of /api/node. What is odd is left out. Pure.
std::vector<GpuPowerStatus> parse_power_status(const nlohmann::json& node);

}  // namespace gpulet::agent
