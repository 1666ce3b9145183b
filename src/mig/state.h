// What MIG is on one GPU: the profiles that it can have and the instances that it has. Plain values, as the
// driver says them; mig/read.h makes them, mig/plan.h plans on them.
//
// Nothing here is known beforehand: profiles, ids, sizes and placements differ by board and driver, so a plan
// made from a table is wrong on the next one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/strong.h"

namespace gpulet::mig {

// A run of slices: memory slices for a GPU instance, compute slices of its GPU instance for a compute
// instance. Source: nvmlGpuInstancePlacement_t, nvmlComputeInstancePlacement_t.
struct Placement {
  unsigned start = 0, size = 0;
  friend auto operator<=>(const Placement&, const Placement&) = default;
};

// A compute instance profile below one GPU instance profile. Source: nvmlComputeInstanceProfileInfo_t.
struct ComputeProfile {
  unsigned id = 0;
  unsigned slices = 0;  // compute slices, C of "1c.2g.20gb"
  // Possible ones in an empty GPU instance, by start; empty where the driver tells them only of an instance
  // that is there (nvmlGpuInstanceGetComputeInstancePossiblePlacements) and none is.
  std::vector<Placement> placements;
  friend bool operator==(const ComputeProfile&, const ComputeProfile&) = default;
};

// The media engines of one GPU instance: as compute slices, a GPU has as many as its largest profile.
struct Engines {
  unsigned decoders = 0, encoders = 0, jpegs = 0, ofas = 0;
  friend bool operator==(const Engines&, const Engines&) = default;
};

// A GPU instance profile of one GPU. Source: nvmlGpuInstanceProfileInfo_v2_t and _v3_t.
struct Profile {
  unsigned id = 0;      // the driver's; not the enumeration's index
  std::string name;     // "1g.10gb", "1g.10gb+me", "1g.24gb-me", "1g.24gb+gfx", "2g.48gb+me.all"
  unsigned slices = 0;  // compute slices
  Bytes memory;
  Engines engines;
  unsigned most = 0;                    // how many of it fit on an empty GPU (instanceCount)
  std::vector<Placement> placements;    // possible ones on an empty GPU, by start
  std::vector<ComputeProfile> compute;  // by slices; the last one has all of them
  friend bool operator==(const Profile&, const Profile&) = default;
};

struct ComputeInstance {
  unsigned id = 0;
  unsigned profile = 0;  // ComputeProfile::id
  Placement placement;   // size 0: the driver did not say
  DeviceUuid uuid;       // of the MIG device; empty when it was not asked
  friend bool operator==(const ComputeInstance&, const ComputeInstance&) = default;
};

struct GpuInstance {
  unsigned id = 0;
  unsigned profile = 0;  // Profile::id
  Placement placement;
  std::vector<ComputeInstance> compute;  // by id
  // Who holds it, one line each ("process 4711 (python3)", "Pod default/train"); it is never destroyed while
  // any does.
  std::vector<std::string> holders;
  friend bool operator==(const GpuInstance&, const GpuInstance&) = default;
};

// MIG of one GPU.
struct State {
  unsigned index = 0;  // as NVML counts
  DeviceUuid uuid;
  std::string model;
  std::uint32_t pci_device_id = 0, pci_subsystem_id = 0;  // device<<16 | vendor, as nvmlPciInfo_t
  bool capable = false;
  bool enabled = false;                // the mode in force
  std::optional<bool> pending;         // the mode after the next reset, where it differs
  std::vector<Profile> profiles;       // by id; empty when not capable
  std::vector<GpuInstance> instances;  // by placement
  std::vector<std::string> holders;    // of the whole GPU while MIG is off, as GpuInstance::holders
  friend bool operator==(const State&, const State&) = default;
};

}  // namespace gpulet::mig
