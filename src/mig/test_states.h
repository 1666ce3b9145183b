// GPUs for the tests and benchmarks of src/mig: those of the simulated machines, and two boards
// with different profiles; their MIG state as a State; and plans carried out on them.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "mig/plan.h"
#include "sim/machine/machine.h"
#include "sim/state/mig.h"

namespace gpulet::mig::states {

// Four memory slices, two profiles with the media extensions. Source: MIG User Guide, A30.
inline constexpr const char* kA30 = R"(
version: 1
name: a30
gpus:
  - model: h100-sxm5-80gb
    name: NVIDIA A30
    compute_capability: "8.0"
    device_id: 0x20B710DE
    pci: "0000:17:00.0"
    numa: 0
    mig:
      memory_slices: 4
      mode_needs_reset: true
      profiles:
        - {name: 1g.6gb, id: 14, index: 0, slices: 1, memory_slices: 1,
           instances: 4, memory_mib: 5952, multiprocessors: 14, copy_engines: 1,
           placements: [0, 1, 2, 3]}
        - {name: 1g.6gb+me, id: 21, index: 7, slices: 1, memory_slices: 1,
           instances: 1, memory_mib: 5952, multiprocessors: 14, copy_engines: 1,
           jpegs: 1, ofas: 1, placements: [0, 1, 2, 3]}
        - {name: 2g.12gb, id: 5, index: 1, slices: 2, memory_slices: 2,
           instances: 2, memory_mib: 11968, multiprocessors: 28, copy_engines: 2,
           decoders: 2, placements: [0, 2]}
        - {name: 2g.12gb+me, id: 6, index: 8, slices: 2, memory_slices: 2,
           instances: 1, memory_mib: 11968, multiprocessors: 28, copy_engines: 2,
           decoders: 2, jpegs: 1, ofas: 1, placements: [0, 2]}
        - {name: 4g.24gb, id: 0, index: 3, slices: 4, memory_slices: 4,
           instances: 1, memory_mib: 24000, multiprocessors: 56, copy_engines: 4,
           decoders: 4, jpegs: 1, ofas: 1, placements: [0]}
numa_cpus: {0: "0-3"}
)";

// Four memory slices and every kind of attribute: with and without graphics, media engines shared,
// all in one instance, or none. Source: MIG User Guide, RTX PRO 6000 Blackwell Server Edition.
inline constexpr const char* kRtxPro6000 = R"(
version: 1
name: rtx-pro-6000
gpus:
  - model: l40s-48gb
    name: NVIDIA RTX PRO 6000 Blackwell Server Edition
    device_id: 0x2BB510DE
    pci: "0000:17:00.0"
    numa: 0
    mig:
      memory_slices: 4
      profiles:
        - {name: 1g.24gb, id: 14, index: 0, slices: 1, memory_slices: 1,
           instances: 4, memory_mib: 24192, multiprocessors: 46, copy_engines: 1,
           decoders: 1, encoders: 1, jpegs: 1, placements: [0, 1, 2, 3]}
        - {name: 1g.24gb+me, id: 21, index: 7, slices: 1, memory_slices: 1,
           instances: 1, memory_mib: 24192, multiprocessors: 46, copy_engines: 1,
           decoders: 1, encoders: 1, jpegs: 1, ofas: 1, placements: [0, 1, 2, 3]}
        - {name: 1g.24gb+gfx, id: 47, index: 10, slices: 1, memory_slices: 1,
           instances: 4, memory_mib: 24192, multiprocessors: 46, copy_engines: 1,
           decoders: 1, encoders: 1, jpegs: 1, placements: [0, 1, 2, 3]}
        - {name: 1g.24gb+me.all, id: 65, index: 15, slices: 1, memory_slices: 1,
           instances: 1, memory_mib: 24192, multiprocessors: 46, copy_engines: 1,
           decoders: 4, encoders: 4, jpegs: 4, ofas: 1, placements: [0, 1, 2, 3]}
        - {name: 1g.24gb-me, id: 67, index: 13, slices: 1, memory_slices: 1,
           instances: 4, memory_mib: 24192, multiprocessors: 46, copy_engines: 1,
           placements: [0, 1, 2, 3]}
        - {name: 2g.48gb, id: 5, index: 1, slices: 2, memory_slices: 2,
           instances: 2, memory_mib: 48512, multiprocessors: 94, copy_engines: 2,
           decoders: 2, encoders: 2, jpegs: 2, placements: [0, 2]}
        - {name: 2g.48gb+gfx, id: 35, index: 11, slices: 2, memory_slices: 2,
           instances: 2, memory_mib: 48512, multiprocessors: 94, copy_engines: 2,
           decoders: 2, encoders: 2, jpegs: 2, placements: [0, 2]}
        - {name: 2g.48gb+me.all, id: 64, index: 16, slices: 2, memory_slices: 2,
           instances: 1, memory_mib: 48512, multiprocessors: 94, copy_engines: 2,
           decoders: 4, encoders: 4, jpegs: 4, ofas: 1, placements: [0, 2]}
        - {name: 2g.48gb-me, id: 66, index: 14, slices: 2, memory_slices: 2,
           instances: 2, memory_mib: 48512, multiprocessors: 94, copy_engines: 2,
           placements: [0, 2]}
        - {name: 4g.96gb, id: 0, index: 3, slices: 4, memory_slices: 4,
           instances: 1, memory_mib: 97280, multiprocessors: 188, copy_engines: 4,
           decoders: 4, encoders: 4, jpegs: 4, ofas: 1, placements: [0]}
        - {name: 4g.96gb+gfx, id: 32, index: 12, slices: 4, memory_slices: 4,
           instances: 1, memory_mib: 97280, multiprocessors: 188, copy_engines: 4,
           decoders: 4, encoders: 4, jpegs: 4, ofas: 1, placements: [0]}
