// The MIG state of one GPU (profiles and instances), and MIG layouts: a mode and the number of
// devices of each profile. Plain values as the driver reports them; hardware.h reads them, plan.h
// plans with them.
//
// Nothing is assumed: profiles, ids, sizes and placements differ by board and driver, so a plan made
// from a fixed table would be wrong on the next board.
//
// Source: mig-parted v0.15.0 (api/spec/v1), the profile names of go-nvlib and nvidia-smi.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace gpulet::mig {

// A range of slices: memory slices for a GPU instance, compute slices of its GPU instance for a
// compute instance. Source: nvmlGpuInstancePlacement_t, nvmlComputeInstancePlacement_t.
struct Placement {
  unsigned start = 0, size = 0;
  friend auto operator<=>(const Placement&, const Placement&) = default;
};

// A compute instance profile of one GPU instance profile. Source: nvmlComputeInstanceProfileInfo_t.
struct ComputeProfile {
  unsigned id = 0;
  unsigned slices = 0;  // compute slices, C of "1c.2g.20gb"
  // Possible placements in an empty GPU instance, by start. Empty if the driver reports them only
  // for an existing instance (nvmlGpuInstanceGetComputeInstancePossiblePlacements) and there is
  // none.
  std::vector<Placement> placements;
  friend bool operator==(const ComputeProfile&, const ComputeProfile&) = default;
};

// Media engines of one GPU instance. As with compute slices, a GPU has as many as its largest
// profile.
struct Engines {
  unsigned decoders = 0, encoders = 0, jpegs = 0, ofas = 0;
  friend bool operator==(const Engines&, const Engines&) = default;
};

// A GPU instance profile of one GPU. Source: nvmlGpuInstanceProfileInfo_v2_t and _v3_t.
struct Profile {
  unsigned id = 0;      // the driver's id, not the enumeration's index
  std::string name;     // "1g.10gb", "1g.10gb+me", "1g.24gb-me", "1g.24gb+gfx", "2g.48gb+me.all"
  unsigned slices = 0;  // compute slices
  Bytes memory;
  Engines engines;
  unsigned max_instances = 0;           // how many of it fit on an empty GPU (instanceCount)
  std::vector<Placement> placements;    // possible placements on an empty GPU, by start
  std::vector<ComputeProfile> compute;  // by slices; the last one has all slices
  unsigned multiprocessors = 0, copy_engines = 0;
  friend bool operator==(const Profile&, const Profile&) = default;
};

struct ComputeInstance {
  unsigned id = 0;
  unsigned profile = 0;  // ComputeProfile::id
  Placement placement;   // size 0: not reported by the driver
  DeviceUuid uuid;       // of the MIG device; empty if not read
  friend bool operator==(const ComputeInstance&, const ComputeInstance&) = default;
};

struct GpuInstance {
  unsigned id = 0;
  unsigned profile = 0;  // Profile::id
  Placement placement;
  std::vector<ComputeInstance> compute;  // by id
  // Processes and Pods that hold the instance, one line each ("process 4711 (python3)", "Pod
  // default/train"). It is never destroyed while there are any.
  std::vector<std::string> holders;
  friend bool operator==(const GpuInstance&, const GpuInstance&) = default;
};

// MIG of one GPU.
struct State {
  unsigned index = 0;  // NVML index
  DeviceUuid uuid;
  std::string model;
  std::uint32_t pci_device_id = 0, pci_subsystem_id = 0;  // device<<16 | vendor, as nvmlPciInfo_t
  bool capable = false;
  bool enabled = false;                // the current mode
  std::optional<bool> pending;         // the mode after the next reset, if it differs
  std::vector<Profile> profiles;       // by id; empty if not capable
  std::vector<GpuInstance> instances;  // by placement
  std::vector<std::string> holders;    // of the whole GPU while MIG is off, as in GpuInstance::holders
  friend bool operator==(const State&, const State&) = default;
};

// The MIG layout of one GPU, current or requested.
struct Layout {
  bool enabled = false;
  // Devices (compute instances) by profile name, in the form of parse_profile_name; no count is 0.
  std::map<std::string, unsigned> devices;
  friend bool operator==(const Layout&, const Layout&) = default;
};

// "1g.10gb", "1g.10gb+me", "1g.24gb-me", "2g.48gb+me.all", and "1c.2g.20gb" for a compute instance
// that is smaller than its GPU instance.
struct ProfileName {
  unsigned compute = 0;  // slices of the compute instance; equal to `slices` if the name has no "Nc."
  unsigned slices = 0;   // of the GPU instance
  unsigned gigabytes = 0;
  std::string instance;  // the GPU instance's profile name: "2g.20gb" of "1c.2g.20gb"
  bool is_whole() const { return compute == slices; }
  std::string canonical_name() const;  // "2g.20gb" for "2c.2g.20gb"
  friend bool operator==(const ProfileName&, const ProfileName&) = default;
};

// Errors: kInvalidArgument, with the part that is wrong and what was expected.
Result<ProfileName> parse_profile_name(std::string_view text);

// "1g.10gb" or, for a smaller compute instance, "1c.2g.20gb".
std::string device_name(const Profile& profile, unsigned compute_slices);

// The profile with that id or name; null if there is none.
const Profile* find_profile(const State& state, unsigned id);
const Profile* find_profile(const State& state, std::string_view name);

// Compute slices of the compute profile with that id; nullopt if the profile does not have it.
std::optional<unsigned> compute_slices(const Profile& profile, unsigned compute_profile);

// The GPU's current layout. A GPU instance without a compute instance is no device.
Layout current_layout(const State& state);

// "7 × 1g.10gb + 1 × 2g.20gb", "no instances", "MIG disabled".
std::string layout_text(const Layout& layout);

// "at 3", "at 4-7".
std::string placement_text(const Placement& place);

// "GPU 0 (NVIDIA H100 80GB HBM3)".
std::string describe_gpu(const State& state);

// Layouts that a GPU itself offers, for nodes without a layout file. Names are those of
// mig-parted's default and generated files, so that a node's label keeps working; counts come from
// the driver.
//   all-disabled, all-enabled       no instances
//   all-<profile>                   as many of it as fit, with '.' for '+', which label values do not allow
//   all-balanced                    2 of 1g, 1 of 2g and, with seven slices, 1 of 3g
// Source: mig-parted v0.15.0, pkg/mig/builder and deployments/systemd/config-default.yaml.
struct NamedLayout {
  std::string name;
  Layout layout;
  friend bool operator==(const NamedLayout&, const NamedLayout&) = default;
};

// The layouts of one GPU, by name. Each fits on it. Only all-disabled for a GPU without MIG.
std::vector<NamedLayout> derive_layouts(const State& gpu);

// For each GPU the layout of that name; nullopt for a GPU without it, for example without the
// profile. Errors: kNotFound if no GPU has one, with the nearest names.
Result<std::vector<std::optional<Layout>>> derived_layouts(std::string_view name,
                                                           std::span<const State> gpus);

}  // namespace gpulet::mig
