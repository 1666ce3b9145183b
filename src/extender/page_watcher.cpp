#include "extender/page_watcher.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "extender/api_requests.h"
#include "k8s/objects.h"
#include "scheduler/core/extender_json.h"

namespace gpulet::extender {
namespace {

using nlohmann::json;

// Source: Kubernetes API v1, Node: field selectors.
constexpr const char* kCordoned = "fieldSelector=spec.unschedulable%3Dtrue";
constexpr const char* kPodsPath = "/api/v1/pods";
constexpr const char* kPodsPermission = "list and watch on pods";

std::string pod_key(std::string_view object) {
  return k8s::metadata_string(object, "namespace") + "/" + k8s::metadata_string(object, "name");
}

std::uint16_t http_port(const json& spec) {
  const json& containers = json_member(spec, "containers");
  if (!containers.is_array()) return kAgentPort;
  for (const auto& container : containers) {
    const json& ports = json_member(container, "ports");
    if (!ports.is_array()) continue;
    for (const auto& port : ports) {
      const json& number = json_member(port, "containerPort");
      if (json_text(json_member(port, "name")) == "http" && number.is_number_unsigned() &&
          number.get<std::uint64_t>() <= 65'535)
        return number.get<std::uint16_t>();
    }
  }
  return kAgentPort;
}

}  // namespace

bool has_condition(const json& status, std::string_view type) {
  const json& conditions = json_member(status, "conditions");
  return conditions.is_array() && std::ranges::any_of(conditions, [&](const json& one) {
           return json_text(json_member(one, "type")) == type &&
                  json_text(json_member(one, "status")) == "True";
         });
}

std::optional<AgentPod> parse_agent_pod(std::string_view object) {
  const json pod = parse_json(object);
  const json &spec = json_member(pod, "spec"), &status = json_member(pod, "status");
  AgentPod agent{.node = json_text(json_member(spec, "nodeName")),
                 .address = json_text(json_member(status, "podIP")),
                 .port = http_port(spec),
                 .ready = has_condition(status, "Ready")};
  const auto phase = json_text(json_member(status, "phase"));
  if (agent.node.empty() || phase == "Succeeded" || phase == "Failed") return std::nullopt;
  return agent;
}

void PageFacts::set_pending(scheduler::PodRequest pod) {
  std::string key = pod.pod_key();
  if (pending_.size() >= kMaxPendingPods && !pending_.contains(key)) {
    if (left_out_.size() < kMaxPendingPods) left_out_.insert(std::move(key));
    return;
  }
  left_out_.erase(key);
  pending_[std::move(key)] = std::move(pod);
}

void PageFacts::remove_pending(const std::string& key) {
  pending_.erase(key);
  left_out_.erase(key);
}

std::vector<std::string> PageFacts::pending_keys() const {
  std::vector<std::string> keys(left_out_.begin(), left_out_.end());
  for (const auto& [key, pod] : pending_) keys.push_back(key);
  return keys;
}

void PageFacts::set_agent(const std::string& key, AgentPod agent) {
  if (agents_.size() >= kMaxAgentPods && !agents_.contains(key)) return;
  remove_agent(key);
  agents_of_[agent.node].insert(key);
  agents_[key] = std::move(agent);
}

void PageFacts::remove_agent(const std::string& key) {
  const auto found = agents_.find(key);
  if (found == agents_.end()) return;
  const auto of_node = agents_of_.find(found->second.node);
  of_node->second.erase(key);
  if (of_node->second.empty()) agents_of_.erase(of_node);
  agents_.erase(found);
}

std::vector<std::string> PageFacts::agent_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, agent] : agents_) keys.push_back(key);
  return keys;
}

const AgentPod* PageFacts::find_agent(const std::string& node) const {
  const auto of_node = agents_of_.find(node);
  if (of_node == agents_of_.end()) return nullptr;
  const AgentPod* best = nullptr;
  for (const auto& key : of_node->second) {
    const AgentPod& agent = agents_.at(key);
    if (best == nullptr || (agent.ready && !best->ready)) best = &agent;
  }
  return best;
}

