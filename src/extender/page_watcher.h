// Follows what the cluster page shows beside the cluster state: Pods that wait for a node, the agents' Pods,
// and cordoned nodes, by lists and watches of the API server. Runs only where the page is served. Needs list
// and watch on pods and nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/loop.h"
#include "k8s/client_config.h"
#include "k8s/watcher.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::extender {

inline constexpr const char* kAgentSelector = "app.kubernetes.io/name=gpulet";  // as the chart labels agents
inline constexpr std::uint16_t kAgentPort = 9400;                               // of an agent that names none
// Of each collection; further objects are counted.
inline constexpr std::size_t kMaxPendingPods = 5'000;
inline constexpr std::size_t kMaxAgentPods = 20'000;
inline constexpr std::size_t kMaxCordonedNodes = 20'000;

// The Pod of an agent.
struct AgentPod {
  std::string node;
  std::string address;  // numeric; empty until assigned
  std::uint16_t port = kAgentPort;
  bool ready = false;
  friend bool operator==(const AgentPod&, const AgentPod&) = default;
};

// Parses a Pod object of the API server. Pure. A port named "http" is the agent's; `ready` is its condition.
// nullopt for what is no Pod, is not bound or has finished.
std::optional<AgentPod> parse_agent_pod(std::string_view object);

// Whether `status` of a Pod or Node has this condition: "Ready". Source: Kubernetes API v1, PodCondition,
// NodeCondition.
bool has_condition(const nlohmann::json& status, std::string_view type);

// What the page shows beside the cluster state. A Pod's key is "namespace/name". One thread.
class PageFacts {
 public:
  // Beyond kMaxPendingPods only counted.
  void set_pending(scheduler::PodRequest pod);
  void remove_pending(const std::string& key);
  const std::map<std::string, scheduler::PodRequest>& pending() const { return pending_; }
  std::size_t pending_left_out() const { return left_out_.size(); }

  void set_agent(const std::string& key, AgentPod agent);
  void remove_agent(const std::string& key);
  std::vector<std::string> agent_keys() const;
  // The node's agent, a ready one if there are several; null: none.
  const AgentPod* find_agent(const std::string& node) const;
  // Whether the cluster has agents that run as Pods. Those of hosts' services are not seen.
  bool has_agents() const { return !agents_.empty(); }

  void set_cordoned(const std::string& node);
  void remove_cordoned(const std::string& node) { cordoned_.erase(node); }
  const std::set<std::string>& cordoned() const { return cordoned_; }

  std::vector<std::string> pending_keys() const;

 private:
  std::map<std::string, scheduler::PodRequest> pending_;
  std::set<std::string> left_out_;
  std::map<std::string, AgentPod> agents_;
  std::map<std::string, std::set<std::string>> agents_of_;  // keys in agents_ by node
  std::set<std::string> cordoned_;
};

// Loop thread only.
class PageWatcher {
 public:
  PageWatcher(Loop& loop, const k8s::ClientConfig& access, k8s::CollectionTiming timing = {},
              const std::string& agent_selector = kAgentSelector);
  ~PageWatcher();
  PageWatcher(const PageWatcher&) = delete;

  const PageFacts& facts() const { return facts_; }
  // Whether each list has been complete once.
  bool is_synced() const;
  // Current problems, one line each.
  std::vector<std::string> current_problems() const;

 private:
  struct WatchedCollection {
    std::unique_ptr<k8s::CollectionWatcher> watch;
    std::set<std::string> unlisted;  // keys that the current list has not had yet
    bool listing = false;
  };
  struct CollectionHandlers {
    std::function<std::string(std::string_view)> apply;  // returns the key; empty: shows nothing
    std::function<std::string(std::string_view)> key;
    std::function<void(const std::string&)> remove;
    std::function<std::vector<std::string>()> keys;
  };
  void watch_collection(WatchedCollection& followed, k8s::Collection collection, CollectionHandlers handlers);

  Loop& loop_;
  const k8s::ClientConfig access_;
  const k8s::CollectionTiming timing_;
  PageFacts facts_;
  WatchedCollection pending_, agents_, cordoned_;
};

}  // namespace gpulet::extender
