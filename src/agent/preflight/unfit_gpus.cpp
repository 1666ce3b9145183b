#include "agent/preflight/unfit_gpus.h"

namespace gpulet::agent {
namespace {

// The layout of that name needs no profiles where it disables MIG.
mig::State state_of(const inventory::Gpu& gpu) {
  mig::State state;
  state.index = gpu.index;
  state.uuid = gpu.uuid;
  state.model = gpu.model;
  state.pci_device_id = gpu.pci_device_id;
  state.pci_subsystem_id = gpu.pci_subsystem_id;
  state.capable = gpu.mig_capable;
  return state;
}

bool means_mig(const MigTarget& target, const inventory::Gpu& gpu, const LayoutsByName& layouts) {
  if (target.exact) return target.exact->enabled;
  const mig::State state = state_of(gpu);
  const auto found = layouts(target.layout, {&state, 1});
  if (!found || found->size() != 1) return true;
  // nullopt: the layout is not about this GPU.
  return found->front() && found->front()->enabled;
}

}  // namespace

UnfitGpus find_unfit(const inventory::Snapshot& snapshot, const std::vector<MigTarget>& targets,
                     const LayoutsByName& layouts) {
  UnfitGpus unfit;
  for (const auto& gpu : snapshot.gpus) {
    if (gpu.mig_enabled || gpu.mig_pending) unfit[gpu.uuid] = "it is in MIG mode";
  }
  for (const auto& target : targets) {
    const auto* gpu = snapshot.find(target.gpu);
    if (gpu == nullptr || unfit.contains(target.gpu) || !means_mig(target, *gpu, layouts)) continue;
    unfit[target.gpu] = "it is to have a MIG layout";
  }
  return unfit;
}

}  // namespace gpulet::agent
