// One node's agent: what its components share, and run_node(), which assembles and runs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/node/component.h"
#include "agent/node/ports.h"
#include "base/loop.h"
#include "base/result.h"
#include "config/load.h"
#include "k8s/client_config.h"
#include "partition/offer_switch.h"
#include "placement/load_board.h"
#include "scheduler/model/mig_demand.h"

namespace gpulet::device_plugin {
class GrpcThread;
}
namespace gpulet::dra {
class ClaimServices;
struct ClaimRecord;
struct DevicePool;
}  // namespace gpulet::dra

namespace gpulet::agent {

class ClaimSockets;
class Devices;

// Prepares and unprepares.
struct ClaimCalls {
  std::uint32_t begun = 0, answered = 0;
  friend bool operator==(const ClaimCalls&, const ClaimCalls&) = default;
};

// What the components of one node share, and how one reaches the others. Outlives them. Loop's thread only.
class Node {
 public:
  Node(config::Sources sources, config::LoadedConfig loaded, std::string version);
  ~Node();
  Node(const Node&) = delete;

  EpollLoop loop;
  config::Sources sources;
  const std::string version;
  config::Config config;  // in force; the text is config::print_yaml of what was loaded
  std::string config_text;
  // The node's label chooses the config (config.node_config), and has not been read yet: no device is
  // offered.
  bool is_config_pending;
  std::optional<std::string> presence;  // the path of agent.lock if it is held (node/succession.h)
  std::unique_ptr<NodeReporter> reporter;
  std::shared_ptr<dra::ClaimServices> claim_services;  // on the gRPC thread
  std::shared_ptr<const dra::DevicePool> claim_pool;   // offered by claims; null until claims are served
  const std::map<std::string, dra::ClaimRecord>* claim_records = nullptr;  // null while none are served
  bool serves_claims = false;                       // prepares claims; until the end once it does
  std::unique_ptr<ClaimSockets> claim_sockets;      // null where claims are not served
  ClaimCalls claim_calls;                           // of the kubelet
  bool has_successor = false;                       // this agent ends, and the next one takes over
  partition::OfferSwitch offer_switch;              // which side offers each GPU
  std::size_t published_claim_devices = 0;          // in the ResourceSlices that the API server shows
  std::shared_ptr<device_plugin::GrpcThread> grpc;  // never destroyed: its thread ends with the process
  std::optional<k8s::ClientConfig> client_config;   // nullopt outside a cluster
  std::map<std::string, std::string> labels;        // of the Node
  // Of the GPUs, by the samples for the metrics.
  const std::shared_ptr<placement::LoadBoard> loads = std::make_shared<placement::LoadBoard>();
  Devices* devices = nullptr;         // set by its constructor
  std::function<bool()> is_mig_busy;  // a MIG layout is read or applied; set and reset by its component
  // Of the GpuNode, to the component that cuts MIG devices on demand; set and reset by it.
  std::function<void(const scheduler::MigDemand&)> set_mig_demand;
  scheduler::MigOffer mig_offer;  // what that component could cut
  ComponentList components;

  void set_config(config::LoadedConfig loaded);
  // Whether the agent runs in a Pod, rather than as a service of its host.
  bool is_in_pod() const;
  // Calls on_state_changed() of every component, once in the next turn of the loop.
  void notify_state_changed();
  // Calls on_allocated() of every component.
  void notify_allocated();
  // Ends the loop; run_node() returns the error.
  void fail_with(const Error& error);
  const Status& result() const { return result_; }

 private:
  Status result_;
  bool is_state_change_posted_ = false;
};

// Runs until SIGTERM, SIGINT or SIGQUIT, and returns within 50 ms of it where nothing has to be announced to
// a cluster or handed over. While another agent serves the node, it stands by (node/standby.h). SIGHUP, and a
// change of the config file, load `sources` again. The process must end with _exit: a thread may still be in
// a driver call that never returns. Errors: why the agent cannot go on: kUnavailable or kUnsupported where
// there is no driver and failOnInitError is true.
Status run_node(config::Sources sources, config::LoadedConfig loaded, const std::string& version);

}  // namespace gpulet::agent
