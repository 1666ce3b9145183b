// Removes the startup taint of a new node once its GPUs can be requested: a node pool or the kubelet sets it
// (gpulet.startupTaint), so that no Pod comes, and no autoscaler starts a second node, while the node is
// Ready and its GPUs are not there yet. The agent never sets it: a node that serves stays as it is.
//
// Source: Kubernetes API core/v1 Taint, kubelet's registerWithTaints; cluster-autoscaler's startup taints,
// Karpenter's startupTaints.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/loop.h"
#include "k8s/client_config.h"
#include "k8s/node_status.h"
#include "k8s/watcher.h"

namespace gpulet::agent {

// What the agent knows of its node. A plain value.
struct StartupState {
  bool config_known = false;  // the config, and the node's labels, which may choose a MIG layout
  bool without_gpu = false;   // the PCI bus proves that the node has no NVIDIA GPU (may_have_gpu)
  bool driver_answers = false;
  bool health_known = false;                     // of every device
  bool mig_changing = false;                     // a MIG layout is read or applied
  bool all_excluded = false;                     // rules exclude every GPU: none will be offered
  std::map<std::string, std::size_t> healthy{};  // devices by offered resource
  // With claims: the devices in the node's ResourceSlices, as the API server shows them.
  std::optional<std::size_t> claim_devices{};
};

// Why the taint stays, as one line; nullopt: it may go. `allocatable`: quantities of the Node's
// status.allocatable. A resource whose devices are all unhealthy is not waited for if another one has a
// healthy device: only faults keep it from the node's Pods. Pure.
std::optional<std::string> startup_wait_reason(const StartupState& state,
                                               const std::map<std::string, std::string>& allocatable);

struct StartupTaintPorts {
  Loop& loop;
  k8s::ClientConfig access;
  std::function<StartupState()> read_state;
  // The taint is gone after it was removed here; gets a line for people. May not destroy the StartupTaint.
  std::function<void(const std::string&)> removed;
};

struct StartupTaintTiming {
  k8s::WatchTiming watch;
  k8s::NodeTaintsTiming taints;
  // How often read_state is called while the Node has the taint: cheap, and the taint goes this late at most.
  Duration check = std::chrono::seconds(1);
};

// Watches the Node, also after the taint is gone: one that is deleted and registers again has it again. Needs
// get, list, watch and patch on nodes. Loop's thread only.
class StartupTaint {
 public:
  // `key`: of the taint, with any effect and value.
  StartupTaint(StartupTaintPorts ports, std::string key, StartupTaintTiming timing = {});
  StartupTaint(const StartupTaint&) = delete;

 private:
  void on_node(const nlohmann::json& node);
  void update_taint();

  const StartupTaintPorts ports_;
  const std::string key_;
  const StartupTaintTiming timing_;
  bool is_tainted_ = false;                         // as the newest Node shows
  std::map<std::string, std::string> allocatable_;  // the same
  std::string logged_reason_;
  std::unique_ptr<k8s::NodeTaints> removal_;
  std::unique_ptr<k8s::ObjectWatcher> watcher_;
  Subscription next_check_;
};

}  // namespace gpulet::agent
