// Health of MPS control daemons that another program runs, such as mps-control-daemon in NVIDIA's chart: a
// share may be offered only while its daemon answers and holds the limits of the share, because without a
// daemon a container uses the whole GPU.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "mps/daemon.h"
#include "mps/manager.h"
#include "mps/plan.h"

namespace gpulet::mps {

// Asks each daemon with the driver's nvidia-cuda-mps-control, through the pipe directory below the MPS root:
// at once, when its `.started` file changes, every check_interval while it answers, and after `retry` while
// it does not. A process in another container cannot be waited for. One short process per daemon and
// question. Starts, stops and changes nothing. Source: k8s-device-plugin v0.20.0, internal/plugin/mps.go,
// whose plugin asks once, before it registers the resource.
//
// Use it on the loop's thread only.
class ExternalDaemons {
 public:
  // Of `options`: root, driver_root, host_root, response_limit, check_interval, retry and seed. `health` is
  // called on each change, never from inside apply_specs().
  ExternalDaemons(Loop& loop, DaemonOptions options, DaemonManager::HealthCallback health);
  ~ExternalDaemons();
  ExternalDaemons(const ExternalDaemons&) = delete;

  // Watches exactly these daemons. Names are unique. A daemon whose limits differ from before is unhealthy
  // until it reports the new ones.
  void apply_specs(const std::vector<DaemonSpec>& specs);

  // By name. Unhealthy, with the reason: no answer yet, no answer, or another thread percentage than the
  // spec's.
  DaemonHealths daemon_healths() const;

 private:
  class ExternalDaemon;

  Loop& loop_;
  DaemonOptions options_;
  DaemonManager::HealthCallback health_callback_;
  std::map<std::string, std::unique_ptr<ExternalDaemon>> daemons_;
  std::uint64_t watched_ = 0;  // daemons so far, each with its own seed
};

}  // namespace gpulet::mps
