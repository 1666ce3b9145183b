// Tells the cluster about GPU faults and evicts Pods from faulty GPUs: joins NodeConditionWriter (condition,
// label, taint), PodDeviceIndex (which Pod holds which device), PodNotifier (Events and annotations of Pods)
// and PodEvictor. It exists only with an API server. It never blocks: everything waits in bounded queues, and
// a slow or refusing API server delays nothing else. Permissions: docs/remediation.md. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/remediation/pod_device_index.h"
#include "agent/remediation/pod_evictor.h"
#include "base/loop.h"
#include "config/gpulet_settings.h"
#include "health/report/node_health.h"
#include "k8s/client_config.h"
#include "k8s/event_recorder.h"
#include "k8s/node_labels.h"
#include "k8s/node_status.h"
#include "k8s/object_reader.h"
#include "k8s/pods.h"

namespace gpulet::agent {

struct NodeConditionTiming {
  k8s::NodeConditionsTiming status;
  k8s::NodeLabelPatchTiming patch;
  k8s::NodeTaintsTiming taints;
};

// Keeps the Node's condition GpuHealthy, label and taint as the settings ask; removes what an earlier run
// left and the settings no longer ask for. Needs get on nodes, and patch on nodes and nodes/status; without
// one of them the others still work. Never blocks; the newest value wins.
class NodeConditionWriter {
 public:
  NodeConditionWriter(Loop& loop, const k8s::ClientConfig& access, const NodeConditionTiming& timing = {});

  void update_node(const health::HealthView& view, const config::FaultSettings& settings);

 private:
  std::unique_ptr<k8s::NodeConditions> status_;
  std::unique_ptr<k8s::NodeLabelPatcher> patch_;
  std::unique_ptr<k8s::NodeTaints> taints_;
  std::optional<bool> condition_;  // the setting as last applied
};

// Notifies the Pods that hold a faulty device: a Kubernetes Event for each change of the fault, and an
// annotation with the current faults, removed when there are none.

struct PodNotifierPorts {
  std::function<void(k8s::Event)> send_event;  // about a Pod
  // Sets the annotation kFaultAnnotation; nullopt removes it.
  std::function<void(const PodRef&, std::optional<std::string>)> annotate;
  // A Pod that was annotated holds no device any more.
  std::function<void(const PodRef&)> forget;
};

struct PodNotifierOptions {
  bool events = true, annotations = false;
};

class PodNotifier {
 public:
  explicit PodNotifier(PodNotifierPorts ports) : ports_(std::move(ports)) {}

  // Call it whenever a device, a Pod or an option has changed. Cost: O(Pods × devices).
  void notify_pods(const health::HealthView& view, const std::vector<HeldPod>& pods,
                   PodNotifierOptions wants);

 private:
  struct Notified {
    std::map<health::Scope, std::string> devices;  // the text of each faulty device
    std::optional<std::string> annotation;         // as it is there, or is to be
  };
  void notify_pod(const PodRef& pod, const health::HealthView& view, const HeldPod& held,
                  PodNotifierOptions wants);

  PodNotifierPorts ports_;
  std::map<PodRef, Notified> notified_;
  std::set<PodRef> annotated_;
};

struct RemediationPorts {
  Loop& loop;
  k8s::ClientConfig access;
  // Which Pod holds which device, from the kubelet. Called back from the loop, not from inside the call.
  std::function<void(std::function<void(Result<std::vector<ContainerDevices>>)>)> holders;
};

struct RemediationTiming {
  NodeConditionTiming node;
  k8s::EventTiming events;
  k8s::SendTiming annotations;
  k8s::EvictionTiming eviction;
  Duration read_limit = std::chrono::seconds(10);
};

// Loop's thread only.
class RemediationController {
 public:
  RemediationController(RemediationPorts ports, config::FaultSettings settings, std::uint64_t seed,
                        RemediationTiming timing = {});

  // After every round that changed a status, and once after the first reading. Nothing is published before.
  void on_health_view(health::HealthViewPtr view);
  void apply_settings(config::FaultSettings settings);

  const PodEvictor& evictor() const { return evictor_; }
  PodEvictor& evictor() { return evictor_; }

 private:
  void update_all();
  void on_pods_changed();
  void count_broken_nodes(std::function<void(Result<ClusterShare>)> done);
  PodEvictorPorts evictor_ports();

  RemediationPorts ports_;
  config::FaultSettings settings_;
  RemediationTiming timing_;
  health::HealthViewPtr view_;
  std::unique_ptr<k8s::ObjectReader> reader_;
  // Separate from the node's own events: a refusal for Pods must not delay those.
  std::unique_ptr<k8s::EventRecorder> events_;
  std::unique_ptr<k8s::PodAnnotations> annotations_;
  NodeConditionWriter condition_writer_;
  PodDeviceIndex pods_;
  PodNotifier notifier_;
  PodEvictor evictor_;
};

}  // namespace gpulet::agent
