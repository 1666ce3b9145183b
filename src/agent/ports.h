// The agent's outside world: three small interfaces. The real ones are in agent/nvml_driver.h,
// kubelet/plugin_host.h and agent/reporter.h; the seeded simulation (tests/sim/seeded) puts others in their
// place and turns the clock itself.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/strong.h"
#include "health/evidence.h"
#include "inventory/snapshot.h"
#include "kubelet/plugin_host_port.h"

namespace gpulet::agent {

// The driver. No member blocks; every callback comes on the loop's thread, and none after destruction.
class Driver {
 public:
  virtual ~Driver() = default;
  // Loads and initialises the driver, or re-initialises it after a reload. One at a time.
  virtual void open(std::function<void(Status)> done) = 0;
  // Reads everything anew. A GPU that fails or hangs is in the snapshot as unreadable. An error means that
  // the driver as a whole does not answer.
  virtual void read(std::function<void(Result<inventory::Snapshot>)> done) = 0;

  using Evidence = std::vector<health::Evidence>;
  // One cheap question to a GPU: whether the driver answers for it, and its recovery action. What comes is
  // evidence of the time of the question: always a HandleReading, which tells of every failure.
  virtual void ask(DeviceUuid gpu, std::function<void(Evidence)> done) = 0;
  // One round of all polls of a GPU, or of one MIG device (agent/health_readings.h says what comes). May take
  // as long as a call may hang; a second one for the same GPU meanwhile is answered as silent.
  virtual void poll(health::Scope scope, std::function<void(Evidence)> done) = 0;

  struct Events {
    // XIDs and the driver's other notices about a GPU, as they come, and once for each GPU whether there are
    // events of it (a SourceNotice of kDriverEvents).
    std::function<void(health::Evidence)> evidence;
    std::function<void()> changed;           // something else changed (MIG, a reset, a reload): read anew
    std::function<void(Error)> wait_failed;  // the event wait itself fails; the driver backs off and goes on
  };
  virtual void set_events(Events events) = 0;
};

// The kubelet's device plugin API, for any number of resources (kubelet/plugin_host_port.h).
using PluginHost = kubelet::PluginHost;

// Whoever is told what the agent does: log, metric and Kubernetes event come from one call.
class Reporter {
 public:
  virtual ~Reporter() = default;
  enum class Severity { kNormal, kWarning };
  // `reason` is CamelCase as Kubernetes events have it ("GPUUnhealthy"); `message` one line.
  virtual void event(Severity severity, std::string_view reason, const std::string& message) = 0;
};

}  // namespace gpulet::agent
