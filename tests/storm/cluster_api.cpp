#include "tests/storm/cluster_api.h"

#include <nlohmann/json.hpp>

namespace gpulet::storm {
namespace {

using nlohmann::json;
using Reply = k8s::TestApiServer::Reply;

constexpr std::string_view kNamespace = "/api/v1/namespaces/default";
constexpr std::string_view kEvictionSuffix = "/eviction";

Reply not_found() { return {404, R"({"kind":"Status"})"}; }

}  // namespace

ClusterApi::ClusterApi(const std::string& directory)
    : node_(directory, [this](const auto& request) { return reply_to(request); }) {}

void ClusterApi::add_pod(const std::string& name) {
  const std::lock_guard lock(mutex_);
  pods_[name] = false;
}

void ClusterApi::delete_pod(const std::string& name) {
  const std::lock_guard lock(mutex_);
  pods_.erase(name);
}

bool ClusterApi::is_evicted(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return evicted_.contains(name);
}

std::set<std::string> ClusterApi::evicted_pods() {
  const std::lock_guard lock(mutex_);
  return evicted_;
}

std::vector<std::string> ClusterApi::event_reasons(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = reasons_.find(name);
  return found == reasons_.end() ? std::vector<std::string>() : found->second;
}

std::optional<Reply> ClusterApi::reply_to(const k8s::Received& request) {
  const std::string line = request.line();
  const auto space = line.find(' ');
  const std::string method = line.substr(0, space);
  std::string_view path = std::string_view(line).substr(space + 1);
  if (!path.starts_with(kNamespace)) return std::nullopt;
  path.remove_prefix(kNamespace.size());
  if (path.empty()) return Reply{200, R"({"metadata":{"name":"default"}})"};
  constexpr std::string_view kEvents = "/events", kPods = "/pods/";
  if (path.starts_with(kEvents)) {
    if (method == "POST") record_event(request.body);
    return Reply{method == "POST" ? 201 : 200, R"({"metadata":{"name":"event"}})"};
  }
  if (!path.starts_with(kPods)) return std::nullopt;
  std::string name(path.substr(kPods.size()));
  const std::lock_guard lock(mutex_);
  if (name.ends_with(kEvictionSuffix)) return evict_pod(name.substr(0, name.size() - kEvictionSuffix.size()));
  return pod_reply(name);
}

Reply ClusterApi::pod_reply(const std::string& name) {
  const auto pod = pods_.find(name);
  if (pod == pods_.end()) return not_found();
  json metadata = {{"name", name},
                   {"namespace", "default"},
                   {"uid", name},
                   {"ownerReferences", json::array({{{"kind", "ReplicaSet"}, {"controller", true}}})}};
  if (pod->second) metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z";
  return {200, json{{"metadata", metadata}, {"spec", {{"nodeName", "node-1"}}}}.dump()};
}

Reply ClusterApi::evict_pod(const std::string& name) {
  const auto pod = pods_.find(name);
  if (pod == pods_.end()) return not_found();
  pod->second = true;
  evicted_.insert(name);
  return {201, R"({"kind":"Status","status":"Success"})"};
}

void ClusterApi::record_event(const std::string& body) {
  const auto event = json::parse(body, nullptr, false);
  if (!event.is_object() || !event.contains("involvedObject")) return;
  const auto& object = event["involvedObject"];
  if (object.value("kind", "") != "Pod") return;
  const std::lock_guard lock(mutex_);
  reasons_[object.value("name", "")].push_back(event.value("reason", ""));
}

}  // namespace gpulet::storm
