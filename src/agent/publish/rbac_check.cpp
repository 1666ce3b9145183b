#include "agent/publish/rbac_check.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace gpulet::agent {
namespace {

class PermissionList {
 public:
  void add_permission(k8s::Permission right, const std::string& without) {
    const auto same = std::ranges::find(required_, right, &RequiredPermission::permission);
    if (same == required_.end()) {
      required_.push_back({std::move(right), without});
    } else {
      same->consequence += "; " + without;
    }
  }
  std::vector<RequiredPermission> take_all() && { return std::move(required_); }

 private:
  std::vector<RequiredPermission> required_;
};

bool add_label_outputs(const config::LabelSettings& labels, config::LabelOutput output) {
  return std::ranges::find(labels.outputs, output) != labels.outputs.end();
}

// What is done to Pods, and read of them for that.
void add_pod_permissions(const config::GpuletSettings& own, PermissionList& list) {
  const auto& faults = own.faults;
  if (faults.pod_events)
    list.add_permission({.verb = "get", .resource = "pods"}, "Pods that hold a faulty GPU get no Event");
  if (faults.pod_annotations) {
    for (const char* const verb : {"get", "patch"})
      list.add_permission({.verb = verb, .resource = "pods"},
                          "Pods that hold a faulty GPU get no annotation");
  }
  if (own.metrics.pod_labels)
    list.add_permission({.verb = "get", .resource = "pods"}, "metrics lack Pod labels");
  if (faults.eviction.enabled) {
    const char* const stays = "Pods are not evicted from a faulty GPU";
    list.add_permission({.verb = "get", .resource = "pods"}, stays);
    list.add_permission({.verb = "create", .resource = "pods/eviction"}, stays);
    list.add_permission(
        {.verb = "get", .resource = "namespaces"},
        "the annotation gpulet.io/on-gpu-fault of namespaces is not read, and their Pods stay");
    if (faults.max_unhealthy_nodes_percent != 0)
      list.add_permission({.verb = "list", .resource = "nodes"},
                          "gpulet.faults.eviction.maxUnhealthyNodesPercent cannot be checked, and Pods stay");
  }
  if (faults.delete_rejected_pods) {
    for (const char* const verb : {"list", "watch", "delete"})
      list.add_permission({.verb = verb, .resource = "pods"},
                          "Pods that the kubelet rejected are not deleted");
  }
  if (own.power.pod_annotation && !own.power.rules.empty())
    list.add_permission({.verb = "get", .resource = "pods"}, "power limits that Pods ask for do not count");
  if (own.pod_choices)
    list.add_permission({.verb = "list", .resource = "pods"},
                        "Pods may get GPUs that their annotations do not accept");
  if (own.rebalance.enabled) {
    const char* const stays = "no Pod is evicted from a hot GPU";
    list.add_permission({.verb = "get", .resource = "pods"}, stays);
    if (!own.rebalance.dry_run) list.add_permission({.verb = "create", .resource = "pods/eviction"}, stays);
    list.add_permission({.verb = "get", .resource = "namespaces"}, stays);
  }
  using enum config::ExceededAction;
  const auto exceeded = own.fraction.on_exceeded;
  if (own.fraction.driver_limits)
    list.add_permission({.verb = "get", .resource = "pods"},
                        "memory limits of Pods are not known, and no container with a GPU starts");
  else if (exceeded != kNone)
    list.add_permission({.verb = "get", .resource = "pods"}, "memory limits of Pods are not known, nor held");
  // Clients of MPS are not killed: their Pods are evicted.
  if (exceeded == kKill || exceeded == kEvict)
    list.add_permission({.verb = "create", .resource = "pods/eviction"},
                        "Pods above their memory limit are not evicted");
}

}  // namespace

std::vector<k8s::Permission> gpu_node_permissions(const std::string& node_name) {
  std::vector<k8s::Permission> rights = {{.verb = "get", .resource = "nodes", .name = node_name}};
  for (const char* const verb : {"create", "patch"})
    rights.push_back({.verb = verb, .resource = "gpunodes", .group = "gpulet.io", .name = node_name});
  return rights;
}