numa_cpus: {0: "0-3"}
)";

// Every board with MIG: those of the built-in machines and the two above.
inline std::vector<std::string> machines_with_mig() {
  return {"dgx-a100", "dgx-a100-40gb", "hgx-h100", "hgx-h200", "gb200", "a30", "rtx-pro-6000"};
}

// Loads one of those machines, or any other built-in one. Null only for a bug in this file.
inline std::unique_ptr<sim::Machine> test_machine(const std::string& name) {
  auto made = name == "a30"            ? sim::parse_machine(kA30, "a30.yaml")
              : name == "rtx-pro-6000" ? sim::parse_machine(kRtxPro6000, "rtx-pro-6000.yaml")
                                       : sim::load_machine(name);
  return made ? std::move(*made) : nullptr;
}

inline Profile profile_of(const sim::MigProfile& from) {
  Profile profile{from.id,
                  from.name,
                  from.slices,
                  mebibytes(from.memory_mib),
                  {from.decoders, from.encoders, from.jpegs, from.ofas},
                  from.max_instances,
                  {},
                  {},
                  from.multiprocessors,
                  from.copy_engines};
  for (std::uint32_t i = 0; i < from.placement_count; ++i) {
    profile.placements.push_back({from.placements[i], from.memory_slices});
  }
  for (std::uint32_t i = 0; i < from.compute_profile_count; ++i) {
    const auto& compute = from.compute_profiles[i];
    profile.compute.push_back({compute.id, compute.slices, {}});
    for (unsigned start = 0; start + compute.slices <= from.slices; start += sim::compute_stride(compute)) {
      profile.compute.back().placements.push_back({start, compute.slices});
    }
  }
  return profile;
}

