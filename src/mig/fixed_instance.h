// One MIG device at a fixed placement: made when a claim needs it, and removed after it. Nothing else on the
// GPU is touched, and the MIG mode is not changed. Each call may be interrupted after any step, and called
// again.
//
// Source: docs/dra.md, "Dynamic MIG".
#pragma once

#include <string>

#include "base/result.h"
#include "base/types.h"
#include "mig/hardware.h"
#include "mig/layout.h"

namespace gpulet::mig {

// A GPU instance with one compute instance of all its slices.
struct FixedPlace {
  unsigned profile = 0;  // Profile::id
  Placement placement;
  friend bool operator==(const FixedPlace&, const FixedPlace&) = default;
};

// The UUID of the MIG device that is exactly there; empty if the place is free. Errors: those of the driver;
// kFailedPrecondition where MIG is off; kUnsupported where the GPU has no such profile or placement;
// kUnavailable for an instance that overlaps the place, a GPU instance there without its one device, and a
// device that a process holds, with its name.
Result<DeviceUuid> find_fixed_instance(Hardware& hardware, const FixedPlace& place);

// Makes it and returns its UUID. `resumes`: what is there was perhaps begun by an earlier call, and is
// completed. Without it, a GPU instance that is exactly there is kNotMade, and stays as it is. Errors
// otherwise: those of find_fixed_instance(), without the holders; those of the driver. After an error, less
// than the whole may be there.
inline constexpr Code kNotMade = Code::kInternal;
Result<DeviceUuid> make_fixed_instance(Hardware& hardware, const FixedPlace& place, bool resumes);

// Removes what make_fixed_instance() has made or begun. `uuid`: what it returned; empty if that is unknown.
// No error where nothing is there, or another device. Errors: kUnavailable while a process holds it; those of
// the driver.
Status remove_fixed_instance(Hardware& hardware, const FixedPlace& place, const DeviceUuid& uuid);

}  // namespace gpulet::mig
