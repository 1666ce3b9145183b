// One reading of the node's GPUs and of their present load: for commands that choose as an agent would,
// without an agent.
#pragma once

#include "agent/driver/nvml_driver.h"
#include "inventory/snapshot.h"
#include "placement/load_board.h"

namespace gpulet::agent {

struct NodeReading {
  inventory::SnapshotPtr snapshot;
  // As GpuLoadForecaster::gpu_loads(), without a forecast. A GPU whose load cannot be read has none.
  placement::LoadsByGpu loads;
};

// Opens the driver, reads and closes it. Blocks, for at most the driver's call timeout per GPU. Errors: as
// read_snapshot_once().
Result<NodeReading> read_node_once(NvmlDriverOptions options);

}  // namespace gpulet::agent
