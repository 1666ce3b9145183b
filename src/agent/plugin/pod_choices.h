// Gives each Pod the devices that its annotations accept (gpulet.podChoices): follows the Pods that are bound
// to this node and not running yet, and keeps what they accept on the board from which the kubelet's requests
// are answered (device_plugin/pod_demands.h). The predicate is the scheduler's own check_unit().
//
// The kubelet may ask before this watch shows the Pod: then nothing is known to refuse, and the Pod's devices
// are compared with its annotations once the kubelet lists them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/types.h"
#include "device_plugin/allocation.h"
#include "device_plugin/pod_demands.h"
#include "k8s/client_config.h"
#include "k8s/objects.h"
#include "k8s/watcher.h"
#include "scheduler/model/gpu_node.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::agent {

// What each container of the Pod requests of the offers, in the kubelet's order of admission. A device that
// `node`, which was built of the same offers, does not have is not accepted by a Pod with constraints. Pure.
std::vector<device_plugin::PodDemand> make_pod_demands(const scheduler::PodRequest& pod,
                                                       const scheduler::GpuNode& node,
                                                       std::span<const device_plugin::OfferPtr> offers);

// Beyond these, Pods are ignored until others are gone.
inline constexpr std::size_t kMaxWaitingPods = 1024;

struct PodChoicePorts {
  Loop& loop;
  k8s::ClientConfig access;
  std::function<std::optional<scheduler::GpuNode>()> node;  // nullopt: not known yet
  std::function<std::vector<device_plugin::OfferPtr>()> offers;
  // As Devices::list_containers().
  std::function<void(std::function<void(Result<std::vector<ContainerDevices>>)>)> holders;
  std::shared_ptr<device_plugin::DemandBoard> board;
  std::function<void(bool)> ready_changed;  // whether the waiting Pods are known
  // The kubelet gave the Pod devices that it does not accept. One line.
  std::function<void(const PodRef&, const std::string& message)> violated;
};

struct PodChoiceTiming {
  k8s::CollectionTiming watch;
  // From Allocate until PodResources lists the Pod; a busy kubelet, later.
  Duration admission = std::chrono::milliseconds(500), late_admission = std::chrono::seconds(5);
};

// Needs list and watch on pods. Loop's thread only. The callbacks may not destroy it.
class PodChoices {
 public:
  explicit PodChoices(PodChoicePorts ports, PodChoiceTiming timing = {});
  ~PodChoices() { ports_.board->set_demands({}); }
  PodChoices(const PodChoices&) = delete;

  // The offers or the devices' facts may differ.
  void on_node_changed();
  // A container was allocated devices.
  void schedule_comparison();

 private:
  struct WaitingPod {
    scheduler::PodRequest request;
    std::uint64_t arrival = 0;
    bool is_waiting = true;  // else it runs, and its devices have not been compared yet
  };

  void on_pod(std::string_view object);
  void on_gone(std::string_view object);
  void update_board();
  void set_ready(bool is_ready);
  void refresh_holders();
  void on_holders(const std::vector<ContainerDevices>& holders);
  void compare_devices(const scheduler::PodRequest& pod, const ContainerDevices& holder);

  const PodChoicePorts ports_;
  const PodChoiceTiming timing_;
  std::map<std::string, WaitingPod> pods_;  // by uid
  std::map<std::string, bool> admitted_;    // uids of listed Pods that hold devices; true: seen in this list
  std::uint64_t arrivals_ = 0;
  std::optional<scheduler::GpuNode> node_;
  std::vector<device_plugin::OfferPtr> offers_;
  bool is_ready_ = false, is_listing_ = true;
  std::unique_ptr<k8s::CollectionWatcher> watcher_;
  Subscription soon_, later_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
