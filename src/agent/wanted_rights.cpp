#include "agent/wanted_rights.h"

#include <algorithm>
#include <utility>

namespace gpulet::agent {
namespace {

class List {
 public:
  void add(cluster::Right right, const std::string& without) {
    const auto same = std::ranges::find(wanted_, right, &WantedRight::right);
    if (same == wanted_.end()) {
      wanted_.push_back({std::move(right), without});
    } else {
      same->without += "; " + without;
    }
  }
  std::vector<WantedRight> take() && { return std::move(wanted_); }

 private:
  std::vector<WantedRight> wanted_;
};

bool outputs(const config::LabelSettings& labels, config::LabelOutput output) {
  return std::ranges::find(labels.outputs, output) != labels.outputs.end();
}

}  // namespace

std::vector<WantedRight> wanted_rights(const config::Config& config, const cluster::Access& access,
                                       bool in_pod) {
  const auto& own = config.gpulet;
  const auto& faults = own.faults;
  const auto node = [&](const char* verb, const char* resource = "nodes") {
    return cluster::Right{.verb = verb, .resource = resource, .name = access.node_name};
  };
  List list;
  for (const char* const verb : {"create", "patch"}) {
    list.add({.verb = verb, .resource = "events"}, "events are not written");
  }
  for (const char* const verb : {"list", "watch"}) {
    list.add(node(verb), "the node's labels that choose its config and its MIG layout are not followed");
  }
  if (in_pod) {
    const char* const without = "Pods may fail that are bound to the node while its agent is replaced";
    list.add(node("get"), without);
    list.add(node("patch", "nodes/status"), without);
  }
  if (faults.condition) {
    list.add(node("get"), "the condition GpuHealthy is not written");
    list.add(node("patch", "nodes/status"), "the condition GpuHealthy is not written");
  }
  if (outputs(own.labels, config::LabelOutput::kNode)) {
    list.add(node("get"), "the node is not labelled");
    list.add(node("patch"), "the node is not labelled");
  }
  if (faults.label) list.add(node("patch"), "the label gpulet.io/gpu-health is not written");
  if (!faults.taints.empty()) {
    list.add(node("get"), "the taint of a fault is not set");
    list.add(node("patch"), "the taint of a fault is not set");
  }
  if (faults.pod_events)
    list.add({.verb = "get", .resource = "pods"},
             "Pods that hold a GPU with a fault are not told by an event");
  if (faults.pod_notes) {
    for (const char* const verb : {"get", "patch"})
      list.add({.verb = verb, .resource = "pods"}, "Pods that hold a GPU with a fault have no annotation");
  }
  if (own.metrics.pod_labels)
    list.add({.verb = "get", .resource = "pods"}, "metrics are without the Pods' labels");
  if (faults.moving.enabled) {
    const char* const stays = "Pods stay on a GPU with a fault";
    list.add({.verb = "get", .resource = "pods"}, stays);
    list.add({.verb = "create", .resource = "pods/eviction"}, stays);
    list.add({.verb = "get", .resource = "namespaces"},
             "a namespace's gpulet.io/on-gpu-fault is not read, and its Pods stay");
    if (faults.cluster_percent != 0)
      list.add({.verb = "list", .resource = "nodes"},
               "gpulet.faults.moving.clusterPercent cannot be counted, and Pods stay");
  }
  if (own.mig.drain) {
    for (const auto& [verb, resource] : {std::pair{"get", "pods"}, {"create", "pods/eviction"}})
      list.add({.verb = verb, .resource = resource},
               "Pods in the way of a MIG layout stay, and it waits for them");
  }
  if (const auto colon = own.metrics.counters_config_map.find(':'); colon != std::string::npos) {
    for (const char* const verb : {"list", "watch"})
      list.add({.verb = verb,
                .resource = "configmaps",
                .name_space = own.metrics.counters_config_map.substr(0, colon),
                .name = own.metrics.counters_config_map.substr(colon + 1)},
               "the counters of gpulet.metrics.countersConfigMap are not read");
  }
  if (outputs(own.labels, config::LabelOutput::kNodeFeature)) {
    for (const char* const verb : {"get", "create", "update"})
      list.add({.verb = verb,
                .resource = "nodefeatures",
                .group = "nfd.k8s-sigs.io",
                .name_space = access.pod_namespace},
               "the node's NodeFeature is not written");
  }
  if (own.publish_node) {
    const char* const without =
        "`gpulet scheduler` knows nothing of this node (gpulet.publishNode: false where there is none)";
    list.add(node("get"), without);
    for (const char* const verb : {"create", "patch"})
      list.add({.verb = verb, .resource = "gpunodes", .group = "gpulet.io", .name = access.node_name},
               without);
  }
  return std::move(list).take();
}

}  // namespace gpulet::agent
