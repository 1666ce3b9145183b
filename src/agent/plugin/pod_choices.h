// What the annotations of Pods accept of this node's devices (gpulet.podChoices), for Allocate and
// GetPreferredAllocation: the Pods that are bound to this node and that the kubelet has not admitted yet,
// listed when it asks for devices. The predicate is the scheduler's own check_unit().
//
// Source: kubelet v1.36: Pods are admitted one at a time; status.startTime is set once a Pod is admitted. A
// static Pod is in the API only afterwards.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "device_plugin/allocation.h"
#include "device_plugin/plugin_host.h"
#include "k8s/node_pods.h"
#include "scheduler/model/gpu_node.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::agent {

// The Pod if the kubelet may ask for its devices; nullopt: it has been admitted, has ended or needs none.
// Pure.
std::optional<scheduler::PodRequest> parse_waiting_pod(std::string_view object);

// What the Pod's containers request of the offers. `node` was built of the same offers; what it does not have
// is accepted. Pure.
std::vector<device_plugin::PodDemand> make_pod_demands(const scheduler::PodRequest& pod,
                                                       const scheduler::GpuNode& node,
                                                       std::span<const device_plugin::OfferPtr> offers);

struct PodChoicePorts {
  Loop& loop;
  k8s::ClientConfig access;
  std::function<std::optional<scheduler::GpuNode>()> node;  // nullopt: not known yet
  std::function<std::vector<device_plugin::OfferPtr>()> offers;
};

// Needs list on pods. Loop's thread only. The callback of list_demands() comes once, from the loop, unless
// this is destroyed.
class PodChoices {
 public:
  explicit PodChoices(PodChoicePorts ports);
  void list_demands(std::function<void(Result<std::vector<device_plugin::PodDemand>>)> done);

 private:
  const PodChoicePorts ports_;
  std::unique_ptr<k8s::NodePods> pods_;
};

}  // namespace gpulet::agent
