// Every device of a node and how it stands, as one plain value: what `gpulet health`, the cluster's news and
// the pages are made of. Immutable once published; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "health/machine.h"
#include "health/state.h"
#include "inventory/snapshot.h"

namespace gpulet::health {

struct DeviceView {
  Scope scope;
  DeviceUuid uuid;                    // its own: "GPU-…" or "MIG-…"; of a gone GPU's MIG device empty
  std::optional<unsigned> gpu_index;  // as NVML counts; nullopt for a GPU that is no more in the node
  std::optional<unsigned> mig_index;  // below its GPU; nullopt for a GPU
  std::string model;                  // the GPU's model, or the MIG device's profile; empty when it is gone
  std::string slot;                   // of its GPU, sysfs' form; empty when it is gone
  Standing standing;
  std::vector<Absence> absences;  // of a GPU: what could not be asked about it
};

struct View {
  Clock at;  // the standings' times count from `now`
  std::vector<DeviceView>
      devices;  // by the GPU's index, those that are gone last; each GPU before its MIG devices
  const DeviceView* find(const Scope& scope) const;
};
using ViewPtr = std::shared_ptr<const View>;

// Of every device that the machine knows. Devices of a GPU that the snapshot no longer has are there as well,
// without what only the snapshot says. Cost: linear in devices. Pure.
View view_of(const Machine& machine, const inventory::Snapshot& snapshot, const Clock& at);

// "GPU 3 (GPU-5a…)", "MIG 3:1 (MIG-7c…)", "GPU GPU-5a…" when it is gone.
std::string describe(const DeviceView& device);

}  // namespace gpulet::health
