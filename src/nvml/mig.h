// MIG of one GPU, as the driver knows it: profiles, GPU instances, compute instances, and what makes and
// destroys them. All but the profiles needs a privileged caller.
//
// Instances are named by their ids. Each call looks the driver's handle up anew: a handle is invalid once its
// instance is destroyed, and another program may do that at any time.
//
// Threads and errors as Session's. kFailedPrecondition also when there is no room for what shall be made.
// Source: nvml.h, "Multi Instance GPU Management".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// Source: nvmlGpuInstanceProfileInfo_v3_t.
struct GpuInstanceProfile {
  unsigned id = 0;
  unsigned index = 0;      // NVML_GPU_INSTANCE_PROFILE_*
  std::string name;        // "1g.10gb+me"; empty where the driver, before 510 or so, has none
  std::string attributes;  // as its index says, where there is no name: "+me", "+gfx", "-me", "+me.all"
  unsigned slices = 0;     // compute slices
  unsigned most = 0;       // on an empty GPU
  unsigned multiprocessors = 0, copy_engines = 0, decoders = 0, encoders = 0, jpegs = 0, ofas = 0;
  std::uint64_t memory_mib = 0;
};
// Source: nvmlComputeInstanceProfileInfo_t.
struct ComputeInstanceProfile {
  unsigned id = 0;
  unsigned slices = 0;
  unsigned most = 0;  // in an empty GPU instance
};
struct Instance {
  unsigned id = 0;
  unsigned profile = 0;  // id
  Placement placement;   // of a compute instance in compute slices; size 0 where the driver does not tell
};

class Mig {
 public:
  // `session` outlives it.
  Mig(const Session& session, Device gpu) : session_(session), gpu_(gpu) {}

  // Turns MIG on or off. false: only the next reset of the GPU does it. kFailedPrecondition while the GPU is
  // in use; the mode then waits as well.
  Result<bool> set_mode(bool enabled) const;

  // Those that the GPU has, by index. Empty for a GPU without MIG.
  Result<std::vector<GpuInstanceProfile>> profiles() const;
  // Where instances of that profile may be on an empty GPU. kUnsupported before driver 450 or so.
  Result<std::vector<Placement>> placements(unsigned profile) const;
  // In MIG mode only, kUnsupported else.
  Result<std::vector<Instance>> instances(unsigned profile) const;
  Result<unsigned> create(unsigned profile, Placement placement) const;
  Status destroy(unsigned instance) const;

  // Of the GPU instance of that id: kNotFound when there is none.
  Result<std::vector<ComputeInstanceProfile>> compute_profiles(unsigned instance) const;
  Result<std::vector<Placement>> compute_placements(unsigned instance, unsigned profile) const;
  Result<std::vector<Instance>> compute_instances(unsigned instance, unsigned profile) const;
  // Without a placement, or with a driver that takes none, the driver chooses.
  Result<unsigned> create_compute(unsigned instance, unsigned profile,
                                  std::optional<Placement> placement) const;
  Status destroy_compute(unsigned instance, unsigned compute) const;

  // The MIG devices, by GPU instance and compute instance.
  struct MigDevice {
    unsigned gpu_instance = 0, compute_instance = 0;
    DeviceUuid uuid;
  };
  Result<std::vector<MigDevice>> devices() const;

 private:
  template <class Function, class... Arguments>
  Status ask(Function function, const char* name, Arguments... arguments) const;
  // The driver's handle of a GPU instance.
  Result<void*> instance(unsigned id) const;
  Result<std::optional<GpuInstanceProfile>> profile_at(unsigned index) const;
  Result<MigDevice> device_at(unsigned index) const;

  const Session& session_;
  Device gpu_;
};

}  // namespace gpulet::nvml
