#include "mig/hardware.h"

#include <algorithm>

#include "base/device_id.h"
#include "base/file.h"
#include "base/text.h"
#include "inventory/snapshot_reader.h"
#include "mig/apply.h"
#include "nvml/mig.h"
#include "nvml/return_codes.h"
#include "nvml/session.h"

namespace gpulet::mig {
namespace {

// Values that an old driver does not report are left out.
template <class T>
Status optional_list(Result<std::vector<T>> list, std::vector<T>& into) {
  if (list) {
    into = std::move(*list);
    return {};
  }
  if (list.error().code() == Code::kUnsupported) return {};
  return fail(list.error());
}

std::vector<Placement> to_placements(const std::vector<nvml::Placement>& from) {
  std::vector<Placement> all;
  for (const auto& place : from) all.push_back({place.start, place.size});
  std::ranges::sort(all);
  return all;
}

Result<std::vector<nvml::Process>> processes_of(const nvml::Session& session, nvml::Device device) {
  std::vector<nvml::Process> all;
  GPULET_TRY(optional_list(session.running_processes(device), all));
  return all;
}

// Lists each process once. A process that the driver assigns to no instance holds the GPU.
std::vector<std::string> holders_of(const std::vector<nvml::Process>& processes,
                                    std::optional<unsigned> instance, const std::string& proc_root) {
  std::vector<std::string> holders;
  std::optional<unsigned> last;
  for (const auto& process : processes) {
    if (process.gpu_instance != instance || last == process.pid) continue;
    last = process.pid;
    holders.push_back(process_text(process.pid, proc_root));
  }
  return holders;
}

Result<Profile> read_profile(const nvml::Mig& mig, const nvml::GpuInstanceProfile& from, Bytes total) {
  Profile profile;
  profile.id = from.id;
  profile.slices = from.slices;
  profile.memory = mebibytes(from.memory_mib);
  profile.engines = {from.decoders, from.encoders, from.jpegs, from.ofas};
  profile.max_instances = from.max_instances;
  profile.multiprocessors = from.multiprocessors;
  profile.copy_engines = from.copy_engines;
  profile.name = from.name;
  if (profile.name.empty()) {
    profile.name =
        inventory::mig_profile_of_slices(from.slices, from.slices, profile.memory, total) + from.attributes;
  }
  std::vector<nvml::Placement> placements;
  GPULET_TRY(optional_list(mig.gpu_instance_placements(from.id), placements));
  profile.placements = to_placements(placements);
  return profile;
}

// The driver reports compute profiles only for an existing GPU instance.
Status read_compute_profiles(const nvml::Mig& mig, unsigned instance, Profile& profile) {
  std::vector<ComputeProfile> all;
  GPULET_TRY_ASSIGN(const auto profiles, mig.compute_profiles(instance));
  for (const auto& from : profiles) {
    std::vector<nvml::Placement> placements;
    GPULET_TRY(optional_list(mig.compute_placements(instance, from.id), placements));
    all.push_back({from.id, from.slices, to_placements(placements)});
  }
  std::ranges::sort(all, {}, &ComputeProfile::slices);
  profile.compute = std::move(all);
  return {};
}

Result<GpuInstance> read_instance(const nvml::Mig& mig, const nvml::Instance& from, Profile& profile) {
  GpuInstance instance{from.id, from.profile, {from.placement.start, from.placement.size}, {}, {}};
  if (profile.compute.empty()) GPULET_TRY(read_compute_profiles(mig, from.id, profile));
  for (const auto& compute : profile.compute) {
    GPULET_TRY_ASSIGN(const auto listed, mig.compute_instances(from.id, compute.id));
    for (const auto& one : listed) {
      instance.compute.push_back({one.id, one.profile, {one.placement.start, one.placement.size}, {}});
    }
  }
  std::ranges::sort(instance.compute, {}, &ComputeInstance::id);
  return instance;
}

Status read_instances(const nvml::Mig& mig, State& state) {
  for (auto& profile : state.profiles) {
    GPULET_TRY_ASSIGN(const auto listed, mig.gpu_instances(profile.id));
    for (const auto& from : listed) {
      auto instance = read_instance(mig, from, profile);
      if (!instance && nvml::is_gone(instance.error())) continue;
      if (!instance) return fail(instance.error());
      state.instances.push_back(std::move(*instance));
    }
  }
  std::ranges::sort(state.instances, {}, &GpuInstance::placement);
  GPULET_TRY_ASSIGN(const auto devices, mig.mig_devices());
  for (const auto& device : devices) {
    const auto instance = std::ranges::find(state.instances, device.gpu_instance, &GpuInstance::id);
    if (instance == state.instances.end()) continue;
    const auto compute = std::ranges::find(instance->compute, device.compute_instance, &ComputeInstance::id);
    if (compute != instance->compute.end()) compute->uuid = device.uuid;
  }
  return {};
}

Status read_mig(const nvml::Session& session, nvml::Device device, State& state) {
  const nvml::Mig mig(session, device);
  GPULET_TRY_ASSIGN(const auto profiles, mig.gpu_instance_profiles());
  GPULET_TRY_ASSIGN(const Bytes total, session.memory_total(device));
  for (const auto& from : profiles) {
    GPULET_TRY_ASSIGN(auto profile, read_profile(mig, from, total));
    state.profiles.push_back(std::move(profile));
  }
  std::ranges::sort(state.profiles, {}, &Profile::id);
  return state.enabled ? read_instances(mig, state) : Status{};
}

}  // namespace

Result<State> read_mig_state(const nvml::Session& session, unsigned index, const std::string& proc_root) {
  State state;
  state.index = index;
  GPULET_TRY_ASSIGN(const auto device, session.device(index));
  GPULET_TRY_ASSIGN(state.uuid, session.device_uuid(device));
  state.model = session.product_name(device).value_or("");
  GPULET_TRY_ASSIGN(const auto pci, session.pci(device));
  state.pci_device_id = pci.device_id;
  state.pci_subsystem_id = pci.subsystem_id;
  const auto mode = session.mig_mode(device);
  if (!mode && mode.error().code() != Code::kUnsupported) return fail(mode.error());
  if (mode) {
    state.capable = true;
    state.enabled = mode->current;
    if (mode->pending != mode->current) state.pending = mode->pending;
    GPULET_TRY(read_mig(session, device, state));
  }
  GPULET_TRY_ASSIGN(const auto processes, processes_of(session, device));
  state.holders = holders_of(processes, std::nullopt, proc_root);
  for (auto& instance : state.instances) instance.holders = holders_of(processes, instance.id, proc_root);
  return state;
}

Result<std::vector<std::string>> read_holders(const nvml::Session& session, unsigned index,
                                              std::optional<unsigned> instance,
                                              const std::string& proc_root) {
  GPULET_TRY_ASSIGN(const auto device, session.device(index));
  GPULET_TRY_ASSIGN(const auto processes, processes_of(session, device));
  return holders_of(processes, instance, proc_root);
}

// Hardware through the driver.

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

