// Nodes for tests, made by hand.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dra/device_pool.h"
#include "inventory/snapshot.h"

namespace gpulet::dra::test {

inline inventory::Gpu make_gpu(unsigned index) {
  inventory::Gpu gpu;
  gpu.index = index;
  gpu.minor = index;
  gpu.uuid = DeviceUuid("GPU-" + std::to_string(index));
  gpu.model = "NVIDIA H100 80GB HBM3";
  gpu.brand = "NVIDIA";
  gpu.architecture = "hopper";
  gpu.compute_major = 9;
  gpu.memory = mebibytes(81'559);
  gpu.pci = {.bus = 0x10 + index};
  gpu.numa_node = static_cast<int>(index % 2);
  return gpu;
}

inline inventory::MigDevice make_mig(const inventory::Gpu& gpu, unsigned index, const std::string& profile,
                                     unsigned profile_id, unsigned start, unsigned size) {
  inventory::MigDevice mig;
  mig.index = index;
  mig.uuid = DeviceUuid("MIG-" + gpu.uuid.str() + "-" + std::to_string(index));
  mig.profile = profile;
  mig.gpu_instance = index + 1;
  mig.gpu_slices = mig.compute_slices = size;
  mig.memory = mebibytes(9'984);
  mig.gpu_instance_profile = profile_id;
  mig.placement_start = start;
  mig.placement_size = size;
  mig.multiprocessors = 16;
  mig.copy_engines = mig.decoders = mig.jpegs = 1;
  return mig;
}

// With `count` MIG devices 1g.10gb.
inline inventory::Gpu make_partitioned_gpu(unsigned index, unsigned count) {
  inventory::Gpu gpu = make_gpu(index);
  gpu.mig_enabled = true;
  for (unsigned i = 0; i < count; ++i) gpu.mig_devices.push_back(make_mig(gpu, i, "1g.10gb", 19, i, 1));
  return gpu;
}

inline inventory::SnapshotPtr make_snapshot(std::vector<inventory::Gpu> gpus) {
  auto snapshot = std::make_shared<inventory::Snapshot>();
  snapshot->driver = {"570.124.06", 12'040};
  snapshot->gpus = std::move(gpus);
  return snapshot;
}

inline DevicePool make_pool(std::vector<inventory::Gpu> gpus) {
  return make_device_pool({.snapshot = make_snapshot(std::move(gpus))});
}

inline std::string names(const DevicePool& pool) {
  std::string text;
  for (const auto& offered : pool.devices) text += (text.empty() ? "" : " ") + offered.device.name;
  return text;
}

}  // namespace gpulet::dra::test