inline State state_of(const sim::Gpu& gpu, unsigned index = 0) {
  State state;
  state.index = index;
  state.uuid = DeviceUuid(gpu.uuid);
  state.model = gpu.name;
  state.pci_device_id = gpu.pci_device_id;
  state.pci_subsystem_id = gpu.pci_subsystem_id;
  const sim::Mig& mig = gpu.mig;
  state.capable = mig.capable != 0;
  state.enabled = mig.current != 0;
  if (mig.pending != mig.current) state.pending = mig.pending != 0;
  for (std::uint32_t i = 0; i < mig.profile_count; ++i) state.profiles.push_back(profile_of(mig.profiles[i]));
  std::ranges::sort(state.profiles, {}, &Profile::id);
  for (const auto& simulated : mig.instances) {
    if (simulated.used == 0) continue;
    const auto& profile = mig.profiles[simulated.profile];
    GpuInstance instance{simulated.id, profile.id, {simulated.start, simulated.length}, {}, {}};
    for (const auto& compute : simulated.compute) {
      if (compute.used == 0) continue;
      instance.compute.push_back({compute.id,
                                  profile.compute_profiles[compute.profile].id,
                                  {compute.start, compute.length},
                                  DeviceUuid(compute.uuid)});
    }
    state.instances.push_back(std::move(instance));
  }
  std::ranges::sort(state.instances, {}, &GpuInstance::placement);
  return state;
}

inline std::string carry_out(sim::Gpu& gpu, sim::GpuInstance& instance, const NewCompute& part) {
  if (!part.profile) return "no compute profile for " + part.device;
  sim::ComputeInstance* made = nullptr;
  const auto start = part.placement ? std::optional(part.placement->start) : std::nullopt;
  return sim::create_compute_instance(gpu, instance, *part.profile, start, &made) == sim::MigOutcome::kOk
             ? ""
             : "cannot create " + part.device;
}

// Carries out all steps of the plan except the mode. Returns the failure; empty on success.
inline std::string carry_out(sim::Gpu& gpu, const Plan& plan) {
  for (const auto& step : plan.destroy_compute) {
    auto* instance = sim::find_gpu_instance(gpu, step.instance);
    if (instance == nullptr ||
        sim::destroy_compute_instance(gpu, *instance, step.compute) != sim::MigOutcome::kOk) {
      return "cannot destroy " + step.device;
    }
  }
  for (const auto& step : plan.destroy) {
    if (sim::destroy_gpu_instance(gpu, step.instance) != sim::MigOutcome::kOk) {
      return "cannot destroy " + step.profile;
    }
  }
  for (const auto& step : plan.create_compute) {
    auto* instance = sim::find_gpu_instance(gpu, step.instance);
    if (instance == nullptr) return "no instance for " + step.compute.device;
    if (auto error = carry_out(gpu, *instance, step.compute); !error.empty()) return error;
  }
  for (const auto& step : plan.create) {
    sim::GpuInstance* made = nullptr;
    if (sim::create_gpu_instance(gpu, step.profile_id, step.placement.start, &made) != sim::MigOutcome::kOk) {
      return "cannot create " + step.profile;
    }
    for (const auto& part : step.compute) {
      if (auto error = carry_out(gpu, *made, part); !error.empty()) return error;
    }
  }
  return "";
}

// Creates a GPU instance and in it a compute instance for each number of slices; a whole one by
// default.
inline sim::GpuInstance* add_instance(sim::Gpu& gpu, const std::string& profile, unsigned start,
                                      std::vector<unsigned> parts = {}) {
  const State state = state_of(gpu);
  const Profile* found = find_profile(state, profile);
  sim::GpuInstance* made = nullptr;
  if (found == nullptr || sim::create_gpu_instance(gpu, found->id, start, &made) != sim::MigOutcome::kOk) {
    return nullptr;
  }
  if (parts.empty()) parts = {found->slices};
  for (const unsigned slices : parts) {
    const auto compute = std::ranges::find(found->compute, slices, &ComputeProfile::slices);
    sim::ComputeInstance* part = nullptr;
    if (compute == found->compute.end() ||
        sim::create_compute_instance(gpu, *made, compute->id, std::nullopt, &part) != sim::MigOutcome::kOk) {
      return nullptr;
    }
  }
  return made;
}

// Sets the MIG mode, as after a reset.
inline void set_mig_mode(sim::Gpu& gpu, bool enabled = true) {
  gpu.mig.current = gpu.mig.pending = enabled ? 1 : 0;
}

inline const Layout kOff{false, {}};

// A layout with MIG enabled and these devices: the count of each profile.
inline Layout enabled_layout(std::map<std::string, unsigned> devices) { return {true, std::move(devices)}; }

}  // namespace gpulet::mig::states
