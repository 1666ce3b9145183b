#include "agent/plugin/pod_choices.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "agent/publish/gpu_node_publisher.h"
#include "base/log.h"
#include "scheduler/core/extender_json.h"
#include "scheduler/core/unit_check.h"

namespace gpulet::agent {
namespace {

using device_plugin::OfferPtr;
using device_plugin::PodDemand;

// The devices of the offer that satisfy the container, and what the first of the others lacks.
void add_accepted(const scheduler::PodRequest& pod, const scheduler::ContainerRequest& container,
                  const scheduler::GpuNode& node, const partition::Resource& offered, PodDemand& demand) {
  auto& accepted = demand.accepted.emplace();
  demand.requirement = "another device required";
  if (!pod.request_error.empty()) {
    demand.requirement = pod.request_error;
    return;
  }
  const auto resource = std::ranges::find(node.resources, offered.name, &scheduler::NodeResource::name);
  if (resource == node.resources.end()) return;
  const auto units = unit_indices(offered);
  const auto memory = pod.memory_of(container);
  bool is_explained = false;
  for (std::size_t i = 0; i < offered.devices.size(); ++i) {
    if (units[i] >= resource->units.size()) continue;
    const auto& unit = resource->units[units[i]];
    const auto reason = scheduler::check_unit(pod, node, *resource, unit, memory);
    if (reason == scheduler::RejectReason::kNone) {
      accepted.insert(offered.devices[i].id);
    } else if (!std::exchange(is_explained, true)) {
      demand.requirement = scheduler::describe_constraint(reason, pod, node, unit, memory) + " required";
    }
  }
}

}  // namespace

std::vector<PodDemand> make_pod_demands(const scheduler::PodRequest& pod, const scheduler::GpuNode& node,
                                        std::span<const OfferPtr> offers) {
  const bool is_restricted =
      pod.constraints.has_any() || !pod.greatest_memory().is_zero() || !pod.request_error.empty();
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
                                                    .count = device.count});
      if (is_restricted) add_accepted(pod, container, node, (*offer)->resource, demand);
    }
  }
  return demands;
}

PodChoices::PodChoices(PodChoicePorts ports, PodChoiceTiming timing)
    : ports_(std::move(ports)),
      timing_(timing),
      watcher_(k8s::CollectionWatcher::watch_collection(
          ports_.loop, ports_.access,
          {.path = "/api/v1/pods",
           .query = "fieldSelector=" + k8s::encode_query_value("spec.nodeName=" + ports_.access.node_name +
                                                               ",status.phase=Pending"),
           .permission = "list and watch on pods"},
          timing_.watch,
          {.on_list_begin =
               [this] {
                 is_listing_ = true;
                 pods_.clear();
                 for (auto& [uid, is_seen] : admitted_) is_seen = false;
               },
           .on_object = [this](std::string_view object) { on_pod(object); },
           .on_deleted = [this](std::string_view object) { on_gone(object); },
           .on_list_end =
               [this] {
                 is_listing_ = false;
                 std::erase_if(admitted_, [](const auto& one) { return !one.second; });
                 update_board();
                 refresh_holders();
               }})) {
  on_node_changed();
}

void PodChoices::on_pod(std::string_view object) {
  auto pod = scheduler::parse_pod(object);
  if (!pod || pod->containers.empty() || pod->leaving || pod->finished) return on_gone(object);
  if (const auto known = admitted_.find(pod->uid); known != admitted_.end()) {
    known->second = true;
    return;
  }
  const auto known = pods_.find(pod->uid);
  if (known == pods_.end() && pods_.size() >= kMaxWaitingPods) return;
  const auto arrival = known == pods_.end() ? ++arrivals_ : known->second.arrival;
  auto uid = pod->uid;
  pods_.insert_or_assign(std::move(uid), WaitingPod{std::move(*pod), arrival});
  update_board();
}

void PodChoices::on_gone(std::string_view object) {
  const auto uid = k8s::metadata_string(object, "uid");
  admitted_.erase(uid);
  const auto known = pods_.find(uid);
  if (known == pods_.end()) return;
  known->second.is_waiting = false;
  update_board();
}

void PodChoices::on_node_changed() {
  node_ = ports_.node();
  offers_ = ports_.offers();
  update_board();
}

void PodChoices::schedule_comparison() {
  soon_ = ports_.loop.after(timing_.admission, [this] { refresh_holders(); });
  later_ = ports_.loop.after(timing_.late_admission, [this] { refresh_holders(); });
}

void PodChoices::update_board() {
  // Half a list would take demands off the board, which then forgets that they were met.
  if (!node_ || is_listing_) return;
  std::vector<const WaitingPod*> waiting;
  for (const auto& [uid, pod] : pods_) {
    if (pod.is_waiting) waiting.push_back(&pod);
  }
  std::ranges::sort(waiting, {},
                    [](const WaitingPod* pod) { return std::tie(pod->request.bound_at, pod->arrival); });
  std::vector<PodDemand> demands;
  for (const auto* const pod : waiting) {
    auto of_pod = make_pod_demands(pod->request, *node_, offers_);
    std::ranges::move(of_pod, std::back_inserter(demands));
  }
  ports_.board->set_demands(std::move(demands));
}

void PodChoices::refresh_holders() {
  if (!watcher_->current_error().empty()) set_ready(false);
  ports_.holders([this, alive = lifetime_.watch()](const Result<std::vector<ContainerDevices>>& holders) {
    if (!alive) return;
    if (!holders) {
      log::warning("cannot compare Pods' devices with their annotations", holders.error());
      later_ = ports_.loop.after(timing_.late_admission, [this] { refresh_holders(); });
      return;
    }
    on_holders(*holders);
  });
}

void PodChoices::on_holders(const std::vector<ContainerDevices>& holders) {
  std::map<std::string, std::vector<const ContainerDevices*>> by_pod;
  for (const auto& holder : holders) {
    if (!holder.devices.empty()) by_pod[holder.pod.name_space + "/" + holder.pod.name].push_back(&holder);
  }
  std::erase_if(pods_, [&](const auto& entry) {
    const auto& [uid, pod] = entry;
    const auto held = by_pod.find(pod.request.pod_key());
    if (held == by_pod.end()) return !pod.is_waiting;
    for (const auto* const holder : held->second) compare_devices(pod.request, *holder);
    if (pod.is_waiting) admitted_[uid] = true;
    return true;
  });
  update_board();
  set_ready(!is_listing_ && watcher_->current_error().empty());
}

void PodChoices::set_ready(bool is_ready) {
  if (std::exchange(is_ready_, is_ready) != is_ready) ports_.ready_changed(is_ready);
}

void PodChoices::compare_devices(const scheduler::PodRequest& pod, const ContainerDevices& holder) {
  if (!node_) return;
  for (const auto& demand : make_pod_demands(pod, *node_, offers_)) {
    const auto held = holder.devices.find(demand.resource);
    if (!demand.accepted || demand.container != holder.container || held == holder.devices.end()) continue;
    const auto other = std::ranges::find_if(
        held->second, [&](const DeviceId& id) { return !demand.accepted->contains(id); });
    if (other == held->second.end()) continue;
    ports_.violated({pod.name_space, pod.name, pod.uid}, "container " + demand.container + " was allocated " +
                                                             other->str() + ": " + demand.requirement +
                                                             "; create the Pod again");
    return;
  }
}

}  // namespace gpulet::agent
