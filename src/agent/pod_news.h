// Tells the Pods that hold a device with a fault: a Kubernetes event for each change of what is wrong with
// it, and an annotation that says what is wrong now, which is taken away when nothing is. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/fault_pods.h"
#include "cluster/events.h"
#include "health/view.h"

namespace gpulet::agent {

struct PodNewsPorts {
  std::function<void(cluster::Event)> event;  // about a Pod
  // nullopt takes the annotation kFaultAnnotation away.
  std::function<void(const cluster::PodRef&, std::optional<std::string>)> note;
  // A Pod that `note` was called for holds no device any more.
  std::function<void(const cluster::PodRef&)> gone;
};

struct PodNewsWants {
  bool events = true, notes = false;
};

class PodNews {
 public:
  explicit PodNews(PodNewsPorts ports) : ports_(std::move(ports)) {}

  // Whenever a device, a Pod or what is wanted has changed. Cost: O(Pods × devices).
  void update(const health::View& view, const std::vector<HeldPod>& pods, PodNewsWants wants);

 private:
  struct Told {
    std::map<health::Scope, std::string> devices;  // what was told of each that has a fault
    std::optional<std::string> note;               // as it is there, or is to be
  };
  void tell(const cluster::PodRef& pod, const health::View& view, const HeldPod& held, PodNewsWants wants);

  PodNewsPorts ports_;
  std::map<cluster::PodRef, Told> told_;
  std::set<cluster::PodRef> noted_;
};

}  // namespace gpulet::agent