void PageFacts::set_cordoned(const std::string& node) {
  if (cordoned_.size() < kMaxCordonedNodes) cordoned_.insert(node);
}

PageWatcher::PageWatcher(Loop& loop, const k8s::ClientConfig& access, k8s::CollectionTiming timing,
                         const std::string& agent_selector)
    : loop_(loop), access_(access), timing_(timing) {
  watch_collection(pending_, {.path = kPodsPath, .query = kUnboundPodsQuery, .permission = kPodsPermission},
                   {.apply =
                        [this](std::string_view object) {
                          auto pod = scheduler::parse_pod(object);
                          if (!pod || pod->containers.empty() || !pod->node.empty()) return std::string();
                          std::string key = pod->pod_key();
                          facts_.set_pending(std::move(*pod));
                          return key;
                        },
                    .key = pod_key,
                    .remove = [this](const std::string& key) { facts_.remove_pending(key); },
                    .keys = [this] { return facts_.pending_keys(); }});
  watch_collection(agents_,
                   {.path = kPodsPath,
                    .query = "labelSelector=" + k8s::encode_query_value(agent_selector),
                    .permission = kPodsPermission},
                   {.apply =
                        [this](std::string_view object) {
                          auto agent = parse_agent_pod(object);
                          if (!agent) return std::string();
                          std::string key = pod_key(object);
                          facts_.set_agent(key, std::move(*agent));
                          return key;
                        },
                    .key = pod_key,
                    .remove = [this](const std::string& key) { facts_.remove_agent(key); },
                    .keys = [this] { return facts_.agent_keys(); }});
  const auto node_name = [](std::string_view object) { return k8s::metadata_string(object, "name"); };
  watch_collection(
      cordoned_, {.path = "/api/v1/nodes", .query = kCordoned, .permission = "list and watch on nodes"},
      {.apply =
           [this, node_name](std::string_view object) {
             std::string name = node_name(object);
             facts_.set_cordoned(name);
             return name;
           },
       .key = node_name,
       .remove = [this](const std::string& name) { facts_.remove_cordoned(name); },
       .keys =
           [this] { return std::vector<std::string>(facts_.cordoned().begin(), facts_.cordoned().end()); }});
}

PageWatcher::~PageWatcher() = default;

void PageWatcher::watch_collection(WatchedCollection& followed, k8s::Collection collection,
                                   CollectionHandlers handlers) {
  const auto shared = std::make_shared<const CollectionHandlers>(std::move(handlers));
  k8s::CollectionEvents events;
  events.on_list_begin = [&followed, shared] {
    const auto keys = shared->keys();
    followed.unlisted = {keys.begin(), keys.end()};
    followed.listing = true;
  };
  events.on_object = [&followed, shared](std::string_view object) {
    const auto key = shared->apply(object);
    if (key.empty()) return shared->remove(shared->key(object));
    if (followed.listing) followed.unlisted.erase(key);
  };
  events.on_deleted = [shared](std::string_view object) { shared->remove(shared->key(object)); };
  events.on_list_end = [&followed, shared] {
    for (const auto& key : std::exchange(followed.unlisted, {})) shared->remove(key);
    followed.listing = false;
  };
  followed.watch = k8s::CollectionWatcher::watch_collection(loop_, access_, std::move(collection), timing_,
                                                            std::move(events));
}

bool PageWatcher::is_synced() const {
  return std::ranges::all_of(std::array{&pending_, &agents_, &cordoned_},
                             [](const auto* followed) { return followed->watch->completed_lists() != 0; });
}

std::vector<std::string> PageWatcher::current_problems() const {
  std::vector<std::string> problems;
  for (const auto* followed : {&pending_, &agents_, &cordoned_}) {
    if (!followed->watch->current_error().empty()) problems.push_back(followed->watch->current_error());
  }
  return problems;
}

}  // namespace gpulet::extender
