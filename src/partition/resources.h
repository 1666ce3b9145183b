// Resources out of a Snapshot: which devices the kubelet is offered, under which names. Pure.
#pragma once

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
  std::size_t gpu = 0;               // index into Snapshot::gpus
  std::optional<std::size_t> mig;    // index into that GPU's mig_devices
  std::optional<unsigned> replica;   // n of "<uuid>::<n>"
  std::optional<int> numa_node;
  inventory::Health health;

  bool shared() const { return mig.has_value() || replica.has_value(); }
  friend bool operator==(const Device&, const Device&) = default;
};

struct Resource {
  ResourceName name;
  config::SharingStrategy sharing = config::SharingStrategy::kNone;
  unsigned replicas = 1;
  bool fail_requests_greater_than_one = false;
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

// Every readable device is in exactly one resource. What a strategy cannot take is left out with a Note; the rest is
// offered (NVIDIA's plugin exits). An unreadable GPU whose UUID is known stays in its resource as unhealthy.
// Source: facts/device-plugin 1.3–1.5.
Plan plan(const inventory::Snapshot& snapshot, const config::Config& config);

}  // namespace gpulet::partition
