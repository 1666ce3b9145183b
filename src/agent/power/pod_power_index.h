// What the Pods that hold GPUs with a rule ask for (partition::parse_pod_power): the kubelet's PodResources
// joined with the annotations of the API server. Pods leave unannounced, and annotations change: both are
// read at intervals while a Pod holds such a GPU.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/types.h"
#include "inventory/snapshot.h"
#include "k8s/object_reader.h"
#include "partition/power_plan.h"

namespace gpulet::agent {

// The kubelet lists a new holder a moment after its Allocate has returned; a busy one, later.
inline constexpr Duration kPodPowerDelays[] = {std::chrono::milliseconds(500), std::chrono::seconds(5)};
inline constexpr Duration kPodPowerInterval = std::chrono::seconds(10);
// How long a GPU whose Pods are not read yet keeps what it has.
inline constexpr Duration kPodPowerPatience = std::chrono::seconds(30);
inline constexpr Duration kPodPowerTtl = std::chrono::minutes(1);  // of a Pod's annotations

struct PodPowerPorts {
  Loop& loop;
  // As Devices::list_containers().
  std::function<void(std::function<void(Result<std::vector<ContainerDevices>>)>)> holders;
  k8s::ObjectReader& reader;
  // An annotation is invalid or does not count: called once for each Pod and text.
  std::function<void(const PodRef&, const std::string& why)> on_invalid;
  // requests() or awaited_gpus() differs. Called from the loop, not from inside a call.
  std::function<void()> changed;
};

// Loop's thread only. An interval costs one call of the kubelet; a Pod, one read each kPodPowerTtl.
class PodPowerIndex {
 public:
  using Requests = std::map<DeviceUuid, std::vector<partition::PodPowerRequest>>;

  explicit PodPowerIndex(PodPowerPorts ports) : ports_(std::move(ports)) {}
  PodPowerIndex(const PodPowerIndex&) = delete;

  // The GPUs with a rule.
  void use_gpus(inventory::SnapshotPtr snapshot, std::set<DeviceUuid> gpus);
  void refresh_soon();

  // By GPU; of every Pod that holds it, or a share or a MIG device of it. One that is not read yet, or whose
  // annotation is invalid, asks for nothing.
  const Requests& requests() const { return requests_; }
  // Those with a Pod that was never read, for kPodPowerPatience; all, until the Pods were listed.
  const std::set<DeviceUuid>& awaited_gpus() const { return awaited_; }

  // Tells the Pods of the GPU that ask for something that it does not count.
  void report_problem(const DeviceUuid& gpu, const std::string& problem);

 private:
  struct HeldPod {
    std::set<DeviceUuid> gpus;
    partition::PodPowerRequest request;
    std::optional<Time> read;
    std::string problem;
    std::optional<PodRef> pod{};  // once it was read
    bool is_known = false;        // it was read
    Time since{};                 // when it was first listed
    std::set<std::string> said{};
  };

  void refresh();
  void on_holders(const std::vector<ContainerDevices>& holders);
  std::optional<DeviceUuid> gpu_of(const DeviceId& id) const;
  void on_pod(const PodName& name, const Result<std::optional<k8s::PodMetadata>>& pod);
  void publish_if_changed();
  void update_awaited();

  PodPowerPorts ports_;
  inventory::SnapshotPtr snapshot_;
  std::set<DeviceUuid> gpus_;
  std::map<PodName, HeldPod> pods_;
  Requests requests_;
  std::set<DeviceUuid> awaited_;
  std::optional<Time> first_use_;
  bool is_listing_ = false, is_again_due_ = false, is_listed_ = false;
  Subscription end_of_patience_, next_, after_allocation_[std::size(kPodPowerDelays)];
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
