#include "scheduler/core/unit_check.h"

#include <algorithm>

#include "base/cuda_version.h"
#include "base/text.h"

namespace gpulet::scheduler {
namespace {

DeviceAttributes device_attributes(const GpuNode& node, const NodeResource& resource,
                                   const ResourceUnit& unit) {
  const auto& model = node.unit_model(unit);
  return {.model = model.name,
          .architecture = model.architecture,
          .memory_mib = node.unit_memory_mib(unit),
          .compute = std::to_string(model.compute_major) + "." + std::to_string(model.compute_minor),
          .driver = node.driver,
          .cuda = cuda_version_text(node.cuda_version),
          .mig_profile = unit.profile,
          .shares = resource.sharing == Sharing::kNone ? 1 : unit.shares,
          .numa = node.gpus[unit.gpu].numa.value_or(-1)};
}

GpuFacts gpu_facts(const GpuNode& node, const ResourceUnit& unit) {
  const auto& gpu = node.gpus[unit.gpu];
  return {.uuid = gpu.uuid, .model = node.unit_model(unit).name, .index = unit.gpu, .numa = gpu.numa};
}

}  // namespace

std::string format_mib(std::uint64_t mib) {
  return mib % 1024 == 0 ? std::to_string(mib / 1024) + "Gi" : std::to_string(mib) + "Mi";
}

std::string_view reject_reason_name(RejectReason reject_reason) {
  switch (reject_reason) {
    case RejectReason::kNone:
      return "none";
    case RejectReason::kTooFew:
      return "too_few";
    case RejectReason::kDriver:
      return "driver";
    case RejectReason::kModel:
      return "model";
    case RejectReason::kMemory:
      return "memory";
    case RejectReason::kCompute:
      return "compute";
    case RejectReason::kSelector:
      return "selector";
    case RejectReason::kLinks:
      return "links";
    case RejectReason::kNominated:
      return "nominated";
    case RejectReason::kRequest:
      return "request";
    case RejectReason::kChoice:
      return "choice";
    case RejectReason::kLimitGrade:
      return "limit_grade";
  }
  return "none";
}

RejectReason check_unit(const PodRequest& request, const GpuNode& node, const NodeResource& resource,
                        const ResourceUnit& unit, const fraction::MemoryAmount& memory) {
  const Constraints& constraints = request.constraints;
  const auto& model = node.unit_model(unit);
  if (find_unmet_condition(constraints.choice, gpu_facts(node, unit)) != nullptr)
    return RejectReason::kChoice;
  if (!constraints.models.empty() && std::ranges::none_of(constraints.models, [&](const auto& wanted) {
        return matches_model_name(wanted, model.name);
      })) {
    return RejectReason::kModel;
  }
  const auto whole_mib = node.unit_memory_mib(unit);
  if (memory.mib_of(whole_mib) > (unit.share_mib != 0 ? unit.share_mib : whole_mib))
    return RejectReason::kMemory;
  if (constraints.compute > std::pair(model.compute_major, model.compute_minor))
    return RejectReason::kCompute;
  if (!constraints.selector.empty()) {
    const auto attributes = device_attributes(node, resource, unit);
    for (const auto& expression : constraints.selector) {
      if (!matches_expression(expression, attributes)) return RejectReason::kSelector;
    }
  }
  return RejectReason::kNone;
}

std::string describe_constraint(RejectReason reject_reason, const PodRequest& request, const GpuNode& node,
                                const ResourceUnit& unit, const fraction::MemoryAmount& memory) {
  const Constraints& constraints = request.constraints;
  switch (reject_reason) {
    case RejectReason::kModel:
      return text::join(constraints.models, " or ");
    case RejectReason::kMemory:
      return format_mib(memory.mib_of(node.unit_memory_mib(unit))) + " of memory";
    case RejectReason::kCompute:
      return "compute capability " + std::to_string(constraints.compute.first) + "." +
             std::to_string(constraints.compute.second);
    case RejectReason::kSelector: {
      std::string text;
      for (const auto& one : constraints.selector)
        text.append(text.empty() ? "" : ", ").append(one.expression_text());
      return text;
    }
    case RejectReason::kChoice: {
      const auto gpu = gpu_facts(node, unit);
      const auto* const unmet = find_unmet_condition(constraints.choice, gpu);
      if (unmet == nullptr) return {};
      return unmet->condition_text() + (unmet->is_known_of(gpu) ? "" : " (unknown of this GPU)");
    }
    default:
      return {};
  }
}

}  // namespace gpulet::scheduler
