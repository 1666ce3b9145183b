// Finds containers that hold a GPU and may no longer open its device nodes (resources/container_access.h),
// and tells their Pods by an Event: what such a container starts next fails, though the GPU is healthy. Only
// a container that was refused twice counts: a runtime that adds the rules itself does so after it has made
// the cgroup. Where the settings ask for it, the fault policy evicts such Pods (pod_evictor.h).
//
// Which containers: the kubelet's PodResources; their ids: the Pods of the API server, each read once, and
// again when its container has restarted. The container's cgroup is found by the id. What cannot be read is
// not refused.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/remediation/pod_evictor.h"
#include "agent/resources/container_access.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"
#include "health/policy/eviction_policy.h"
#include "k8s/object_reader.h"

namespace gpulet::agent {

// Nothing tells that rules have changed, so they are read at intervals, while a container holds a GPU.
inline constexpr Duration kAccessCheckInterval = std::chrono::minutes(1);
inline constexpr Duration kAccessConfirmInterval = std::chrono::seconds(10);

struct CutOffPodPorts {
  Loop& loop;
  std::function<void(std::function<void(Result<std::vector<ContainerDevices>>)>)> holders;
  k8s::ObjectReader& reader;
  // The nodes of a device as this process opens them; none for another resource's device.
  std::function<std::vector<std::string>(const DeviceId&)> nodes;
  std::function<Result<DeviceCgroups>()> cgroups;
  // Starts a check, as AccessCheck does; the returned object ends it.
  std::function<std::shared_ptr<const void>(const DeviceCgroups& cgroups, const std::string& directory,
                                            std::vector<std::string> nodes, AccessCheck::Done done)>
      check;
  std::function<void(const EvictionEvent&)> notify;
  // Whether such Pods may be evicted at all. If so, `cut_off` gets all of them after each round, without
  // those that the API server does not tell about; otherwise it gets none.
  std::function<bool()> may_evict;
  std::function<void(std::vector<health::CutOffPod>)> cut_off;
};

// Loop's thread only. Each interval costs one call of the kubelet, a walk over the cgroups of Pods, and one
// check after the other for each container with a GPU.
class CutOffPods {
 public:
  explicit CutOffPods(CutOffPodPorts ports);
  CutOffPods(const CutOffPods&) = delete;

  // The containers that were refused twice and are still there, "Pod team/a: container main may not open
  // /dev/nvidia0"; nullopt: the cgroups cannot be seen, or no container's answer is known.
  std::optional<std::vector<std::string>> cut_off_containers() const;

 private:
  struct GpuContainer {
    PodName pod;
    std::string container;
    std::vector<std::string> nodes;
  };
  struct KnownPod {
    std::string uid;
    std::map<std::string, std::string> ids;  // of its containers, by name
  };

  struct Finding {
    PodRef pod;
    std::string text;  // "container main may not open /dev/nvidia0"
    Time since{};
  };
  void start_round();
  void on_holders(const std::vector<ContainerDevices>& holders);
  void read_unknown_pods();
  void check_next();
  void on_answer(const GpuContainer& container, const std::string& id, const AccessCheck::Answer& answer);
  void finish_round();
  struct Report {
    std::vector<health::CutOffPod> pods;
    std::size_t reading = 0;
  };
  void report_pods();
  void read_for_report(const std::shared_ptr<Report>& report, const Finding& found);
  void finish_read(const std::shared_ptr<Report>& report);
  void schedule_round();
  std::string id_of(const GpuContainer& container) const;

  const CutOffPodPorts ports_;
  std::deque<GpuContainer> waiting_;
  std::map<PodName, KnownPod> pods_;
  DeviceCgroups cgroups_;
  std::set<std::string> refused_;           // once, by container id
  std::map<std::string, Finding> cut_off_;  // twice or more
  std::size_t answered_ = 0;                // of those seen
  std::set<std::string> seen_;              // in this round
  bool are_cgroups_seen_ = false, answers_unknown_ = false;
  std::size_t reading_ = 0;
  std::shared_ptr<Report> report_;  // the newest
  bool is_reported_ = false;        // the last that was complete had Pods
  std::shared_ptr<const void> check_;
  Subscription next_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
