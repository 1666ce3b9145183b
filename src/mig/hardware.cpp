// The Hardware that is a GPU of the driver's.
#include <algorithm>

#include "mig/apply.h"
#include "mig/read.h"
#include "nvml/mig.h"
#include "nvml/session.h"

namespace gpulet::mig {
namespace {

nvml::Placement to_nvml(const Placement& place) { return {place.start, place.size}; }

class DriverHardware : public Hardware {
 public:
  DriverHardware(std::shared_ptr<const nvml::Session> session, unsigned index, DeviceUuid uuid,
                 std::string proc_root)
      : session_(std::move(session)),
        index_(index),
        uuid_(std::move(uuid)),
        proc_root_(std::move(proc_root)) {}

  Result<State> read() override {
    GPULET_TRY(gpu());
    return mig::read(*session_, index_, proc_root_);
  }
  Result<std::vector<std::string>> holders(std::optional<unsigned> instance) override {
    GPULET_TRY(gpu());
    return read_holders(*session_, index_, instance, proc_root_);
  }
  Result<bool> set_mode(bool enabled) override {
    GPULET_TRY_ASSIGN(const auto device, gpu());
    GPULET_TRY_ASSIGN(const bool in_force, nvml::Mig(*session_, device).set_mode(enabled));
    return !in_force;
  }
  Status destroy_compute(unsigned instance, unsigned compute) override {
    GPULET_TRY_ASSIGN(const auto device, gpu());
    return nvml::Mig(*session_, device).destroy_compute(instance, compute);
  }
  Status destroy_instance(unsigned instance) override {
    GPULET_TRY_ASSIGN(const auto device, gpu());
    return nvml::Mig(*session_, device).destroy(instance);
  }
  Result<unsigned> create_instance(unsigned profile, const Placement& placement) override {
    GPULET_TRY_ASSIGN(const auto device, gpu());
    return nvml::Mig(*session_, device).create(profile, to_nvml(placement));
  }
  Result<unsigned> create_compute(unsigned instance, const NewCompute& compute) override {
    GPULET_TRY_ASSIGN(const auto device, gpu());
    const nvml::Mig mig(*session_, device);
    auto profile = compute.profile;
    if (!profile) {
      GPULET_TRY_ASSIGN(const auto profiles, mig.compute_profiles(instance));
      const auto found = std::ranges::find(profiles, compute.slices, &nvml::ComputeInstanceProfile::slices);
      if (found == profiles.end()) {
        return fail(Code::kUnsupported, "no compute instance profile of " + std::to_string(compute.slices) +
                                            " slices for " + compute.device);
      }
      profile = found->id;
    }
    const auto placement = compute.placement ? std::optional(to_nvml(*compute.placement)) : std::nullopt;
    return mig.create_compute(instance, *profile, placement);
  }

 private:
  // A mode change may reset the GPU, and a GPU that falls off the bus moves the others up: its handle is
  // asked for each time, and that it is still the same GPU.
  Result<nvml::Device> gpu() const {
    GPULET_TRY_ASSIGN(const auto device, session_->device(index_));
    GPULET_TRY_ASSIGN(const auto uuid, session_->uuid(device));
    if (uuid == uuid_) return device;
    return fail(Code::kFailedPrecondition, "GPU " + std::to_string(index_) + " is another one now",
                uuid_.str());
  }

  std::shared_ptr<const nvml::Session> session_;
  unsigned index_;
  DeviceUuid uuid_;
  std::string proc_root_;
};

}  // namespace

std::unique_ptr<Hardware> make_hardware(std::shared_ptr<const nvml::Session> session, unsigned index,
                                        DeviceUuid uuid, const std::string& proc_root) {
  return std::make_unique<DriverHardware>(std::move(session), index, std::move(uuid), proc_root);
}

}  // namespace gpulet::mig
