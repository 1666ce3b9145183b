// What MIG shall be on one GPU, or is: a mode and the number of devices of each profile. And the names of
// profiles: "1g.10gb", "1g.10gb+me", "1g.24gb-me", "2g.48gb+me.all", and with a compute part, for a compute
// instance that is smaller than its GPU instance, "1c.2g.20gb".
//
// Source: mig-parted v0.15.0 (api/spec/v1), go-nvlib's profile names, nvidia-smi's.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "mig/state.h"

namespace gpulet::mig {

struct Layout {
  bool enabled = false;
  // Devices (compute instances) by profile name, as parse_profile_name writes it; no count is 0.
  std::map<std::string, unsigned> devices;
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct ProfileName {
  unsigned compute = 0;  // slices of the compute instance; as many as `slices` when the name has no "Nc."
  unsigned slices = 0;   // of the GPU instance
  unsigned gigabytes = 0;
  std::string instance;  // the GPU instance's name, Profile::name: "2g.20gb" of "1c.2g.20gb"
  bool whole() const { return compute == slices; }
  std::string str() const;  // "2g.20gb" for "2c.2g.20gb"
  friend bool operator==(const ProfileName&, const ProfileName&) = default;
};

// Errors: kInvalidArgument, with the part that is wrong and what would do.
Result<ProfileName> parse_profile_name(std::string_view text);

// "1g.10gb" or, of a part of one, "1c.2g.20gb".
std::string device_name(const Profile& profile, unsigned compute_slices);

// The profile of that id or name; null for none.
const Profile* find_profile(const State& state, unsigned id);
const Profile* find_profile(const State& state, std::string_view name);

// Compute slices of a compute profile's id; nullopt where the profile has no such.
std::optional<unsigned> compute_slices(const Profile& profile, unsigned compute_profile);

// What the GPU has now: a GPU instance without a compute instance is no device.
Layout layout_now(const State& state);

// "7 × 1g.10gb + 1 × 2g.20gb", "no instances", "MIG disabled".
std::string describe(const Layout& layout);

// "at 3", "at 4-7".
std::string at(const Placement& place);

// "GPU 0 (NVIDIA H100 80GB HBM3)".
std::string describe_gpu(const State& state);

}  // namespace gpulet::mig
