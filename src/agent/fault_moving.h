// Carries out what health/moving.h decides: asks Pods on broken devices to leave, one request for each, and
// goes on asking as long as the API server does not take it (a PodDisruptionBudget) and the device is not
// well. Off by default.
//
// What was asked and is not taken yet is decided anew each time: a device that is well again, a changed
// policy or annotation, or a second GPU that breaks, ends the asking. What was taken is not taken back.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/fault_pods.h"
#include "base/loop.h"
#include "cluster/eviction.h"
#include "health/moving.h"
#include "health/view.h"

namespace gpulet::agent {

// What is held back is decided again after so long.
inline constexpr Duration kHoldAgain = std::chrono::seconds(30);
// The share of the cluster counts for so long.
inline constexpr Duration kShareFresh = kHoldAgain;

struct ClusterShare {
  std::size_t nodes = 0, broken = 0;  // that tell of their GPUs' health; of these, with a device withdrawn
};

// What is told of one Pod: a Kubernetes event about it, a warning, and a line in the log.
struct MovingNews {
  cluster::PodRef pod;
  std::string reason;   // CamelCase: "GpuFaultEviction"
  std::string message;  // one line
  friend bool operator==(const MovingNews&, const MovingNews&) = default;
};

struct FaultMovingPorts {
  Loop& loop;
  // Asks one Pod to leave (cluster/eviction.h); null where there is no API server.
  std::function<std::unique_ptr<cluster::Eviction>(const cluster::PodRef& pod, cluster::Eviction::News news)>
      evict;
  std::function<void(std::function<void(Result<ClusterShare>)>)> share;
  std::function<void(const MovingNews&)> tell;
};

struct FaultMovingPolicy {
  health::MovingPolicy node;
  // Faults on more than this share of the cluster's nodes are no fault of single GPUs: nobody is moved. One
  // node is never too many. 0: not asked.
  unsigned cluster_percent = 0;
};

// Loop's thread only.
class FaultMoving {
 public:
  explicit FaultMoving(FaultMovingPorts ports) : ports_(std::move(ports)) {}

  // Whenever a device, a Pod or the policy has changed.
  void update(health::ViewPtr view, std::vector<HeldPod> pods, const FaultMovingPolicy& policy);

  // How many Pods the API server took the request of, or would have been asked in a dry run.
  std::uint64_t moved() const { return moved_; }

 private:
  struct Asking {
    std::unique_ptr<cluster::Eviction> eviction;
    bool over = false;  // taken, or refused for good: not decided anew
  };

  void decide();
  health::MovingNode node() const;
  std::string cluster_hold();
  void ask_share();
  void act(const health::Decision& decision);
  void evict(const health::Decision& decision);
  void on_news(const health::Decision& decision, const cluster::EvictionNews& news);
  void tell(const health::Decision& decision, std::string reason, std::string message);
  void again(const std::vector<health::Decision>& decisions);
  void tidy();

  FaultMovingPorts ports_;
  health::ViewPtr view_;
  std::vector<health::PodOnDevice> pods_;
  FaultMovingPolicy policy_;
  health::MovingLog log_;
  std::map<std::string, Asking> asking_;    // by the Pod's uid
  std::map<std::string, MovingNews> told_;  // the last of each Pod, by uid
  std::optional<std::pair<Time, Result<ClusterShare>>> share_;
  bool asking_share_ = false;
  std::uint64_t moved_ = 0;
  Subscription next_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent
