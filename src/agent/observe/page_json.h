// Documents that the node page and `gpulet top` display, as JSON of one line each, built from plain
// values. Pure: the same input gives the same bytes. They contain only what is named here: no environment, no
// annotation, no argument of a Pod.
//
// node_json, what changes rarely:
//   name, version, driver {version, cuda}, problems [text]
//   gpus [{index, uuid, model, architecture, slot, numa, memory (bytes), nvswitch_links, fabric (whether it
//          is in an NVLink fabric), nvlinks {all (links that have been up), up, faulty [{link, fault ("down"
//          or "errors"), peer (the GPU at its other end, or null)}]} (absent without links), mig_pending (the
//          MIG mode after a reset, or null), state, offered, since, reason, comes_back, due, relapses, faults
//          [{class, text, effect, count, opened, last, detail}], unread (sources of its health that are not
//          read) [{source, reason}] or null before the first reading, resource, shares [device id], holders
//          [{device, uuid, namespace, pod, container, resource}], excluded (why a rule withholds it, else
//          absent), mig null or {slices, devices [{index, uuid, profile, start, size, memory, state,
//          reason}]}}]
//   links [[label as in `nvidia-smi topo -m`]], in the order of gpus
//   timeline [{at, uuid, device, from, to, reason}], events [{at, severity, reason, message}], oldest first
//   claims: agent/observe/claim_status.h; memory_limit: agent/observe/limit_status.h; cut_off [text]:
//     containers that may no longer open their GPUs (agent/remediation/cut_off_pods.h); absent without any;
//     power: agent/observe/power_status.h
//   config: the config in force as text
// use_json, the usage of each device in that sample that a Pod holds or a process uses:
//   at, devices {uuid of a GPU or MIG device: {pods [{namespace, pod, containers [text], shares, memory, busy
//   (percent of the device's time)}], rest {memory, busy}: unattributed, processes [{pid, name, memory,
//   sm, namespace, pod}]}}
// Times are milliseconds since 1970. Unknown values are null in node_json and absent from use_json.
// The numbers of one sample: agent/observe/sample_json.h.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/observe/claim_status.h"
#include "agent/observe/limit_status.h"
#include "agent/observe/power_status.h"
#include "agent/observe/sample_trends.h"
#include "base/loop.h"
#include "base/types.h"
#include "device_plugin/pod_resources.h"
#include "health/report/node_health.h"
#include "inventory/snapshot.h"
#include "metrics/aggregator.h"
#include "metrics/attribution.h"
#include "metrics/fields.h"
#include "web/listener.h"

namespace gpulet::agent {

// A device's change of state, and a reported event: each is a line of the page.
struct HealthMoment {
  WallTime at;
  DeviceUuid gpu;
  std::string device;  // health::describe
  health::DeviceState before = health::DeviceState::kHealthy, after = health::DeviceState::kHealthy;
  std::string reason;
};
struct RecentEvent {
  WallTime at;
  bool warning = false;
  std::string reason;   // "GPUUnhealthy"
  std::string message;  // one line
};

// The newest entries of a list, oldest first.
template <class Entry, std::size_t kMost>
class RecentEntries {
 public:
  void add_entry(Entry entry) {
    entries_.push_back(std::move(entry));
    if (entries_.size() > kMost) entries_.pop_front();
  }
  const std::deque<Entry>& entries() const { return entries_; }

 private:
  std::deque<Entry> entries_;
};
using RecentMoments = RecentEntries<HealthMoment, 200>;
using RecentEvents = RecentEntries<RecentEvent, 100>;

// Converts a time of the loop to wall time, to the second: the clocks drift by less, so that an otherwise
// unchanged document stays the same.
WallTime to_wall_time(Time at, const health::ClockPair& clock);

// A health change as a line of the timeline. `view` is the one after the change; its clock gives `at`.
HealthMoment health_moment(const health::StatusChange& change, const health::HealthView& view);

struct NodePageInput {
  std::string node_name, version;
  std::vector<std::string> problems;         // AgentStatus::problems()
  inventory::SnapshotPtr snapshot;           // null before the first
  health::HealthViewPtr health;              // null before the first
  device_plugin::DevicesByResource devices;  // every device of every resource that is served
  std::vector<ContainerDevices> containers;  // device holders, from the kubelet
  // metrics::processes_outside_pods() of each GPU that has any.
  std::map<DeviceUuid, std::vector<metrics::ProcessSample>> outside_pods;
  ClaimStatus claims{};
  std::string config;  // config::print_yaml
  const RecentMoments* moments = nullptr;
  const RecentEvents* events = nullptr;
  std::optional<MemoryLimitStatus> memory_limit{};
  std::vector<std::string> cut_off{};  // CutOffPods::cut_off_containers()
  std::vector<GpuPowerStatus> power{};
};

// Names of processes are for authenticated clients only (docs/SECURITY.md). kHidden leaves them out of
// use_json, and out of reasons and messages ("process 812 (nv-hostengine)").
enum class ProcessNames { kShown, kHidden };

// Invalid UTF-8 becomes U+FFFD. Cost: linear in devices, holders and lines.
std::string node_json(const NodePageInput& input, ProcessNames names = ProcessNames::kShown);
// Pods as in `devices`, without memory and busy time where they are not known for each Pod; processes by pid,
// with the Pod where it is known.
std::string use_json(const metrics::Sample& sample, const std::map<DeviceUuid, metrics::PodShares>& devices,
                     const metrics::PodByPid& pods, WallTime at, ProcessNames names = ProcessNames::kShown);

// The state of the node page while the agent runs: keeps recent events and the health timeline, and builds a
// document only after a change, so that an idle node costs nothing. Loop's thread only.

class PageState {
 public:
  PageState(std::string node_name, std::string version);

  // Equal values change nothing.
  void set_snapshot(inventory::SnapshotPtr snapshot);
  void record_health(health::HealthViewPtr view, const std::vector<health::StatusChange>& changes);
  void set_problems(std::vector<std::string> problems);        // AgentStatus::problems()
  void set_devices(device_plugin::DevicesByResource offered);  // of every resource that is served
  void set_containers(std::vector<ContainerDevices> containers);
  void set_claims(ClaimStatus claims);
  void set_memory_limit(std::optional<MemoryLimitStatus> status);
  void set_cut_off(std::vector<std::string> containers);
  void set_power(std::vector<GpuPowerStatus> statuses);
  void set_config_text(std::string text);  // config::print_yaml
  // See Reporter::report_event().
  void record_event(bool warning, std::string reason, std::string message, WallTime at);
  void set_sample(const metrics::Aggregator& meter, WallTime at);   // its last sample
  void set_usage(std::string usage) { usage_ = std::move(usage); }  // usage_json

  // Writes the current documents into `pages`.
  void write_pages(web::Pages& pages);

 private:
  template <class Value>
  void assign_if_changed(Value& mine, Value now);

  NodePageInput input_;
  RecentMoments moments_;
  RecentEvents events_;
  SampleTrends trends_;
  bool changed_ = true;
  std::string node_, now_, use_, public_node_, public_use_, trends_json_, usage_;
};

}  // namespace gpulet::agent
