#include "health/view.h"

#include <algorithm>
#include <tuple>

namespace gpulet::health {
namespace {

std::string instance_text(const Scope& scope) {
  std::string text = " instance " + std::to_string(scope.gpu_instance);
  if (scope.compute_instance != kNoInstance) text += "/" + std::to_string(scope.compute_instance);
  return text;
}

}  // namespace

const DeviceView* View::find(const Scope& scope) const {
  const auto found = std::ranges::find(devices, scope, &DeviceView::scope);
  return found == devices.end() ? nullptr : &*found;
}

View view_of(const Machine& machine, const inventory::Snapshot& snapshot, const Clock& at) {
  View view{at, {}};
  for (auto& [scope, standing] : machine.standings()) {
    DeviceView device;
    device.scope = scope;
    device.standing = std::move(standing);
    if (scope.whole()) {
      device.uuid = scope.gpu;
      device.absences = machine.absences(scope.gpu);
    }
    if (const auto* gpu = snapshot.find(scope.gpu)) {
      device.gpu_index = gpu->index;
      device.slot = gpu->pci.sysfs();
      if (scope.whole()) device.model = gpu->model;
      const auto mig = std::ranges::find_if(gpu->mig_devices, [&](const auto& other) {
        return other.gpu_instance == scope.gpu_instance && other.compute_instance == scope.compute_instance;
      });
      if (mig != gpu->mig_devices.end()) {
        device.uuid = mig->uuid;
        device.mig_index = mig->index;
        device.model = mig->profile;
      }
    }
    view.devices.push_back(std::move(device));
  }
  std::ranges::stable_sort(view.devices, {}, [](const DeviceView& device) {
    return std::tuple(device.gpu_index.value_or(kNoInstance), device.scope.gpu, !device.scope.whole(),
                      device.mig_index.value_or(0));
  });
  return view;
}

std::string describe(const DeviceView& device) {
  if (!device.gpu_index) {
    return "GPU " + device.scope.gpu.str() + (device.scope.whole() ? "" : instance_text(device.scope));
  }
  const auto index = std::to_string(*device.gpu_index);
  if (device.scope.whole()) return "GPU " + index + " (" + device.uuid.str() + ")";
  if (!device.mig_index) return "GPU " + index + instance_text(device.scope);
  return "MIG " + index + ":" + std::to_string(*device.mig_index) + " (" + device.uuid.str() + ")";
}

}  // namespace gpulet::health
