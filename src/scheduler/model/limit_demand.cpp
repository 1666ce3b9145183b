#include "scheduler/model/limit_demand.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace gpulet::scheduler {
namespace {

using fraction::LimitGrade;

std::string demand_text(LimitGrade least) {
  return "the Pod demands " + std::string(fraction::limit_grade_name(least));
}

}  // namespace

void read_limit_demand(std::string_view value, const nlohmann::json& pod,
                       const fraction::PodFields& fields, PodRequest& request) {
  const auto least = fraction::parse_min_grade(value);
  if (!least) {
    if (request.request_error.empty()) request.request_error = least.error().message();
    return;
  }
  auto& demand = request.limit_demand;
  demand.least = *least;
  const auto requests =
      fraction::parse_fraction_requests(fields).value_or(std::vector<fraction::FractionRequest>());
  for (auto& access : fraction::parse_container_access(pod)) {
    // Also of a container without a GPU: one that can set limits sets those of others.
    for (const auto& cap : fraction::check_container_rules(access, false)) {
      if (cap.highest >= demand.least || !request.request_error.empty()) continue;
      request.request_error = cap.reason + ", so that no limit has a higher grade than " +
                              std::string(fraction::limit_grade_name(cap.highest)) + "; annotation " +
                              std::string(fraction::kMinGradeAnnotation) + " demands " + std::string(value);
    }
    const auto limit = std::ranges::find(requests, access.name, &fraction::FractionRequest::container);
    demand.containers.push_back(
        {std::move(access), limit == requests.end() ? fraction::MemoryAmount{} : limit->memory_limit});
  }
}

std::optional<std::string> find_unmet_demand(const PodRequest& request, std::string_view container,
                                             const GpuNode& node, const NodeResource& resource,
                                             const ResourceUnit& unit) {
  const auto least = request.limit_demand.least;
  const bool is_shared = resource.sharing != Sharing::kNone || unit.shares > 1;
  if (least == LimitGrade::kNone || !is_shared) return std::nullopt;
  auto means = node.memory_limit;
  means.mps_process_mib = unit.share_mib;
  if (!unit.profile.empty()) {
    means.has_driver_limit = means.ends_excess = false;
    means.no_driver_limit = "the driver has no limits for MIG devices";
    means.no_audit = "MIG devices are not audited";
  }
  const auto& known = request.limit_demand.containers;
  const auto found = std::ranges::find(
      known, container, [](const GradedContainer& one) -> std::string_view { return one.access.name; });
  // What was not read breaks every rule.
  const auto graded = found != known.end() ? *found : GradedContainer{{.is_privileged = true}, {}};
  const auto caps = fraction::check_container_rules(graded.access, resource.sharing == Sharing::kMps);
  const auto grade =
      fraction::grade_of_container(graded.limit.mib_of(node.unit_memory_mib(unit)), means, caps);
  if (grade.grade >= least) return std::nullopt;
  std::string text =
      grade.grade == LimitGrade::kNone
          ? "does not limit GPU memory"
          : "limits GPU memory " + std::string(fraction::limit_means_text(grade.grade));
  text += "; " + demand_text(least);
  const auto reason = std::ranges::find_if(
      grade.reasons, [&](const fraction::GradeCap& cap) { return cap.highest < least; });
  return reason == grade.reasons.end() ? text : text + ": " + reason->reason;
}

std::optional<std::string> find_unmet_demand(const PodRequest& request, const GpuNode& node) {
  if (request.limit_demand.least == LimitGrade::kNone) return std::nullopt;
  for (const auto& container : request.containers) {
    for (const auto& device : container.devices) {
      const auto resource = std::ranges::find(node.resources, device.resource, &NodeResource::name);
      if (resource == node.resources.end()) continue;
      for (const auto& unit : resource->units) {
        if (auto unmet = find_unmet_demand(request, container.name, node, *resource, unit)) return unmet;
      }
    }
  }
  return std::nullopt;
}

}  // namespace gpulet::scheduler
