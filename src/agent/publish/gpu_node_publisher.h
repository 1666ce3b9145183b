// Publishes the node for schedulers as one GpuNode object (scheduler/model/gpu_node.h):
//
//     devices, shares, links, health     GpuNodeTiming::settle after the first change: a burst is one write
//     which Pod holds what               when the kubelet reports it, at most every holders_every
//     loads alone                        at most every load_every
//     no change                          no write (except the periodic refresh)
//
// The device plugin announces an allocation; nothing announces that a Pod released its devices, so the
// kubelet is asked every refresh_every. A scheduler does not depend on that: it sees the Pod end.
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
#include "health/report/node_health.h"
#include "inventory/snapshot.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::agent {

// Builds the object. `holders`: from the kubelet; devices without an offer are ignored. `view` may be null:
// health is then that of the offers. `curves`: scheduler::encode_curve() of each GPU's expected load, if
// known. `loads`: by which the node chooses. `controllers`: what is remembered of them. Pure.
scheduler::GpuNode build_gpu_node(const inventory::Snapshot& snapshot,
                                  std::span<const device_plugin::OfferPtr> offers,
                                  const config::Config& config, const health::HealthView* view,
                                  std::span<const ContainerDevices> holders,
                                  const std::map<DeviceUuid, std::string>& curves,
                                  const placement::LoadsByGpu& loads,
                                  std::vector<scheduler::ControllerLoad> controllers);

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
  // The device plugin answered an Allocate.
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
