// Time-slicing and MPS: which devices of which resource are offered as several shares, and under which name.
// Pure.
#pragma once

#include <map>
#include <vector>

#include "config/config.h"
#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::partition {

// Devices by the name that they have unshared, each list by (GPU, MIG device).
using Unshared = std::map<ResourceName, std::vector<Device>>;

// The most clients that one MPS daemon serves on a GPU: 48, or 16 below compute capability 7.5.
// Source: k8s-device-plugin v0.20.0, cmd/mps-control-daemon/mps/device.go.
unsigned max_mps_replicas(const inventory::Gpu& gpu);

// On a MIG device: 48, lowered as its compute instance is smaller than a GPU of seven slices (on a GPU of
// four it could be more). Source: NVIDIA's MIG User Guide, "CUDA Concurrency".
unsigned max_mps_replicas(const inventory::MigDevice& device);

// Each device as it is offered: as it was, or as its replicas "<uuid>::<n>" in the resource that `rename`
// names. The first entry of config.sharing that selects a device decides. What cannot be shared stays
// unshared, with a Note.
std::vector<Resource> share(const inventory::Snapshot& snapshot, const config::Config& config,
                            const Unshared& unshared, std::vector<Note>& notes);

}  // namespace gpulet::partition
