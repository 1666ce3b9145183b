// One GPU or MIG device as the kubelet is to see it, before it is shared. Pure.
#pragma once

#include <string>

#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::partition {

// "GPU 3 (GPU-…)", "MIG device 3:1 (MIG-…)": for notes.
std::string name_of(const inventory::Gpu& gpu);
std::string name_of(const inventory::Gpu& gpu, const inventory::MigDevice& mig);

// Nothing was ever learned of it: neither its model nor whether it is cut up.
bool unknown(const inventory::Gpu& gpu);

Device whole_gpu(const inventory::Snapshot& snapshot, std::size_t gpu);
Device mig_device(const inventory::Snapshot& snapshot, std::size_t gpu, std::size_t mig);
// "<uuid>::<n>" of it.
Device replica_of(const Device& device, unsigned n);

// By (GPU, MIG device, replica).
void sort_devices(std::vector<Device>& devices);

}  // namespace gpulet::partition
