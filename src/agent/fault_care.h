// What the cluster hears of the GPUs' health, and what becomes of the Pods on a broken one: joins
// fault_telling (the node), fault_pods (who holds what), pod_news (the Pods) and fault_moving (who leaves).
// There is one where there is an API server. It never blocks: everything waits in bounded queues of its own,
// and an API server that is slow, away or refuses delays nothing but what it is told.
// Rights, each for what needs it: docs/remediation.md.
#pragma once

#include <memory>

#include "agent/fault_moving.h"
#include "agent/fault_pods.h"
#include "agent/fault_telling.h"
#include "agent/pod_news.h"
#include "base/loop.h"
#include "cluster/access.h"
#include "cluster/events.h"
#include "cluster/pod_notes.h"
#include "cluster/reader.h"
#include "config/faults.h"
#include "health/view.h"

namespace gpulet::agent {

struct FaultCarePorts {
  Loop& loop;
  cluster::Access access;
  // Who holds which device, from the kubelet; from the loop, and not from inside the call.
  std::function<void(std::function<void(Result<std::vector<kubelet::ContainerDevices>>)>)> holders;
};

struct FaultCareTiming {
  FaultTellingTiming node;
  cluster::EventTiming events;
  cluster::SendTiming notes;
  cluster::EvictionTiming eviction;
  Duration read_limit = std::chrono::seconds(10);
};

// Loop's thread only.
class FaultCare {
 public:
  FaultCare(FaultCarePorts ports, config::FaultSettings settings, std::uint64_t seed,
            FaultCareTiming timing = {});

  // After every round that changed a standing, and once after the first reading. Nothing is told before.
  void on_health(health::ViewPtr view);
  // A changed config.
  void apply(config::FaultSettings settings);

  const FaultMoving& moving() const { return moving_; }

 private:
  void update();
  void on_pods();
  void share(std::function<void(Result<ClusterShare>)> done);
  FaultMovingPorts moving_ports();

  FaultCarePorts ports_;
  config::FaultSettings settings_;
  FaultCareTiming timing_;
  health::ViewPtr view_;
  std::unique_ptr<cluster::Reader> reader_;
  // Not the one of the node's own events: what is refused for Pods must not hold these back.
  std::unique_ptr<cluster::EventSender> events_;
  std::unique_ptr<cluster::PodNotes> notes_;
  FaultTelling telling_;
  FaultPods pods_;
  PodNews news_;
  FaultMoving moving_;
};

}  // namespace gpulet::agent
