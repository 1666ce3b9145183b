#include "scheduler/core/mig_demand_planner.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "scheduler/core/extender_json.h"

namespace gpulet::scheduler {
namespace {

constexpr std::size_t kMaxNamedNodes = 3;

bool is_unschedulable(std::string_view object) {
  const auto pod = parse_json(object);
  const auto& conditions = json_member(json_member(pod, "status"), "conditions");
  if (!conditions.is_array()) return false;
  return std::ranges::any_of(conditions, [](const auto& condition) {
    return json_text(json_member(condition, "type")) == "PodScheduled" &&
           json_text(json_member(condition, "status")) == "False" &&
           json_text(json_member(condition, "reason")) == "Unschedulable";
  });
}

// What is left of each node while Pods are given to them.
class DemandAssigner {
 public:
  DemandAssigner(const std::map<std::string, MigSupply>& nodes,
                 const std::set<std::pair<std::string, std::string>>& refused)
      : nodes_(nodes), refused_(refused) {
    for (const auto& [name, supply] : nodes) {
      for (const auto& [resource, count] : supply.free) free_[{name, resource}] = count;
      for (const auto& request : supply.recorded.requests) {
        for (const auto& pod : request.pods) recorded_.emplace(std::pair(pod, request.resource), name);
      }
    }
  }

  void assign_pod(const WaitingPod& pod) {
    if (const auto found = recorded_.find({pod.pod, pod.resource}); found != recorded_.end()) {
      if (can_offer(found->second, pod)) return request_from(found->second, pod);
    }
    for (const auto& [name, supply] : nodes_) {
      auto free = free_.find({name, pod.resource});
      if (free == free_.end() || free->second < pod.count || refused_.contains({pod.pod, name})) continue;
      free->second -= pod.count;
      taken_[{name, pod.resource}] += pod.count;
      return;
    }
    const std::string* best = nullptr;
    for (const auto& [name, supply] : nodes_) {
      if (can_offer(name, pod) && (best == nullptr || pods_[name] < pods_[*best])) best = &name;
    }
    if (best != nullptr) return request_from(*best, pod);
    note_unmet(pod);
  }

  MigDemandPlan take_plan() && { return std::move(plan_); }

 private:
  bool can_offer(const std::string& name, const WaitingPod& pod) {
    const auto node = nodes_.find(name);
    if (node == nodes_.end() || refused_.contains({pod.pod, name})) return false;
    const auto* offer = node->second.offer.find(pod.resource);
    return offer != nullptr && taken_[{name, pod.resource}] + pod.count <= offer->count;
  }

  void request_from(const std::string& name, const WaitingPod& pod) {
    taken_[{name, pod.resource}] += pod.count;
    if (auto free = free_.find({name, pod.resource}); free != free_.end())
      free->second -= std::min(free->second, pod.count);
    ++pods_[name];
    auto& requests = plan_.requests[name];
    auto request = std::ranges::find(requests, pod.resource, &MigDemand::Request::resource);
    if (request == requests.end()) request = requests.insert(requests.end(), {pod.resource, 0, {}});
    request->count += pod.count;
    request->pods.push_back(pod.pod);
    plan_.node_of[pod.pod] = name;
  }

  void note_unmet(const WaitingPod& pod) {
    std::string why;
    std::size_t named = 0, more = 0;
    for (const auto& [name, supply] : nodes_) {
      const auto* offer = supply.offer.find(pod.resource);
      if (offer == nullptr) continue;
      if (named == kMaxNamedNodes) {
        ++more;
        continue;
      }
      ++named;
      why += (why.empty() ? "" : "; ") + name + ": ";
      why += refused_.contains({pod.pod, name}) ? "the Pod was not scheduled there"
             : offer->why.empty()               ? "others wait for it"
                                                : offer->why;
    }
    if (more > 0) why += "; and " + std::to_string(more) + " nodes more";
    if (!why.empty()) plan_.unmet[pod.pod] = std::move(why);
  }

  const std::map<std::string, MigSupply>& nodes_;
  const std::set<std::pair<std::string, std::string>>& refused_;
  std::map<std::pair<std::string, ResourceName>, unsigned> free_, taken_;  // by node and resource
  std::map<std::pair<std::string, ResourceName>, std::string> recorded_;   // node, by Pod and resource
  std::map<std::string, unsigned> pods_;                                   // by node
  MigDemandPlan plan_;
};

}  // namespace

std::optional<WaitingPod> parse_waiting_pod(std::string_view object) {
  const auto pod = parse_pod(object);
  if (!pod || !pod->node.empty() || !pod->nominated_node.empty() || pod->leaving || pod->finished)
    return std::nullopt;
  WaitingPod waiting{pod->pod_key(), pod->uid, {}, 0};
  unsigned running = 0, starting = 0;
  for (const auto& container : pod->containers) {
    for (const auto& device : container.devices) {
      if (!waiting.resource.empty() && waiting.resource != device.resource) return std::nullopt;
      waiting.resource = device.resource;
      if (device.count > kMaxDemandedDevices) return std::nullopt;
      if (container.kind == ContainerRequest::Kind::kInit) {
        starting = std::max(starting, device.count);
      } else {
        running += device.count;
      }
    }
  }
  waiting.count = std::max(running, starting);
  if (waiting.count == 0 || waiting.count > kMaxDemandedDevices || !is_unschedulable(object))
    return std::nullopt;
  return waiting;
}

MigDemandPlan plan_mig_demand(std::span<const WaitingPod> pods, const std::map<std::string, MigSupply>& nodes,
                              const std::set<std::pair<std::string, std::string>>& refused) {
  DemandAssigner assigner(nodes, refused);
  for (const auto& pod : pods) assigner.assign_pod(pod);
  return std::move(assigner).take_plan();
}

}  // namespace gpulet::scheduler
