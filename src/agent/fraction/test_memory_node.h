// A node for the tests of memory limits.
#pragma once

#include <string>

#include "inventory/snapshot.h"

namespace gpulet::agent {

// GPU-0 and so on, of 80,000 MiB each.
inline inventory::Snapshot make_memory_node(unsigned gpus) {
  inventory::Snapshot node;
  for (unsigned i = 0; i < gpus; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.memory = mebibytes(80'000);
    node.gpus.push_back(gpu);
  }
  return node;
}

}  // namespace gpulet::agent
