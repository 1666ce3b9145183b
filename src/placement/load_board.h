// The newest loads of a node's GPUs, which whoever samples them sets and whoever answers a request reads.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/types.h"
#include "placement/chooser.h"

namespace gpulet::placement {

using LoadsByGpu = std::map<DeviceUuid, GpuLoad>;

// Any thread. A reader waits for a pointer's copy at most.
class LoadBoard {
 public:
  void set_loads(LoadsByGpu loads);
  // The loads of `gpus` in their order, for Chooser::choose_devices(); zero where none is known.
  std::vector<GpuLoad> loads_of(std::span<const DeviceUuid> gpus) const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const LoadsByGpu> loads_ = std::make_shared<LoadsByGpu>();
};

}  // namespace gpulet::placement
