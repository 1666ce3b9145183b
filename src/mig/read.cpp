#include "mig/read.h"

#include <algorithm>

#include "base/file.h"
#include "base/text.h"
#include "inventory/read.h"
#include "nvml/mig.h"
#include "nvml/session.h"

namespace gpulet::mig {
namespace {

constexpr std::size_t kMostComm = 64;  // the kernel's are 16

// An instance that goes away while it is read is not there.
bool gone(const Error& error) {
  return error.code() == Code::kNotFound || error.code() == Code::kInvalidArgument;
}

// What an old driver does not tell is left out.
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

std::string holder_of(unsigned pid, const std::string& proc_root) {
  std::string text = "process " + std::to_string(pid);
  const auto comm = read_file(proc_root + "/" + std::to_string(pid) + "/comm", kMostComm);
  if (!comm) return text;
  std::string name(text::trim(*comm));
  if (name.empty()) return text;
  // The process chose it.
  for (char& c : name) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text + " (" + name + ")";
}

Result<std::vector<nvml::Process>> processes_of(const nvml::Session& session, nvml::Device device) {
  std::vector<nvml::Process> all;
  GPULET_TRY(optional_list(session.processes(device), all));
  return all;
}

// Each process once, whatever it holds there. A process that the driver places in no instance holds the GPU.
std::vector<std::string> holders_of(const std::vector<nvml::Process>& processes,
                                    std::optional<unsigned> instance, const std::string& proc_root) {
  std::vector<std::string> holders;
  std::optional<unsigned> last;
  for (const auto& process : processes) {
    if (process.gpu_instance != instance || last == process.pid) continue;
    last = process.pid;
    holders.push_back(holder_of(process.pid, proc_root));
  }
  return holders;
}

Result<Profile> read_profile(const nvml::Mig& mig, const nvml::GpuInstanceProfile& from, Bytes total) {
  Profile profile;
  profile.id = from.id;
  profile.slices = from.slices;
  profile.memory = mebibytes(from.memory_mib);
  profile.engines = {from.decoders, from.encoders, from.jpegs, from.ofas};
  profile.most = from.most;
  profile.name = from.name;
  if (profile.name.empty()) {
    profile.name =
        inventory::profile_of_numbers(from.slices, from.slices, profile.memory, total) + from.attributes;
  }
  std::vector<nvml::Placement> placements;
  GPULET_TRY(optional_list(mig.placements(from.id), placements));
  profile.placements = to_placements(placements);
  return profile;
}

// The driver tells compute profiles only of a GPU instance that is there.
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
    GPULET_TRY_ASSIGN(const auto there, mig.compute_instances(from.id, compute.id));
    for (const auto& one : there) {
      instance.compute.push_back({one.id, one.profile, {one.placement.start, one.placement.size}, {}});
    }
  }
  std::ranges::sort(instance.compute, {}, &ComputeInstance::id);
  return instance;
}

Status read_instances(const nvml::Mig& mig, State& state) {
  for (auto& profile : state.profiles) {
    GPULET_TRY_ASSIGN(const auto there, mig.instances(profile.id));
    for (const auto& from : there) {
      auto instance = read_instance(mig, from, profile);
      if (!instance && gone(instance.error())) continue;
      if (!instance) return fail(instance.error());
      state.instances.push_back(std::move(*instance));
    }
  }
  std::ranges::sort(state.instances, {}, &GpuInstance::placement);
  GPULET_TRY_ASSIGN(const auto devices, mig.devices());
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
  GPULET_TRY_ASSIGN(const auto profiles, mig.profiles());
  GPULET_TRY_ASSIGN(const Bytes total, session.memory_total(device));
  for (const auto& from : profiles) {
    GPULET_TRY_ASSIGN(auto profile, read_profile(mig, from, total));
    state.profiles.push_back(std::move(profile));
  }
  std::ranges::sort(state.profiles, {}, &Profile::id);
  return state.enabled ? read_instances(mig, state) : Status{};
}

}  // namespace

Result<State> read(const nvml::Session& session, unsigned index, const std::string& proc_root) {
  State state;
  state.index = index;
  GPULET_TRY_ASSIGN(const auto device, session.device(index));
  GPULET_TRY_ASSIGN(state.uuid, session.uuid(device));
  GPULET_TRY_ASSIGN(state.model, session.name(device));
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

}  // namespace gpulet::mig
