#include "scheduler/core/mig_demand_planner.h"

#include <algorithm>
#include <deque>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "scheduler/core/extender_json.h"

namespace gpulet::scheduler {
namespace {

constexpr std::size_t kMaxNamedNodes = 3;

// Whether kube-scheduler's message, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", names the
// resource.
bool names_insufficient(const std::string& message, const ResourceName& resource) {
  const std::string wanted = "Insufficient " + resource.str();
  for (auto at = message.find(wanted); at != std::string::npos; at = message.find(wanted, at + 1)) {
    const std::string_view rest = std::string_view(message).substr(at + wanted.size());
    // "mig-1g.10gb" is not "mig-1g.10gb.me".
    if (rest.empty() || rest == "." || rest[0] == ',' || rest[0] == ' ' || rest.starts_with(". "))
      return true;
  }
  return false;
}

bool is_short_of(std::string_view object, const ResourceName& resource) {
  const auto pod = parse_json(object);
  const auto& conditions = json_member(json_member(pod, "status"), "conditions");
  if (!conditions.is_array()) return false;
  return std::ranges::any_of(conditions, [&](const auto& condition) {
    return json_text(json_member(condition, "type")) == "PodScheduled" &&
           json_text(json_member(condition, "status")) == "False" &&
           json_text(json_member(condition, "reason")) == "Unschedulable" &&
           names_insufficient(json_text(json_member(condition, "message")), resource);
  });
}

std::string creation_time(std::string_view object) {
  return json_text(json_member(json_member(parse_json(object), "metadata"), "creationTimestamp"));
}

// What is left of each node while Pods are given to them.
class DemandAssigner {
 public:
  DemandAssigner(const std::map<std::string, MigSupply>& nodes,
                 const std::set<std::pair<std::string, std::string>>& refused)
      : refused_(refused) {
    for (const auto& [name, supply] : nodes) {
      auto& node = nodes_.emplace_back(Node{&name, {}, 0});
      for (const auto& request : supply.recorded.requests) {
        for (const auto& pod : request.pods) recorded_.emplace(std::pair(pod, request.resource), name);
      }
      std::set<ResourceName> resources;
      for (const auto& [resource, count] : supply.free) resources.insert(resource);
      for (const auto& one : supply.offer.resources) resources.insert(one.name);
      for (const auto& resource : resources) {
        const auto free = supply.free.find(resource);
        candidates_[resource].push_back(
            {&node, supply.offer.find(resource), free == supply.free.end() ? 0 : free->second});
      }
    }
  }

  void assign_pod(const WaitingPod& pod) {
    auto& candidates = candidates_[pod.resource];
    if (const auto found = recorded_.find({pod.pod, pod.resource}); found != recorded_.end()) {
      const auto it =
          std::ranges::find(candidates, found->second, [](const Candidate& one) { return *one.node->name; });
      if (it != candidates.end() && can_offer(*it, pod)) return request_from(*it, pod);
    }
    for (auto& one : candidates) {
      if (one.free < pod.count || is_refused(one, pod)) continue;
      one.free -= pod.count;
      one.taken += pod.count;
      return;
    }
    Candidate* best = nullptr;
    for (auto& one : candidates) {
      if ((best == nullptr || one.node->pods < best->node->pods) && can_offer(one, pod)) best = &one;
    }
    if (best != nullptr) return request_from(*best, pod);
    note_unmet(pod, candidates);
  }

  MigDemandPlan take_plan() && { return std::move(plan_); }

 private:
  struct Node {
    const std::string* name = nullptr;
    std::map<ResourceName, std::size_t> requests;  // index in the plan
    unsigned pods = 0;                             // that it is asked for
  };
  // A node for one resource.
  struct Candidate {
    Node* node = nullptr;
    const MigOffer::Resource* offer = nullptr;  // null: it has free ones only
    unsigned free = 0, taken = 0;
  };

  bool is_refused(const Candidate& one, const WaitingPod& pod) const {
    return !refused_.empty() && refused_.contains({pod.pod, *one.node->name});
  }
  bool can_offer(const Candidate& one, const WaitingPod& pod) const {
    return one.offer != nullptr && one.taken + pod.count <= one.offer->count && !is_refused(one, pod);
  }

  void request_from(Candidate& one, const WaitingPod& pod) {
    one.taken += pod.count;
    one.free -= std::min(one.free, pod.count);
    ++one.node->pods;
    auto& requests = plan_.requests[*one.node->name];
    const auto [index, is_new] = one.node->requests.try_emplace(pod.resource, requests.size());
    if (is_new) requests.push_back({pod.resource, 0, {}});
    auto& request = requests[index->second];
    request.count += pod.count;
    if (request.pods.size() < kMaxDemandPods) request.pods.push_back(pod.pod);
    plan_.node_of[pod.pod] = *one.node->name;
  }

  void note_unmet(const WaitingPod& pod, const std::vector<Candidate>& candidates) {
    std::string why;
    std::size_t named = 0, more = 0;
    for (const auto& one : candidates) {
      if (one.offer == nullptr) continue;
      if (named == kMaxNamedNodes) {
        ++more;
        continue;
      }
      ++named;
      why += (why.empty() ? "" : "; ") + *one.node->name + ": ";
      why += is_refused(one, pod)     ? "the Pod was not scheduled there"
             : one.offer->why.empty() ? "others wait for it"
                                      : one.offer->why;
    }
    if (more > 0) why += "; and " + std::to_string(more) + " nodes more";
    if (!why.empty()) plan_.unmet[pod.pod] = std::move(why);
  }

  const std::set<std::pair<std::string, std::string>>& refused_;
  std::deque<Node> nodes_;                                                // by name; addresses stay
  std::map<ResourceName, std::vector<Candidate>> candidates_;             // by the node's name
  std::map<std::pair<std::string, ResourceName>, std::string> recorded_;  // node, by Pod and resource
  MigDemandPlan plan_;
};

}  // namespace

std::optional<WaitingPod> parse_waiting_pod(std::string_view object) {
  const auto pod = parse_pod(object);
  if (!pod || !pod->node.empty() || !pod->nominated_node.empty() || pod->leaving || pod->finished)
    return std::nullopt;
  WaitingPod waiting{pod->pod_key(), pod->uid, {}, 0, {}};
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
  if (waiting.count == 0 || waiting.count > kMaxDemandedDevices || !is_short_of(object, waiting.resource))
    return std::nullopt;
  waiting.created = creation_time(object);
  return waiting;
}

MigDemandPlan plan_mig_demand(std::span<const WaitingPod> pods, const std::map<std::string, MigSupply>& nodes,
                              const std::set<std::pair<std::string, std::string>>& refused) {
  DemandAssigner assigner(nodes, refused);
  for (const auto& pod : pods) assigner.assign_pod(pod);
  return std::move(assigner).take_plan();
}

}  // namespace gpulet::scheduler