std::vector<RequiredPermission> required_permissions(const config::Config& config,
                                                     const k8s::ClientConfig& access, bool in_pod) {
  const auto& own = config.gpulet;
  const auto& faults = own.faults;
  const auto node = [&](const char* verb, const char* resource = "nodes") {
    return k8s::Permission{.verb = verb, .resource = resource, .name = access.node_name};
  };
  PermissionList list;
  for (const char* const verb : {"create", "patch"}) {
    list.add_permission({.verb = verb, .resource = "events"}, "events are not written");
  }
  for (const char* const verb : {"list", "watch"}) {
    list.add_permission(node(verb), "the node labels for config and MIG layout are not watched");
  }
  if (in_pod) {
    const char* const without = "Pods bound to the node while its agent is replaced may fail";
    list.add_permission(node("get"), without);
    list.add_permission(node("patch", "nodes/status"), without);
  }
  if (faults.condition) {
    list.add_permission(node("get"), "the condition GpuHealthy is not written");
    list.add_permission(node("patch", "nodes/status"), "the condition GpuHealthy is not written");
  }
  if (add_label_outputs(own.labels, config::LabelOutput::kNode)) {
    list.add_permission(node("get"), "the node is not labelled");
    list.add_permission(node("patch"), "the node is not labelled");
  }
  if (faults.label) list.add_permission(node("patch"), "the label gpulet.io/gpu-health is not written");
  if (!faults.taints.empty()) {
    list.add_permission(node("get"), "the fault taint is not set");
    list.add_permission(node("patch"), "the fault taint is not set");
  }
  if (const auto& request = own.repair.reboot_request; request.enabled) {
    const char* const without = "the reboot of the node for a GPU is not requested";
    if (request.condition) {
      list.add_permission(node("get"), without);
      list.add_permission(node("patch", "nodes/status"), without);
    }
    if (!request.annotation.empty()) list.add_permission(node("patch"), without);
  }
  if (!own.startup_taint.empty()) {
    for (const char* const verb : {"get", "patch"})
      list.add_permission(node(verb), "the startup taint stays, and no Pod comes to the node");
  }
  add_pod_permissions(own, list);
  if (own.dra.enabled) {
    list.add_permission({.verb = "get", .resource = "resourceclaims", .group = "resource.k8s.io"},
                        "no claim is prepared");
    list.add_permission({.verb = "get", .resource = "pods"},
                        "claims that share a GPU or have several Pods are not prepared");
    list.add_permission(node("get"), "GPUs that the device plugin may still offer are not offered by claims");
    for (const char* const verb : {"list", "watch", "create", "update", "delete"})
      list.add_permission({.verb = verb, .resource = "resourceslices", .group = "resource.k8s.io"},
                          "the GPUs are not offered by claims");
  }
  if (own.mig.drain) {
    for (const auto& [verb, resource] : {std::pair{"get", "pods"}, {"create", "pods/eviction"}})
      list.add_permission({.verb = verb, .resource = resource},
                          "Pods that block a MIG layout are not evicted; the layout waits for them");
  }
  if (const auto colon = own.metrics.counters_config_map.find(':'); colon != std::string::npos) {
    for (const char* const verb : {"list", "watch"})
      list.add_permission({.verb = verb,
                           .resource = "configmaps",
                           .name_space = own.metrics.counters_config_map.substr(0, colon),
                           .name = own.metrics.counters_config_map.substr(colon + 1)},
                          "the counters of gpulet.metrics.countersConfigMap are not read");
  }
  if (add_label_outputs(own.labels, config::LabelOutput::kNodeFeature)) {
    for (const char* const verb : {"get", "create", "update"})
      list.add_permission({.verb = verb,
                           .resource = "nodefeatures",
                           .group = "nfd.k8s-sigs.io",
                           .name_space = access.pod_namespace},
                          "the node's NodeFeature is not written");
  }
  // Unset, the GpuNode is published where the rights are there (gpu_node_access.h).
  if (own.publish_gpu_node == true) {
    for (auto& right : gpu_node_permissions(access.node_name))
      list.add_permission(std::move(right), "`gpulet scheduler` does not see this node");
  }
  return std::move(list).take_all();
}

namespace {

bool contains_permission(const std::vector<k8s::Permission>& rights, const k8s::Permission& right) {
  return std::ranges::find(rights, right) != rights.end();
}

}  // namespace

RbacCheck::RbacCheck(Loop& loop, k8s::ClientConfig access, bool in_pod, Duration again,
                     k8s::SendTiming timing)
    : loop_(loop),
      access_(std::move(access)),
      in_pod_(in_pod),
      interval_(again),
      review_(k8s::AccessReview::start_review(
          loop, access_, [this](const auto& refused) { on_review(refused); }, timing)) {}

void RbacCheck::check_config(const config::Config& config) {
  auto wanted = required_permissions(config, access_, in_pod_);
  if (wanted == required_) return;
  required_ = std::move(wanted);
  review_permissions();
}

std::optional<std::size_t> RbacCheck::missing_permissions() const {
  return refused_ ? std::optional(refused_->size()) : std::nullopt;
}

void RbacCheck::review_permissions() {
  next_.reset();
  std::vector<k8s::Permission> rights;
  rights.reserve(required_.size());
  for (const auto& wanted : required_) rights.push_back(wanted.permission);
  review_->review_permissions(std::move(rights));
}

void RbacCheck::on_review(const std::vector<k8s::Permission>& refused) {
  const auto before = refused_.value_or(std::vector<k8s::Permission>());
  refused_ = refused;
  for (const auto& [right, without] : required_) {
    const bool was = contains_permission(before, right), is = contains_permission(refused, right);
    if (is && !was)
      log::warning("missing RBAC permission", {{"right", right.permission_text()}, {"without", without}});
    if (was && !is) log::info("RBAC permission granted", {{"right", right.permission_text()}});
  }
  if (!refused.empty()) next_ = loop_.after(interval_, [this] { review_permissions(); });
}

}  // namespace gpulet::agent
