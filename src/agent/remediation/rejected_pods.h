// Deletes Pods that the kubelet has rejected for lack of a resource that this node offers: after a reboot the
// scheduler's Pods arrive before the device plugin has registered, fail for good, and their controllers keep
// them or count them as failures. Opt-in (gpulet.faults.deleteRejectedPods), since a deleted Pod's status and
// events are gone.
//
// Source: kubelet v1.36, lifecycle.PodAdmitResult: reasons "UnexpectedAdmissionError" and "OutOf" + resource;
// kubernetes #117955, #124345.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/loop.h"
#include "base/types.h"
#include "k8s/client_config.h"
#include "k8s/node_pods.h"
#include "k8s/objects.h"
#include "k8s/watcher.h"

namespace gpulet::agent {

struct RejectedPod {
  PodRef pod;
  std::int64_t created = 0;         // seconds since 1970; 0: unknown
  std::string reason;               // "UnexpectedAdmissionError"
  std::set<std::string> resources;  // that its containers request, of any name
};

// The Pod, if the kubelet of `node` rejected it and it may be deleted: it has a controller, which replaces
// it. That is a failed Pod with one of the reasons above, or one that Succeeded though its containers are
// always restarted. Not one of a DaemonSet, whose controller deletes failed Pods itself, nor a static or
// terminating one. Pure.
std::optional<RejectedPod> parse_rejected_pod(const nlohmann::json& pod, const std::string& node);

// Offered resources by name; true: the kubelet can allocate them now.
using OfferedResources = std::map<std::string, bool>;
// Whether the Pod was rejected for lack of an offered resource, and its successor would not be: all offered
// ones among those that it requests can be allocated. Pure.
bool is_rejection_over(const RejectedPod& pod, const OfferedResources& offered);

// Beyond these, rejected Pods are ignored until others are gone.
inline constexpr std::size_t kMaxRejectedPods = 1024;

struct RejectedPodTiming {
  k8s::CollectionTiming watch;
  // At most so many deletions in each window.
  std::size_t deletions = 10;
  Duration window = std::chrono::minutes(1);
  Duration interval = std::chrono::seconds(1);  // between two attempts while there are such Pods
};

struct RejectedPodPorts {
  Loop& loop;
  k8s::ClientConfig access;
  std::function<OfferedResources()> offered;
  // The API server has accepted the deletion. May not destroy the RejectedPodDeleter.
  std::function<void(const RejectedPod&)> deleted;
};

// Needs list, watch and delete on pods. The oldest Pod goes first. A deletion that fails counts in its
// window, is logged, and is tried again. Loop's thread only.
class RejectedPodDeleter {
 public:
  explicit RejectedPodDeleter(RejectedPodPorts ports, RejectedPodTiming timing = {});
  RejectedPodDeleter(const RejectedPodDeleter&) = delete;

 private:
  void on_pod(std::string_view object);
  void on_deleted(std::string_view object);
  void schedule_attempt();
  void delete_next();
  bool is_limit_reached();

  const RejectedPodPorts ports_;
  const RejectedPodTiming timing_;
  std::map<std::string, RejectedPod> pods_;  // by uid
  std::set<std::string> asked_;              // uids whose deletion was accepted
  std::deque<Time> deletions_;               // within the window
  std::string logged_error_;
  bool is_deleting_ = false;
  std::unique_ptr<k8s::NodePods> node_pods_;
  std::unique_ptr<k8s::CollectionWatcher> watcher_;
  Subscription next_;
};

}  // namespace gpulet::agent
