// The three documents that the node page and `gpulet top` are drawn from, as JSON of one line each, built
// from plain values. Pure: the same input gives the same bytes, and nothing is in them but what is named
// here: no environment, no annotation, no argument of a Pod.
//
// node_document, what changes rarely:
//   name, version, driver {version, cuda}, problems [text]
//   gpus [{index, uuid, model, architecture, slot, numa, memory (bytes), nvswitch_links,
//          state, offered, since, reason, comes_back, due, relapses, faults [{text, effect, count, opened,
//          last, detail}], resource, shares [device id], holders [{device, uuid, namespace, pod, container,
//          resource}], mig null or {slices, devices [{index, uuid, profile, start, size, memory, state,
//          reason}]}}]
//   links [[word of `nvidia-smi topo -m`]], in the order of gpus
//   timeline [{at, uuid, device, from, to, reason}], events [{at, severity, reason, message}], oldest first
//   config: the config in force as text
// now_document, the numbers of one sample:
//   at, gpus {uuid: {util, sm, memory_util (percent), memory (bytes used), temperature, memory_temperature
//   (°C), power, power_limit (W), sm_clock, memory_clock (MHz)}}, mig {uuid: {util, sm, memory}}
// use_document, who used what of each device in that sample, where a Pod holds it or a process uses it:
//   at, devices {uuid of a GPU or MIG device: {pods [{namespace, pod, containers [text], shares, memory, busy
//   (percent of the device's time)}], rest {memory, busy}: what is nobody's, processes [{pid, name, memory,
//   sm, namespace, pod}]}}
// Times are milliseconds since 1970; what is not known is null in the first and left out of the others.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/strong.h"
#include "health/view.h"
#include "inventory/snapshot.h"
#include "kubelet/pod_resources.h"
#include "metrics/attribution.h"
#include "metrics/sample.h"

namespace gpulet::agent {

// A device's change from one state to another, and something that was reported: each a line of the page.
struct HealthMoment {
  WallTime at;
  DeviceUuid gpu;
  std::string device;  // health::describe
  health::State before = health::State::kHealthy, after = health::State::kHealthy;
  std::string reason;
};
struct RecentEvent {
  WallTime at;
  bool warning = false;
  std::string reason;   // "GPUUnhealthy"
  std::string message;  // one line
};

// The last of many, oldest first.
template <class Entry, std::size_t kMost>
class Recent {
 public:
  void add(Entry entry) {
    entries_.push_back(std::move(entry));
    if (entries_.size() > kMost) entries_.pop_front();
  }
  const std::deque<Entry>& entries() const { return entries_; }

 private:
  std::deque<Entry> entries_;
};
using RecentMoments = Recent<HealthMoment, 200>;
using RecentEvents = Recent<RecentEvent, 100>;

// A change of health as a line of the timeline. `view`: the one after it; `at` as its clock has it.
HealthMoment moment_of(const health::Change& change, const health::View& view);

struct NodePageInput {
  std::string node_name, version;
  std::vector<std::string> problems;                  // State::problems()
  inventory::SnapshotPtr snapshot;                    // null before the first
  health::ViewPtr health;                             // null before the first
  kubelet::DevicesByResource offered;                 // every device of every resource that is served
  std::vector<kubelet::ContainerDevices> containers;  // who holds what, as the kubelet says
  std::string config;                                 // config::print_yaml
  const RecentMoments* moments = nullptr;
  const RecentEvents* events = nullptr;
};

// What of a sample is in now_document.
std::set<metrics::Field> now_fields();

// Texts that are no UTF-8 have U+FFFD where they are not. Cost: linear in devices, holders and lines.
std::string node_document(const NodePageInput& input);
// A GPU that did not answer is not in it. A MIG device has what its GPU instance has.
std::string now_document(const metrics::Sample& sample, WallTime at);

// Pods as `devices` has them, whose memory and busy time are left out where they are not known of each;
// processes by pid, with the Pod of those whose is known.
std::string use_document(const metrics::Sample& sample, const std::map<DeviceUuid, metrics::Shares>& devices,
                         const metrics::PodOfProcess& pods, WallTime at);

}  // namespace gpulet::agent
