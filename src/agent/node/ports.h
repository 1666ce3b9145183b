// The agent's outside world: the driver, the kubelet's device plugin API, and the reporter of what the agent
// does. The real ones are in agent/driver/nvml_driver.h, device_plugin/plugin_host.h and below;
// tests/seeded replaces them and drives the clock itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "device_plugin/plugin_host.h"
#include "health/evidence/evidence.h"
#include "inventory/snapshot.h"
#include "k8s/event_recorder.h"

namespace gpulet::config {
struct GpuletSettings;
}

namespace gpulet::agent {

// The driver. No member blocks; every callback comes on the loop's thread, and none after destruction.
class Driver {
 public:
  virtual ~Driver() = default;
  // Loads and initialises the driver, or initialises it again after a reload. One call at a time.
  virtual void open_driver(std::function<void(Status)> done) = 0;
  // Closes the driver: no session, no event wait, no open device node. Other calls fail with kUnavailable
  // until open_driver(). Not during open_driver(). Errors: kDeadlineExceeded while a call that has not
  // returned still holds the driver: close it again later.
  virtual void close_driver(std::function<void(Status)> done) = 0;
  // Reads all GPUs. One that fails or hangs is in the snapshot as unreadable. An error means that the driver
  // as a whole does not respond.
  virtual void read_snapshot(std::function<void(Result<inventory::Snapshot>)> done) = 0;

  using Evidence = std::vector<health::Evidence>;
  // Checks whether the driver responds for a GPU, and reads its recovery action: one cheap call. `done` gets
  // evidence with the time of the call; every failure is a HandleReading in it.
  virtual void probe_gpu(DeviceUuid gpu, std::function<void(Evidence)> done) = 0;
  // Runs all polls of a GPU, or of one MIG device (agent/health/evidence_reader.h). May take as long as a
  // driver call may hang; a second poll of the same GPU meanwhile yields HandleReading evidence of no answer.
  virtual void poll_device(health::Scope scope, std::function<void(Evidence)> done) = 0;

  struct Events {
    // XIDs and other notices of the driver about a GPU, and once for each GPU whether it has events (a
    // SourceNotice of kDriverEvents).
    std::function<void(health::Evidence)> evidence;
    std::function<void()> changed;           // MIG, a reset, a reload: read a new snapshot
    std::function<void(Error)> wait_failed;  // the event wait itself failed; the driver retries with backoff
  };
  virtual void set_events(Events events) = 0;
};

// The kubelet's device plugin API, for any number of resources.
using PluginHost = device_plugin::PluginHost;

// Reports what the agent does: one call is a log line, a count on the page of metrics and a Kubernetes event.
class Reporter {
 public:
  virtual ~Reporter() = default;
  enum class Severity { kNormal, kWarning };
  // `reason` is CamelCase, as in Kubernetes events ("GPUUnhealthy"); `message` is one line.
  virtual void report_event(Severity severity, std::string_view reason, const std::string& message) = 0;
};

// The Reporter of a node. Loop's thread only.
class NodeReporter final : public Reporter {
 public:
  // Without a recorder (outside a cluster) it logs and counts.
  explicit NodeReporter(std::unique_ptr<k8s::EventRecorder> sender = nullptr) : sender_(std::move(sender)) {}

  void report_event(Severity severity, std::string_view reason, const std::string& message) override;

  // Gets each event too; may be empty.
  using Listener = std::function<void(Severity, std::string_view reason, const std::string& message)>;
  void set_listener(Listener listener) { listener_ = std::move(listener); }

  // Number of events by reason, since start.
  const std::map<std::string, std::uint64_t>& event_counts() const { return counts_; }
  // Null outside a cluster.
  const k8s::EventRecorder* sender() const { return sender_.get(); }

 private:
  std::unique_ptr<k8s::EventRecorder> sender_;
  std::map<std::string, std::uint64_t> counts_;
  Listener listener_;
};

// With a recorder inside a cluster, by `environment` (k8s/client_config.h). One that cannot be used is logged
// once: missing events are no reason not to serve the kubelet.
std::unique_ptr<NodeReporter> make_reporter(
    Loop& loop, const std::map<std::string, std::string, std::less<>>& environment);

// Level and format of the process' log.
void configure_log(const config::GpuletSettings& settings);

}  // namespace gpulet::agent
