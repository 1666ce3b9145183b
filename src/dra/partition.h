// A MIG device that is made when a claim that was allocated it is prepared, and removed after the claim.
#pragma once

#include <compare>
#include <functional>
#include <string>

#include "base/result.h"
#include "base/types.h"
#include "mig/layout.h"

namespace gpulet::dra {

// A GPU instance of that profile on those memory slices, with one compute instance of all its slices.
struct Partition {
  std::string profile;  // "1g.10gb"
  unsigned profile_id = 0;
  mig::Placement placement;
  bool overlaps(const Partition& other) const {
    const auto &a = placement, &b = other.placement;
    return a.start < b.start + b.size && b.start < a.start + a.size;
  }
  friend auto operator<=>(const Partition&, const Partition&) = default;
};
// "1g.10gb at 3", "3g.40gb at 4-7".
std::string partition_text(const Partition& partition);

// Makes and removes the partitions of claims on the driver's thread. Loop's thread only. Each callback comes
// at most once, from the loop, never from inside the call; none comes once the driver is replaced.
class ClaimPartitions {
 public:
  virtual ~ClaimPartitions() = default;
  // The UUID of the MIG device that is exactly there; empty if the place is free. Errors:
  // mig::find_fixed_instance.
  virtual void find_partition(const DeviceUuid& gpu, const Partition& partition,
                              std::function<void(Result<DeviceUuid>)> done) = 0;
  // Errors: mig::make_fixed_instance.
  virtual void make_partition(const DeviceUuid& gpu, const Partition& partition, bool resumes,
                              std::function<void(Result<DeviceUuid>)> done) = 0;
  // Errors: mig::remove_fixed_instance.
  virtual void remove_partition(const DeviceUuid& gpu, const Partition& partition, const DeviceUuid& uuid,
                                std::function<void(Status)> done) = 0;
};

}  // namespace gpulet::dra
