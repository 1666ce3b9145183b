#include "agent/remediation/rejected_pods.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "k8s/object_reader.h"

namespace gpulet::agent {

using nlohmann::json;

namespace {

constexpr const char* kUnexpectedError = "UnexpectedAdmissionError";
constexpr const char* kOutOf = "OutOf";

// Why the kubelet rejected a Pod; empty: it did not. Where the Pod's processes had ended with code 0 before,
// as at a shutdown, the kubelet calls it Succeeded and gives no reason: nothing else does so to a Pod whose
// containers are always restarted.
std::string rejection_reason(const json& pod) {
  const auto& status = json_member(pod, "status");
  const auto phase = json_text(json_member(status, "phase"));
  if (phase == "Succeeded")
    return json_text(json_member(json_member(pod, "spec"), "restartPolicy")) == "Always" ? kUnexpectedError
                                                                                         : "";
  auto reason = json_text(json_member(status, "reason"));
  return phase == "Failed" && (reason == kUnexpectedError || reason.starts_with(kOutOf)) ? reason : "";
}

}  // namespace

std::optional<RejectedPod> parse_rejected_pod(const json& pod, const std::string& node) {
  const auto reason = rejection_reason(pod);
  if (reason.empty()) return std::nullopt;
  const auto metadata = k8s::parse_pod_metadata(pod, node);
  if (!metadata || !*metadata) return std::nullopt;
  const auto& facts = **metadata;
  if (facts.owner.empty() || facts.owner == "DaemonSet" || facts.mirror || facts.terminating)
    return std::nullopt;
  RejectedPod rejected{.pod = facts.pod, .created = facts.created, .reason = reason, .resources = {}};
  for (const auto& container : facts.containers) {
    for (const auto& [resource, count] : container.limits) {
      if (count != "0") rejected.resources.insert(resource);
    }
  }
  return rejected;
}

bool is_rejection_over(const RejectedPod& pod, const OfferedResources& offered) {
  bool was_missing = false;
  for (const auto& resource : pod.resources) {
    const auto found = offered.find(resource);
    if (found == offered.end()) continue;
    if (!found->second) return false;
    was_missing = was_missing || pod.reason == kUnexpectedError || pod.reason == kOutOf + resource;
  }
  return was_missing;
}

RejectedPodDeleter::RejectedPodDeleter(RejectedPodPorts ports, RejectedPodTiming timing)
    : ports_(std::move(ports)),
      timing_(timing),
      node_pods_(k8s::NodePods::start_node_pods(ports_.loop, ports_.access)),
      watcher_(k8s::CollectionWatcher::watch_collection(
          ports_.loop, ports_.access,
          {.path = "/api/v1/pods",
           .query =
               "fieldSelector=" + k8s::encode_query_value("spec.nodeName=" + ports_.access.node_name +
                                                          ",status.phase!=Pending,status.phase!=Running"),
           .permission = "list and watch on pods"},
          timing_.watch,
          {.on_list_begin =
               [this] {
                 pods_.clear();
                 asked_.clear();
               },
           .on_object = [this](std::string_view object) { on_pod(object); },
           .on_deleted = [this](std::string_view object) { on_deleted(object); }})) {}

void RejectedPodDeleter::on_pod(std::string_view object) {
  auto pod = parse_rejected_pod(parse_json(object), ports_.access.node_name);
  if (!pod) return on_deleted(object);
  if (asked_.contains(pod->pod.uid) || (pods_.size() >= kMaxRejectedPods && !pods_.contains(pod->pod.uid)))
    return;
  pods_.insert_or_assign(pod->pod.uid, std::move(*pod));
  schedule_attempt();
}

void RejectedPodDeleter::on_deleted(std::string_view object) {
  const auto uid = k8s::metadata_string(object, "uid");
  pods_.erase(uid);
  asked_.erase(uid);
}

void RejectedPodDeleter::schedule_attempt() {
  if (next_ || is_deleting_) return;
  next_ = ports_.loop.after(timing_.interval, [this] {
    next_.reset();
    delete_next();
  });
}

bool RejectedPodDeleter::is_limit_reached() {
  while (!deletions_.empty() && ports_.loop.now() - deletions_.front() >= timing_.window)
    deletions_.pop_front();
  return deletions_.size() >= timing_.deletions;
}

void RejectedPodDeleter::delete_next() {
  const RejectedPod* oldest = nullptr;
  const auto offered = ports_.offered();
  for (const auto& [uid, pod] : pods_) {
    if (is_rejection_over(pod, offered) && (oldest == nullptr || pod.created < oldest->created))
      oldest = &pod;
  }
  if (oldest == nullptr || is_limit_reached()) {
    if (!pods_.empty()) schedule_attempt();
    return;
  }
  is_deleting_ = true;
  deletions_.push_back(ports_.loop.now());
  node_pods_->delete_pods({oldest->pod}, [this, pod = *oldest](const Status& status) {
    is_deleting_ = false;
    if (status) {
      logged_error_.clear();
      pods_.erase(pod.pod.uid);
      asked_.insert(pod.pod.uid);
      ports_.deleted(pod);
    } else if (std::exchange(logged_error_, status.error().full_message()) != status.error().full_message()) {
      log::warning("cannot delete a rejected Pod", status.error());
    }
    if (!pods_.empty()) schedule_attempt();
  });
}

}  // namespace gpulet::agent
