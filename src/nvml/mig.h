// MIG of one GPU through the driver: profiles, GPU instances and compute instances. Everything but
// the profiles needs a privileged caller.
//
// Instances are named by id. Each call looks up the driver's handle again, because a handle becomes
// invalid when its instance is destroyed, and another program may do that at any time.
//
// Threads and errors are those of Session; also kFailedPrecondition if there is no room for a new
// instance.
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
  unsigned index = 0;          // NVML_GPU_INSTANCE_PROFILE_*
  std::string name;            // "1g.10gb+me"; empty before driver 510 or so, which reports no names
  std::string attributes;      // derived from the index if there is no name: "+me", "+gfx", "-me", "+me.all"
  unsigned slices = 0;         // compute slices
  unsigned max_instances = 0;  // on an empty GPU
  unsigned multiprocessors = 0, copy_engines = 0, decoders = 0, encoders = 0, jpegs = 0, ofas = 0;
  std::uint64_t memory_mib = 0;
};
// Source: nvmlComputeInstanceProfileInfo_t.
struct ComputeInstanceProfile {
  unsigned id = 0;
  unsigned slices = 0;
  unsigned max_instances = 0;  // in an empty GPU instance
};
struct Instance {
  unsigned id = 0;
  unsigned profile = 0;  // id
  Placement placement;   // a compute instance's is in compute slices; size 0 if the driver does not report it
};

// What a change of the MIG mode led to. The last two leave the mode pending; call again when the cause is
// gone.
enum class MigActivation {
  kActive,
  kInUse,          // Ampere: a process, a monitor or an instance holds the GPU, so the driver cannot reset it
  kResetRequired,  // the driver cannot reset the GPU itself, as in a VM with pass-through
};

class Mig {
 public:
  // `session` must outlive this object.
  Mig(const Session& session, Device gpu) : session_(session), gpu_(gpu) {}

  // Turns MIG on or off. On Ampere the driver resets the idle GPU for it. On later GPUs kFailedPrecondition
  // while the GPU is in use; the mode is then pending as well. Source: nvml.h, nvmlDeviceSetMigMode;
  // docs/real-hardware.md.
  Result<MigActivation> set_mig_mode(bool enabled) const;

  // The GPU's profiles, by index. Empty for a GPU without MIG.
  Result<std::vector<GpuInstanceProfile>> gpu_instance_profiles() const;
  // Possible placements of that profile on an empty GPU. kUnsupported before driver 450 or so.
  Result<std::vector<Placement>> gpu_instance_placements(unsigned profile) const;
  // kUnsupported outside MIG mode.
  Result<std::vector<Instance>> gpu_instances(unsigned profile) const;
  Result<unsigned> create_gpu_instance(unsigned profile, Placement placement) const;
  Status destroy_gpu_instance(unsigned instance) const;

  // All three are about one GPU instance: kNotFound if no instance has that id.
  Result<std::vector<ComputeInstanceProfile>> compute_profiles(unsigned instance) const;
  Result<std::vector<Placement>> compute_placements(unsigned instance, unsigned profile) const;
  Result<std::vector<Instance>> compute_instances(unsigned instance, unsigned profile) const;
  // Without a placement, or with a driver that does not accept one, the driver chooses.
  Result<unsigned> create_compute_instance(unsigned instance, unsigned profile,
                                           std::optional<Placement> placement) const;
  Status destroy_compute_instance(unsigned instance, unsigned compute) const;

  // The MIG devices, by GPU instance and compute instance.
  struct MigDevice {
    unsigned gpu_instance = 0, compute_instance = 0;
    DeviceUuid uuid;
  };
  Result<std::vector<MigDevice>> mig_devices() const;

 private:
  template <class Function, class... Arguments>
  Status invoke(Function function, const char* name, Arguments... arguments) const;
  bool waits_for_reset(bool enabled) const;
  // The driver's handle of a GPU instance.
  Result<void*> gpu_instance_handle(unsigned id) const;
  Result<std::optional<GpuInstanceProfile>> profile_at(unsigned index) const;
  Result<MigDevice> device_at(unsigned index) const;

  const Session& session_;
  Device gpu_;
};

}  // namespace gpulet::nvml