  Result<State> read_state() override {
    GPULET_TRY(open_gpu());
    return mig::read_mig_state(*session_, index_, proc_root_);
  }
  Result<std::vector<std::string>> holders(std::optional<unsigned> instance) override {
    GPULET_TRY(open_gpu());
    return read_holders(*session_, index_, instance, proc_root_);
  }
  Result<nvml::MigActivation> set_mode(bool enabled) override {
    GPULET_TRY_ASSIGN(const auto device, open_gpu());
    return nvml::Mig(*session_, device).set_mig_mode(enabled);
  }
  std::vector<DeviceHolder> device_holders() override {
    const auto device = open_gpu();
    const auto minor = device ? session_->minor_number(*device) : Result<unsigned>(fail(device.error()));
    return minor ? find_device_holders(*minor, proc_root_) : std::vector<DeviceHolder>{};
  }
  Status destroy_compute_instance(unsigned instance, unsigned compute) override {
    GPULET_TRY_ASSIGN(const auto device, open_gpu());
    return nvml::Mig(*session_, device).destroy_compute_instance(instance, compute);
  }
  Status destroy_gpu_instance(unsigned instance) override {
    GPULET_TRY_ASSIGN(const auto device, open_gpu());
    return nvml::Mig(*session_, device).destroy_gpu_instance(instance);
  }
  Result<unsigned> create_gpu_instance(unsigned profile, const Placement& placement) override {
    GPULET_TRY_ASSIGN(const auto device, open_gpu());
    return nvml::Mig(*session_, device).create_gpu_instance(profile, to_nvml(placement));
  }
  Result<unsigned> create_compute_instance(unsigned instance, const NewCompute& compute) override {
    GPULET_TRY_ASSIGN(const auto device, open_gpu());
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
    return mig.create_compute_instance(instance, *profile, placement);
  }

