#include "agent/observe/limit_status.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace gpulet::agent {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxGradedContainers = 4096;  // that are read
constexpr std::size_t kMaxListedReasons = 64;       // likewise, of each

std::vector<std::string> read_reasons(const json& list) {
  std::vector<std::string> reasons;
  if (!list.is_array()) return reasons;
  for (const auto& one : list) {
    auto reason = json_text(one);
    if (!reason.empty() && reasons.size() < kMaxListedReasons) reasons.push_back(std::move(reason));
  }
  return reasons;
}

}  // namespace

nlohmann::ordered_json limit_status_json(const MemoryLimitStatus& status) {
  nlohmann::ordered_json object = {
      {"grade", status.grade}, {"reasons", status.reasons}, {"containers", json::array()}};
  for (const auto& one : status.containers) {
    object["containers"].push_back({{"namespace", one.pod.name_space},
                                    {"pod", one.pod.name},
                                    {"container", one.container},
                                    {"gpu", one.gpu.str()},
                                    {"limit", one.limit.value},
                                    {"grade", one.grade},
                                    {"reasons", one.reasons}});
  }
  if (!status.no_compute_limit.empty()) object["no_compute_limit"] = status.no_compute_limit;
  return object;
}

std::optional<MemoryLimitStatus> parse_limit_status(const json& node) {
  const auto& object = json_member(node, "memory_limit");
  MemoryLimitStatus status{.grade = json_text(json_member(object, "grade"))};
  status.reasons = read_reasons(json_member(object, "reasons"));
  status.no_compute_limit = json_text(json_member(object, "no_compute_limit"));
  const auto& containers = json_member(object, "containers");
  for (const auto& one : containers.is_array() ? containers : json::array()) {
    const auto& limit = json_member(one, "limit");
    auto grade = json_text(json_member(one, "grade"));
    if (grade.empty() || status.containers.size() == kMaxGradedContainers) continue;
    status.containers.push_back(
        {.gpu = DeviceUuid(json_text(json_member(one, "gpu"))),
         .pod = {json_text(json_member(one, "namespace")), json_text(json_member(one, "pod"))},
         .container = json_text(json_member(one, "container")),
         .limit = Bytes{limit.is_number_unsigned() ? limit.get<std::uint64_t>() : 0},
         .grade = std::move(grade),
         .reasons = read_reasons(json_member(one, "reasons"))});
  }
  if (status.grade.empty() && status.containers.empty()) return std::nullopt;
  return status;
}

}  // namespace gpulet::agent
