// The agent: one loop that joins driver, judgement, plan and kubelet. An event comes in, a new snapshot and
// new offers come out, and whoever's output differs is told. A changed config, a lost GPU, a reloaded driver
// and a restarted kubelet are all steps of this loop: nothing is ever restarted.
//
// It sees the world only through its ports and its Loop, so that tests/seeded replays hours of faults on a
// clock of its own. Loop's thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/health_care.h"
#include "agent/offers.h"
#include "agent/ports.h"
#include "agent/registration.h"
#include "base/backoff.h"
#include "base/loop.h"
#include "config/config.h"
#include "kubelet/pod_resources.h"

namespace gpulet::agent {

// A driver that does not answer, or is not there yet, is tried again within these.
inline constexpr BackoffLimits kDriverBackoff{std::chrono::milliseconds(100), std::chrono::seconds(5)};
// Changes that come in a burst (a MIG layout, a reload) are read once, this long after the first.
inline constexpr Duration kReadDelay = std::chrono::milliseconds(20);
// A resource that cannot be served, or that the kubelet took and never watched, fails liveness after this
// long.
inline constexpr Duration kStuck = std::chrono::minutes(1);

// What the agent is at one moment: for /healthz, /readyz and the metrics page. A plain value.
struct State {
  bool driver_answers = false;
  std::string driver_error;  // why not, one line
  inventory::SnapshotPtr snapshot;
  std::optional<std::string> config_error;  // the file on disk is bad and an older one is in force
  struct Resource {
    ResourceName name;
    std::size_t devices = 0, healthy = 0;
    bool registered = false, watched = false;
    std::string error;
  };
  std::vector<Resource> resources;  // by name
  bool stuck = false;               // liveness: see kStuck
  std::uint64_t config_reloads = 0, config_reload_failures = 0, registrations = 0;

  bool ready() const;
  // What is wrong, one line each; empty when nothing is.
  std::vector<std::string> problems() const;
};

struct Ports {
  Loop& loop;
  Driver& driver;
  PluginHost& host;
  Reporter& reporter;
  // Names of the Pods that hold a device now, for events; may answer late or with nothing.
  std::function<void(std::function<void(std::map<DeviceId, std::string>)>)> pods;
  // What the node's files say (read_node_files).
  std::function<NodeFiles(const config::Config&)> files;
  // The MPS daemons that are wanted now (Surroundings::daemons); may be empty.
  std::function<std::map<std::string, inventory::Health>(const std::vector<mps::DaemonSpec>&)> daemons;
  // The CDI names that are on disk (Surroundings::cdi); may be empty.
  std::function<std::optional<std::set<std::string>>(const inventory::Snapshot&)> cdi;
  // Called after State changed; may be empty. Must not call the agent back from inside.
  std::function<void()> changed;
  // What is remembered of faults; null: nothing outlives the agent. Outlives it.
  HealthMemory* memory = nullptr;
  // After every round that changed a device's standing, its other faults, when it is due or what can be asked
  // about it, and once after the first reading (the changes may be empty): on the loop, once the kubelet has
  // been told. May be empty.
  std::function<void(const health::ViewPtr&, const std::vector<health::Change>&)> health_changed = nullptr;
  // The kubelet was given devices for a container: PodResources will name it soon. May be empty.
  std::function<void()> allocated = nullptr;
};

class Agent {
 public:
  // `fatal` is called once, at the most, when the agent must end with exit code 1: only for a driver that is
  // not there at start while failOnInitError is true, as NVIDIA's plugin does.
  Agent(Ports ports, config::Config config, std::uint64_t seed, std::function<void(const Error&)> fatal);
  ~Agent();
  Agent(const Agent&) = delete;

  void start();
  // A new valid config takes the place of the old one; only what differs is done.
  void apply(config::Config config);
  // The config on disk is bad: the old one stays, and says so.
  void config_failed(const Error& error);

  // The node's labels, and what is withdrawn for a while: plans anew where they differ.
  void set_facts(partition::NodeFacts facts);
  // Plans anew: something that the ports say has changed.
  void replan() { step(); }
  // Reads everything anew, soon.
  void reread() { read_soon(Duration::zero()); }

  // Every device and how it stands; null before the first reading.
  health::ViewPtr health() const { return care_.view(); }
  // Evidence from elsewhere than the driver: an operator's wish (kCordon, kUncordon), ResetDone. What it
  // changes is told as for any other.
  void take(const health::Evidence& evidence) { care_.take(evidence); }
  // A line of the kernel's log, and whether it can be read (agent/kernel_log.h).
  void take(const health::FaultLine& line) { care_.take(line); }
  void kernel_log(std::optional<std::string> absent) { care_.kernel_log(std::move(absent)); }

  State state() const;
  // Every device of every resource that is served.
  kubelet::DevicesByResource offered() const;
  // What is offered now, by resource name.
  std::vector<kubelet::OfferPtr> offers() const;

 private:
  struct Served {
    kubelet::OfferPtr offer;
    std::unique_ptr<Registration> registration;
    bool serving = false;              // its socket is open
    std::optional<Time> broken_since;  // not served, or registered and not watched
    std::string serve_error;
    Subscription retry;
  };

  void open_driver();
  void on_driver_opened(const Status& status);
  void driver_failed(const Error& error);
  void read_soon(Duration delay = kReadDelay);
  void read_now();
  void on_read(Result<inventory::Snapshot> snapshot);
  void await_unseen();

  void on_health(const health::ViewPtr& view, const HealthChanges& changes);

  // Judges the last reading, publishes it, plans, and tells the kubelet what differs.
  void step();
  void report_gone(const inventory::Snapshot& before, const inventory::Snapshot& after);
  void report(const health::View& view, const HealthChanges& changes);
  void tell_changed() const;
  void report_notes(const std::vector<partition::Note>& notes);
  void serve(const ResourceName& name, Served& served);
  void remove_unoffered(const std::vector<kubelet::OfferPtr>& offers);

  void on_kubelet_started();
  void on_socket_lost(const ResourceName& name);
  void on_watched(const ResourceName& name, bool watched);

  Ports ports_;
  config::Config config_;
  partition::NodeFacts facts_;
  std::uint64_t seed_;
  std::function<void(const Error&)> fatal_;

  HealthCare care_;
  OfferBuilder builder_;
  std::optional<inventory::Snapshot> reading_;  // as the driver said it, unjudged
  inventory::SnapshotPtr published_;
  std::map<ResourceName, Served> served_;
  std::set<std::string> told_notes_;

  bool opened_once_ = false;
  bool driver_answers_ = false;
  std::optional<Error> driver_error_;
  Backoff driver_backoff_;
  bool opening_ = false;
  bool reading_now_ = false;
  bool read_again_ = false;
  Subscription driver_timer_, read_timer_, unseen_timer_;

  std::optional<std::string> config_error_;
  std::uint64_t config_reloads_ = 0, config_reload_failures_ = 0, registrations_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent
