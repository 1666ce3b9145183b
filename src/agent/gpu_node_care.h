// Publishes the node for schedulers: one object GpuNode, written when it matters.
//
//   devices, shares, links, health     kSettle after the first change: a burst is one write
//   who holds what                     as soon as the kubelet says so, at most every kHoldersEvery
//   loads alone                        at most every kLoadEvery
//   nothing                            never (but for cluster::ApplyTiming::refresh)
//
// An allocation is waited for (the device plugin is asked for it); that a Pod has given its devices back
// nobody says, so the kubelet is asked every kLookEvery. A scheduler does not wait for that: it sees the Pod
// go.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "kubelet/pod_resources.h"
#include "scheduler/gpu_node.h"

namespace gpulet::agent {

struct GpuNodeTiming {
  Duration settle = std::chrono::milliseconds(200);
  Duration holders_every = std::chrono::seconds(1);
  Duration load_every = std::chrono::seconds(60);
  Duration look_every = std::chrono::seconds(15);
  // From an Allocate to PodResources naming the Pod: the kubelet admits it in between.
  Duration admission = std::chrono::milliseconds(500);
};

struct GpuNodePorts {
  Loop& loop;
  // Who holds which device; from the loop, and not from inside the call.
  std::function<void(std::function<void(Result<std::vector<kubelet::ContainerDevices>>)>)> holders;
  // The node as it is now; nullopt while nothing is known of it.
  std::function<std::optional<scheduler::GpuNode>(const std::vector<kubelet::ContainerDevices>&)> node;
  std::function<void(std::string)> write;  // the object's spec
};

// Loop's thread only.
class GpuNodeCare {
 public:
  explicit GpuNodeCare(GpuNodePorts ports, GpuNodeTiming timing = {});

  // Something of the node may have changed.
  void changed() { look_after(timing_.settle); }
  // The kubelet was given devices.
  void allocated() { look_after(timing_.admission); }

  std::uint64_t writes() const { return writes_; }

 private:
  void look_after(Duration delay);
  void look();
  void compare();

  GpuNodePorts ports_;
  const GpuNodeTiming timing_;
  std::vector<kubelet::ContainerDevices> holders_;  // as last known
  std::optional<scheduler::GpuNode> written_;
  std::optional<Time> written_at_, due_;
  std::uint64_t writes_ = 0;
  bool looking_ = false, again_ = false;
  Subscription next_, later_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent
