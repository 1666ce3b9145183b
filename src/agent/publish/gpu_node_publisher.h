// Publishes the node for schedulers as one GpuNode object (scheduler/model/gpu_node.h):
//
//     devices, shares, links, health     GpuNodeTiming::settle after the first change: a burst is one write
//     which Pod holds what               when the kubelet reports it, at most every holders_every
//     loads alone                        at most every load_every
//     no change                          no write (except the periodic refresh)
//
// The kubelet announces an allocation, not that a Pod released its devices (but those of claims), so it
// is asked every refresh_every. A scheduler does not depend on that: it sees the Pod end.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/plugin/offers.h"
#include "base/loop.h"
#include "base/result.h"
#include "device_plugin/pod_resources.h"
#include "dra/device_pool.h"
#include "health/report/node_health.h"
#include "inventory/snapshot.h"
#include "partition/resources.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::agent {

struct GpuNodeInputs {
  const inventory::Snapshot& snapshot;
  std::span<const device_plugin::OfferPtr> offers;
  const dra::DevicePool* claim_pool = nullptr;  // null: nothing is offered by claims
  const config::Config& config;
  const health::HealthView* view = nullptr;   // null: health is that of the offers
  std::span<const ContainerDevices> holders;  // with UUIDs of claimed devices; what is not offered is ignored
  // scheduler::encode_curve() of each GPU's expected load, if known.
  const std::map<DeviceUuid, std::string>& curves;
  const placement::LoadsByGpu& loads;  // by which the node chooses
  std::vector<scheduler::ControllerLoad> controllers;
  scheduler::MigOffer mig_offer{};
  std::string no_compute_limit{};  // GpuNode::no_compute_limit
};

// Builds the object. Pure.
scheduler::GpuNode build_gpu_node(GpuNodeInputs inputs);

// The devices of the pool that the snapshot has, as the resource scheduler::kClaimedResource with one share
// each: a claim is shared by Pods, not by requests. Pure.
partition::Resource make_claimed_resource(const dra::DevicePool& pool, const inventory::Snapshot& snapshot);

struct GpuNodeTiming {
  Duration settle = std::chrono::milliseconds(200);
  Duration holders_every = std::chrono::seconds(1);
  Duration load_every = std::chrono::seconds(60);
  Duration refresh_every = std::chrono::seconds(15);
  // From Allocate until PodResources lists the Pod: the kubelet admits it in between.
  Duration admission = std::chrono::milliseconds(500);
};

struct GpuNodePorts {
  Loop& loop;
  // Which Pod holds which device. Called back from the loop, not from inside the call.
  std::function<void(std::function<void(Result<std::vector<ContainerDevices>>)>)> holders;
  // The current node; nullopt before the first reading.
  std::function<std::optional<scheduler::GpuNode>(const std::vector<ContainerDevices>&)> node;
  std::function<void(std::string)> write;  // the object's spec
};

// Loop's thread only.
class GpuNodePublisher {
 public:
  explicit GpuNodePublisher(GpuNodePorts ports, GpuNodeTiming timing = {});

  // Something of the node may have changed.
  void on_node_changed() { refresh_after(timing_.settle); }
  // As Component::on_allocated().
  void on_allocated() { refresh_after(timing_.admission); }

  std::uint64_t write_count() const { return writes_; }

 private:
  void refresh_after(Duration delay);
  void refresh_holders();
  void publish_if_changed();

  GpuNodePorts ports_;
  const GpuNodeTiming timing_;
  std::vector<ContainerDevices> holders_;  // as last known
  std::optional<scheduler::GpuNode> written_;
  std::optional<Time> written_at_, due_;
  std::uint64_t writes_ = 0;
  bool refreshing_ = false, refresh_again_ = false;
  Subscription next_, later_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
