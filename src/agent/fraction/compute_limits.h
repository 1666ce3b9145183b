// What a Pod requests of a GPU's compute (nvidia.com/gpucores), where MPS protocol 3 shares it: before the
// container's first instruction its namespace gets that percentage, or the share's own where it requests
// none, so that no former holder's value stays. The container starts only where the namespace has it, as read
// back.
//
// Several shares of a GPU add up, at most to all of it. The pinned memory is the share's, or what the Pod
// requests if that is less. Source: NVIDIA, "MPS v3 Namespaces": a namespace's percentage stands in place of
// the client's own, for each GPU; a ceiling, no reservation.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/fraction/memory_ledger.h"
#include "base/loop.h"
#include "mps/plan.h"

namespace gpulet::agent {

struct NamespaceSetting {
  DeviceUuid gpu;  // one of its daemon's
  std::string name;
  mps::NamespaceLimits limits;
  friend bool operator==(const NamespaceSetting&, const NamespaceSetting&) = default;
};
// The namespaces of the container: one for each resource and daemon, as device_plugin/allocation.h mounts
// them. `specs`: the daemons of resources. Pure. Errors: kFailedPrecondition where it may be in a namespace
// that is none of these: what it holds is not exactly known, or its share is no longer offered.
Result<std::vector<NamespaceSetting>> plan_compute(const ContainerLimits& container,
                                                   const std::vector<mps::DaemonSpec>& specs);

struct ComputePorts {
  using Done = std::function<void(const Status&)>;

  Loop& loop;
  std::function<std::vector<mps::DaemonSpec>()> specs;  // of resources, also those that do not run
  // As mps::Daemon's; kUnavailable where the GPU's daemon does not run.
  std::function<void(const NamespaceSetting&, Done done)> set_namespace;
};

// Loop's thread only.
class ComputeLimits {
 public:
  using Done = ComputePorts::Done;
  explicit ComputeLimits(ComputePorts ports) : ports_(std::move(ports)) {}

  // Calls `done` once, at once where no namespace is the container's, within `within` else. Errors: those of
  // plan_compute() and `set_namespace`; kDeadlineExceeded; kFailedPrecondition for an init container that
  // requests compute of a share by MPS: the kubelet does not say which one it holds.
  void hold_compute(const ContainerLimits& container, Duration within, Done done);

 private:
  struct Waiting {
    std::vector<NamespaceSetting> settings;
    Done done;
    Subscription deadline;
  };
  void set_next(std::uint64_t id, std::size_t index);
  void finish_waiting(std::uint64_t id, const Status& status);

  ComputePorts ports_;
  std::map<std::uint64_t, Waiting> waiting_;
  std::uint64_t next_ = 0;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
