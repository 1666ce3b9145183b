#include "agent/plugin/pod_choices.h"

#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "scheduler/core/extender_json.h"
#include "scheduler/core/unit_check.h"
#include "scheduler/model/limit_demand.h"

namespace gpulet::agent {
namespace {

using device_plugin::OfferPtr;
using device_plugin::PodDemand;
using scheduler::RejectReason;

// What a list of Pods may take; the call that waits for it goes on after device_plugin::kDemandTimeout.
constexpr Duration kListLimit = std::chrono::seconds(1);

// The field of the Pod that a unit does not satisfy.
std::string constraint_field(RejectReason reason, const scheduler::PodRequest& pod,
                             const scheduler::ContainerRequest& container, const scheduler::NodeGpu& gpu,
                             const scheduler::GpuModel& model, std::size_t index) {
  switch (reason) {
    case RejectReason::kModel:
      return "annotation gpulet.io/gpu-model";
    case RejectReason::kMemory:
      return container.memory_source.empty() ? "annotation gpulet.io/gpu-memory" : container.memory_source;
    case RejectReason::kCompute:
      return "annotation gpulet.io/gpu-compute";
    case RejectReason::kSelector:
      return "annotation gpulet.io/gpu-selector";
    case RejectReason::kChoice: {
      const auto* const unmet = scheduler::find_unmet_condition(
          pod.constraints.choice, {.uuid = gpu.uuid, .model = model.name, .index = index, .numa = gpu.numa});
      return "annotation " + (unmet == nullptr ? std::string() : unmet->annotation);
    }
    default:
      return std::string(scheduler::reject_reason_name(reason));
  }
}

void add_refused(const scheduler::PodRequest& pod, const scheduler::ContainerRequest& container,
                 const scheduler::GpuNode& node, const partition::Resource& offered, PodDemand& demand) {
  const auto resource = std::ranges::find(node.resources, offered.name, &scheduler::NodeResource::name);
  const auto memory = pod.memory_of(container);
  std::map<std::pair<std::size_t, std::optional<std::size_t>>, std::size_t>
      unit_of;  // as the node counts them
  for (const auto& device : offered.devices) {
    if (!pod.request_error.empty()) {
      demand.refused[device.id] = pod.request_error;
      continue;
    }
    const auto index = unit_of.try_emplace({device.gpu, device.mig}, unit_of.size()).first->second;
    if (resource == node.resources.end() || index >= resource->units.size()) continue;
    const auto& unit = resource->units[index];
    const auto reason = scheduler::check_unit(pod, node, *resource, unit, memory);
    if (reason == RejectReason::kNone) {
      if (auto unmet = scheduler::find_unmet_demand(pod, container.name, node, *resource, unit)) {
        demand.refused[device.id] = "annotation " + std::string(fraction::kMinGradeAnnotation) + ": GPU " +
                                    std::to_string(unit.gpu) + " " + *unmet;
      }
      continue;
    }
    const auto& model = node.unit_model(unit);
    const auto& gpu = node.gpus[unit.gpu];
    demand.refused[device.id] =
        constraint_field(reason, pod, container, gpu, model, unit.gpu) + ": expected " +
        scheduler::describe_constraint(reason, pod, node, unit, memory) + ", found GPU " +
        std::to_string(unit.gpu) + " (" + model.name + ", " + gpu.uuid + ")";
  }
}

}  // namespace

std::optional<scheduler::PodRequest> parse_waiting_pod(std::string_view object) {
  auto pod = scheduler::parse_pod(object);
  if (!pod || pod->containers.empty() || pod->finished) return std::nullopt;
  const auto document = parse_json(object);
  if (!json_text(json_member(json_member(document, "status"), "startTime")).empty()) return std::nullopt;
  return std::move(*pod);
}

std::vector<PodDemand> make_pod_demands(const scheduler::PodRequest& pod, const scheduler::GpuNode& node,
                                        std::span<const OfferPtr> offers) {
  const bool is_restricted =
      pod.constraints.has_any() || !pod.greatest_memory().is_zero() || !pod.request_error.empty() ||
      pod.limit_demand.least != fraction::LimitGrade::kNone;
  std::vector<PodDemand> demands;
  for (const auto& container : pod.containers) {
    for (const auto& device : container.devices) {
      const auto offer = std::ranges::find_if(
          offers, [&](const OfferPtr& one) { return one->resource.name == device.resource; });
      if (offer == offers.end()) continue;
      auto& demand = demands.emplace_back(PodDemand{.pod_uid = pod.uid,
                                                    .pod = pod.pod_key(),
                                                    .container = container.name,
                                                    .resource = device.resource,
                                                    .count = device.count,
                                                    .shares_on = pod.constraints.choice.shares_on,
                                                    .one_numa_node = pod.constraints.choice.one_numa_node});
      if (is_restricted) add_refused(pod, container, node, (*offer)->resource, demand);
    }
  }
  return demands;
}

PodChoices::PodChoices(PodChoicePorts ports)
    : ports_(std::move(ports)),
      pods_(k8s::NodePods::start_node_pods(ports_.loop, ports_.access, kListLimit)) {}

void PodChoices::list_demands(std::function<void(Result<std::vector<PodDemand>>)> done) {
  const auto waiting = std::make_shared<std::vector<scheduler::PodRequest>>();
  pods_->list_pods({.on_pending_pod =
                        [waiting](std::string_view object) {
                          if (auto pod = parse_waiting_pod(object)) waiting->push_back(std::move(*pod));
                        }},
                   [this, waiting, done = std::move(done)](const Result<std::vector<PodRef>>& listed) {
                     if (!listed) return done(fail(listed.error()));
                     std::vector<PodDemand> demands;
                     const auto node = ports_.node();
                     if (!node) return done(demands);
                     const auto offers = ports_.offers();
                     for (const auto& pod : *waiting) {
                       auto of_pod = make_pod_demands(pod, *node, offers);
                       std::ranges::move(of_pod, std::back_inserter(demands));
                     }
                     done(std::move(demands));
                   });
}

}  // namespace gpulet::agent
