// An API server with the Node "node-1" and the Pods of a storm: what is evicted and which Events there are.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/node_api.h"

namespace gpulet::storm {

// All Pods are in the namespace "default" and have a controller. Every member may be called from any thread.
class ClusterApi {
 public:
  // Writes its kubeconfig() into `directory`.
  explicit ClusterApi(const std::string& directory);

  const std::string& kubeconfig() const { return node_.kubeconfig(); }
  void set_node_label(const std::string& key, const std::string& value) { node_.set_label(key, value); }

  void add_pod(const std::string& name);
  void delete_pod(const std::string& name);
  // Whether an eviction of that Pod was accepted. A deleted Pod is remembered.
  bool is_evicted(const std::string& name);
  std::set<std::string> evicted_pods();
  // The reasons of the Events about that Pod, in the order of their arrival.
  std::vector<std::string> event_reasons(const std::string& name);

 private:
  std::optional<k8s::TestApiServer::Reply> reply_to(const k8s::Received& request);
  k8s::TestApiServer::Reply pod_reply(const std::string& name);
  k8s::TestApiServer::Reply evict_pod(const std::string& name);
  void record_event(const std::string& body);

  std::mutex mutex_;
  std::map<std::string, bool> pods_;  // name → terminating
  std::set<std::string> evicted_;
  std::map<std::string, std::vector<std::string>> reasons_;
  tests::NodeApi node_;  // last: its threads use the others
};

}  // namespace gpulet::storm