 private:
  // A mode change may reset the GPU, and a GPU that falls off the bus changes the indices of
  // others. So look up the handle each time, and check the UUID.
  Result<nvml::Device> open_gpu() const {
    GPULET_TRY_ASSIGN(const auto device, session_->device(index_));
    GPULET_TRY_ASSIGN(const auto uuid, session_->device_uuid(device));
    if (uuid == uuid_) return device;
    return fail(Code::kFailedPrecondition, "GPU " + std::to_string(index_) + " is now a different GPU",
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

namespace {

void add_once(std::vector<std::string>& holders, const std::string& holder) {
  if (std::ranges::find(holders, holder) == holders.end()) holders.push_back(holder);
}

class PodAwareHardware final : public Hardware {
 public:
  PodAwareHardware(Hardware& hardware, std::function<Result<PodsByDevice>()> pods)
      : hardware_(hardware), pods_(std::move(pods)) {}

  Result<State> read_state() override {
    GPULET_TRY_ASSIGN(auto state, hardware_.read_state());
    last_state_ = state;
    GPULET_TRY_ASSIGN(const auto pods, pods_());
    add_pod_holders(state, pods);
    return state;
  }
  Result<std::vector<std::string>> holders(std::optional<unsigned> instance) override {
    GPULET_TRY_ASSIGN(auto holders, hardware_.holders(instance));
    GPULET_TRY_ASSIGN(const auto pods, pods_());
    State now = last_state_;
    now.holders.clear();
    for (auto& one : now.instances) one.holders.clear();
    add_pod_holders(now, pods);
    if (!instance) {
      for (const auto& holder : now.holders) add_once(holders, holder);
    }
    // An instance created after the last read is in no Pod: the kubelet does not know it yet.
    for (const auto& one : now.instances) {
      if (one.id != instance) continue;
      for (const auto& holder : one.holders) add_once(holders, holder);
    }
    return holders;
  }
  Result<nvml::MigActivation> set_mode(bool enabled) override { return hardware_.set_mode(enabled); }
  std::vector<DeviceHolder> device_holders() override { return hardware_.device_holders(); }
  Status destroy_compute_instance(unsigned instance, unsigned compute) override {
    return hardware_.destroy_compute_instance(instance, compute);
  }
  Status destroy_gpu_instance(unsigned instance) override { return hardware_.destroy_gpu_instance(instance); }
  Result<unsigned> create_gpu_instance(unsigned profile, const Placement& placement) override {
    return hardware_.create_gpu_instance(profile, placement);
  }
  Result<unsigned> create_compute_instance(unsigned instance, const NewCompute& compute) override {
    return hardware_.create_compute_instance(instance, compute);
  }

 private:
  Hardware& hardware_;
  std::function<Result<PodsByDevice>()> pods_;
  State last_state_;  // maps devices to instances
};

}  // namespace

void add_pod_holders(State& state, const PodsByDevice& pods) {
  for (const auto& [id, pod] : pods) {
    const std::string_view uuid = without_share(id.str());
    const std::string holder = "Pod " + pod;
    const bool whole = uuid == state.uuid.str();
    if (whole) add_once(state.holders, holder);
    for (auto& instance : state.instances) {
      const bool held = whole || std::ranges::any_of(instance.compute, [&](const auto& compute) {
                          return compute.uuid.str() == uuid;
                        });
      if (held) add_once(instance.holders, holder);
    }
  }
}

std::unique_ptr<Hardware> with_pod_holders(Hardware& hardware, std::function<Result<PodsByDevice>()> pods) {
  return std::make_unique<PodAwareHardware>(hardware, std::move(pods));
}

}  // namespace gpulet::mig
