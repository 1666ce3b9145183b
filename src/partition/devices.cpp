#include "partition/devices.h"

#include <algorithm>
#include <tuple>

namespace gpulet::partition {
namespace {

using inventory::Gpu;

inventory::Health health_of(const Gpu& gpu) {
  if (gpu.health.healthy && gpu.unreadable) return {false, "cannot be read: " + gpu.unreadable->message()};
  return gpu.health;
}

}  // namespace

std::string name_of(const Gpu& gpu) {
  return "GPU " + std::to_string(gpu.index) + " (" + gpu.uuid.str() + ")";
}

std::string name_of(const Gpu& gpu, const inventory::MigDevice& mig) {
  return "MIG device " + std::to_string(gpu.index) + ":" + std::to_string(mig.index) +
         (mig.uuid.empty() ? "" : " (" + mig.uuid.str() + ")");
}

bool unknown(const Gpu& gpu) { return gpu.unreadable.has_value() && gpu.model.empty(); }

Device whole_gpu(const inventory::Snapshot& snapshot, std::size_t index) {
  const auto& gpu = snapshot.gpus[index];
  Device device;
  device.id = DeviceId(gpu.uuid.str());
  device.gpu = index;
  device.numa_node = gpu.numa_node;
  device.health = health_of(gpu);
  // Offered whole although it is cut up (strategy none): what breaks a part of it breaks it.
  for (const auto& mig : gpu.mig_devices) {
    if (device.health.healthy && gpu.mig_enabled && !mig.health.healthy) device.health = mig.health;
  }
  return device;
}

Device mig_device(const inventory::Snapshot& snapshot, std::size_t gpu_index, std::size_t mig_index) {
  const auto& gpu = snapshot.gpus[gpu_index];
  const auto& mig = gpu.mig_devices[mig_index];
  Device device;
  device.id = DeviceId(mig.uuid.str());
  device.gpu = gpu_index;
  device.mig = mig_index;
  device.numa_node = gpu.numa_node;
  device.health = mig.health.healthy ? health_of(gpu) : mig.health;
  return device;
}

Device replica_of(const Device& device, unsigned n) {
  Device replica = device;
  replica.id = DeviceId(device.id.str() + "::" + std::to_string(n));
  replica.replica = n;
  return replica;
}

void sort_devices(std::vector<Device>& devices) {
  std::ranges::sort(devices, {}, [](const Device& d) { return std::tuple(d.gpu, d.mig, d.replica); });
}

}  // namespace gpulet::partition
