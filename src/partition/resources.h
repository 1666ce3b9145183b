// Resources out of a Snapshot: which devices the kubelet is offered, under which names. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/strong.h"
#include "config/config.h"
#include "inventory/snapshot.h"

namespace gpulet::partition {

// One thing that the kubelet can allocate: a GPU, a MIG device, or one share of either.
struct Device {
  DeviceId id;
  std::size_t gpu = 0;              // index into Snapshot::gpus
  std::optional<std::size_t> mig;   // index into that GPU's mig_devices
  std::optional<unsigned> replica;  // n of "<uuid>::<n>"
  // What its holder may use of the GPU where MPS shares differ by rule; absent: the daemon's default limits.
  std::optional<config::MpsShare> share;
  std::optional<int> numa_node;
  inventory::Health health;

  bool shared() const { return mig.has_value() || replica.has_value(); }
  friend bool operator==(const Device&, const Device&) = default;
};

struct Resource {
  ResourceName name;
  config::SharingStrategy sharing = config::SharingStrategy::kNone;
  unsigned replicas = 1;  // shares of one device in this resource
  bool fail_requests_greater_than_one = false;
  // With MPS: the control daemon that serves it, by the name of its folder below the MPS root
  // ("nvidia.com/gpu"). Resources with the same one share it: one rule's shares of several sizes. Empty
  // without MPS.
  std::string mps_daemon;
  std::vector<Device> devices;  // by (GPU, MIG device, replica): stable over restarts and unrelated changes
  friend bool operator==(const Resource&, const Resource&) = default;
};

// What could not be offered, for one event and one log line each: "GPU 3 (GPU-…) has MIG on and no instance".
struct Note {
  std::string message;
  friend bool operator==(const Note&, const Note&) = default;
};

struct Plan {
  std::vector<Resource> resources;  // by name; none without devices
  std::vector<Note> notes;
  friend bool operator==(const Plan&, const Plan&) = default;
};

// What the plan needs to know of the node beside its GPUs.
struct NodeFacts {
  std::map<std::string, std::string> labels;  // of the Node; empty outside a cluster
  // GPUs that are offered nothing of for now, each with why in a few words ("is being cut up as
  // all-balanced"): whoever changes a GPU puts it here first.
  std::map<DeviceUuid, std::string> withdrawn;
};

// Each GPU follows the first of gpulet.partition's rules that selects it, or `flags` and `sharing` where none
// does. Every readable device is in exactly one resource. What a strategy or a rule cannot take is left out
// with a Note; the rest is offered (NVIDIA's plugin exits). A resource means one thing: a rule's devices
// whose resource has other ones already, of GPUs that no rule selects or of an earlier rule, cut or shared in
// another way, are left out with a Note. An unreadable GPU whose UUID is known stays in its resource as
// unhealthy. A GPU whose rule wants MIG in another state than it is in is left out with a Note until it is so
// (desired_mig.h). Source: facts/device-plugin 1.3–1.5.
Plan plan(const inventory::Snapshot& snapshot, const config::Config& config, const NodeFacts& facts = {});

}  // namespace gpulet::partition
