#include "agent/observe/power_status.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace gpulet::agent {
namespace {

std::optional<MilliWatts> shown_milliwatts(const nlohmann::json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > UINT32_MAX) return std::nullopt;
  return MilliWatts{value.get<std::uint32_t>()};
}

}  // namespace

nlohmann::ordered_json power_status_json(const std::vector<GpuPowerStatus>& statuses) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const auto& status : statuses) {
    Json item = {{"gpu", status.gpu.str()}};
    if (status.limit) item["limit"] = status.limit->value;
    if (status.enforced) item["enforced"] = status.enforced->value;
    if (!status.source.empty()) item["source"] = status.source;
    if (!status.problems.empty()) item["problems"] = status.problems;
    list.push_back(std::move(item));
  }
  return list;
}

std::vector<GpuPowerStatus> parse_power_status(const nlohmann::json& node) {
  std::vector<GpuPowerStatus> statuses;
  const auto& list = json_member(node, "power");
  if (!list.is_array()) return statuses;
  for (const auto& item : list) {
    GpuPowerStatus status{.gpu = DeviceUuid(json_text(json_member(item, "gpu")))};
    if (status.gpu.empty()) continue;
    status.limit = shown_milliwatts(json_member(item, "limit"));
    status.enforced = shown_milliwatts(json_member(item, "enforced"));
    status.source = json_text(json_member(item, "source"));
    const auto& problems = json_member(item, "problems");
    if (problems.is_array()) {
      for (const auto& problem : problems) status.problems.push_back(json_text(problem));
    }
    statuses.push_back(std::move(status));
  }
  return statuses;
}

}  // namespace gpulet::agent
